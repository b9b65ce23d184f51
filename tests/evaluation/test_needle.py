import pytest

from edgekv.errors import InvalidValue
from edgekv.evaluation.checkpoint import Checkpoint
from edgekv.evaluation.needle import DEPTHS, FACT, SEEDS, hide, search
from edgekv.evaluation.walk import Walk, Watch
from edgekv.generate import Cancelled


@pytest.fixture
def hidden(tiny):
    return [hide(tiny.tokenizer, 900, depth, seed) for depth in DEPTHS for seed in range(SEEDS)]


def test_the_fact_stands_where_it_is_said_to(tiny, hidden):
    for text in hidden:
        fact = tiny.tokenizer.decode(text.tokens[text.first : text.last])
        assert fact == FACT.format(number=text.number)
        assert 840 < len(text.tokens) <= 900
        assert abs(text.first / len(text.tokens) - text.depth) < 0.12
    assert len({text.number for text in hidden}) == len(hidden)


def test_eviction_is_told_to_the_token(tiny, hidden):
    for text in hidden:
        # The last digit is written by a query at the text's length and four.
        reach = len(text.tokens) + 5 - text.first
        assert not text.evicted(tiny.policy(reach))
        assert text.evicted(tiny.policy(reach - 1))


def test_a_text_too_short_is_refused(tiny):
    with pytest.raises(InvalidValue, match="--tokens 60 is too short"):
        hide(tiny.tokenizer, 60, 0.5, 0)


def look(loaded, policy, length, **options):
    walk = options.pop("walk", Walk([]))
    watch = options.pop("watch", Watch())
    return search(
        loaded.model, loaded.rope, policy, loaded.tokenizer, length, walk, watch, **options
    )


def test_every_depth_is_asked_for_as_often_and_answers_are_kept(tiny, tmp_path):
    policy, told, place = tiny.policy(512), [], Checkpoint(tmp_path, "name")
    stops = iter([False] * 5 + [True])
    with pytest.raises(Cancelled):
        look(tiny, policy, 700, watch=Watch(cancelled=lambda: next(stops)), keeper=place)
    watch = Watch(told=lambda done, total: told.append((done, total)))
    found = look(tiny, policy, 700, walk=place.load([], tiny.rope), watch=watch)
    assert told == [(done, 9) for done in range(3, 10)]
    assert [answer.depth for answer in found] == [d for d in DEPTHS for _ in range(SEEDS)]
    assert [answer.evicted for answer in found] == [True] * 3 + [False] * 6


@pytest.mark.model
@pytest.mark.slow
@pytest.mark.parametrize("bits", [4, 3])
def test_the_default_model_finds_every_number_in_its_window_and_none_outside(loaded, bits):
    held = look(loaded, loaded.policy(2100, bits), 2048)
    rolled = look(loaded, loaded.policy(512, bits), 2048)
    assert all(answer.right and not answer.evicted for answer in held)
    assert [answer.evicted for answer in rolled] == [answer.depth < 0.8 for answer in rolled]
    assert not any(answer.right for answer in rolled if answer.evicted)
    assert all(answer.right for answer in rolled if not answer.evicted)
