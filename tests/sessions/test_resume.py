"""A session that was closed goes on to the last bit as one that was not."""

import numpy as np
import pytest

from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.sessions import Store
from tests.sessions.tiny import SHAPE, Talker, words

WINDOW = 200
LENGTHS = [1, 63, 64, 65, WINDOW - 1, WINDOW, WINDOW + 1, 10 * WINDOW]


def policy_of(bits=4, window=WINDOW, n_pinned=0, n_sink=4):
    layers = (LayerPolicy(SHAPE.n_kv_heads, SHAPE.head_dim, bits, bits),) * SHAPE.n_layers
    return CachePolicy(window, layers, n_sink, n_pinned)


class Pair:
    """The same conversation twice: `open` in one process, `closed` after every turn."""

    def __init__(self, tmp_path, policy):
        self.policy = policy
        self.stores = [Store(tmp_path / name) for name in ("open", "closed")]
        self.sessions = [store.create("a").id for store in self.stores]
        self.open = Talker(self.stores[0])
        self.cached = 0

    def turn(self, prompt, n=4):
        """Take a turn in both; their scores must be the same bits. Returns the tokens."""
        expected = self.open.turn(prompt, self.policy, self.sessions[0], n)
        with Talker(self.stores[1]) as closed:
            actual = closed.turn(prompt, self.policy, self.sessions[1], n)
            assert closed.notices == self.open.notices == []
        assert closed.cached == self.open.cached
        assert closed.tokens == self.open.tokens
        np.testing.assert_array_equal(actual, expected)
        self.cached = closed.cached
        return closed.tokens

    def close(self):
        self.open.reuse.close()
        for store in self.stores:
            store.close()


@pytest.fixture
def pair(tmp_path):
    pairs = []

    def make(policy):
        pairs.append(Pair(tmp_path / str(len(pairs)), policy))
        return pairs[-1]

    yield make
    for one in pairs:
        one.close()


@pytest.mark.parametrize("length", LENGTHS)
def test_any_length_goes_on_to_the_last_bit(pair, length):
    both = pair(policy_of())
    tokens = both.turn(words(length))
    assert len(both.turn([*tokens, *words(70, 1)])) == length + 78
    assert both.cached == length + 4
    both.turn([*both.open.tokens, 5])
    assert both.cached == length + 78


@pytest.mark.parametrize("bits", [2, 3, 8, 16])
@pytest.mark.parametrize("n_pinned", [0, 64])
def test_every_bit_width_goes_on_to_the_last_bit(pair, bits, n_pinned):
    both = pair(policy_of(bits, n_pinned=n_pinned))
    tokens = both.turn(words(333))
    for n in range(3):
        tokens = both.turn([*tokens, *words(90, n)])
        assert both.cached == len(tokens) - 94


@pytest.mark.parametrize("length", [40, 300, 2000])
def test_undone_turns_and_edited_ones_go_on_to_the_last_bit(pair, length):
    both = pair(policy_of())
    turns = [both.turn(words(length))]
    for n in range(3):
        turns.append(both.turn([*turns[-1], *words(50, n)], n=60))
    # Undo two turns, then ask something else: the state at that turn's end is still there.
    both.turn([*turns[1], *words(30, 7)])
    assert both.cached == len(turns[1])
    # Retry the turn behind it.
    both.turn([*turns[1], *words(50, 1)], n=60)
    assert both.cached >= len(turns[1])
    # Edit the first message in its middle.
    edited = [*turns[0][: length // 2], *words(200, 8)]
    both.turn(edited)
    assert both.cached >= length // 2 - 2 * 64 - 4
    both.turn([*both.open.tokens, *words(9, 9)])


def test_a_window_rolled_past_is_loaded_back(pair):
    both = pair(policy_of())
    tokens = both.turn(words(3000), n=2)
    both.turn([*tokens[:1000], *words(40, 1)])
    assert 1000 - 2 * 64 < both.cached <= 1000


def test_branches_go_on_to_the_last_bit_and_share_their_blocks(pair):
    both = pair(policy_of())
    tokens = both.turn(words(700))
    branches = [
        store.branch(session).id for store, session in zip(both.stores, both.sessions, strict=True)
    ]
    trunk, both.sessions = both.sessions, branches
    both.turn([*tokens, *words(100, 1)])
    assert both.cached == len(tokens)
    both.sessions = trunk
    both.turn([*tokens, *words(100, 2)])
    assert both.cached == len(tokens)


def test_blocks_from_before_anything_was_evicted_serve_every_window(tmp_path):
    prompt = words(190)
    with Store(tmp_path) as store, Talker(store) as talker:
        session = store.create("a").id
        talker.turn(prompt, policy_of(window=300), session)
        talker.turn(prompt, policy_of(window=200), session)
        assert talker.cached == 189
        talker.turn(words(2000), policy_of(window=300), session)
        # What was computed with nothing evicted: 256 tokens behind the sinks, less a block.
        talker.turn(words(2000), policy_of(window=200), session)
        assert 64 <= talker.cached <= 4 + 200


@pytest.mark.parametrize(
    "other",
    [
        {"policy": policy_of(bits=8)},
        {"policy": policy_of(n_sink=3)},
        {"policy": policy_of(n_pinned=64)},
        {"policy": policy_of(window=300)},
        {"model": "two"},
        {"prompt": [words(1, 5)[0], *words(2000)[1:]]},
    ],
    ids=lambda other: next(iter(other)),
)
def test_nothing_is_taken_from_another_model_policy_or_text(tmp_path, other):
    with Store(tmp_path) as store:
        session = store.create("a").id
        with Talker(store) as talker:
            talker.turn(words(2000), policy_of(), session)
        prompt, policy = other.get("prompt", words(2000)), other.get("policy", policy_of())
        with Talker(store, other.get("model", "one")) as talker:
            warm = talker.turn(prompt, policy, session)
            shared = policy == policy_of(window=300)
            assert talker.cached == (4 + 2 * 64 if shared else 0)
        if not shared:
            with Talker() as cold:
                np.testing.assert_array_equal(cold.turn(prompt, policy), warm)


def test_two_sessions_that_alternate_both_stay_warm_without_a_disk():
    with Talker() as talker:
        first = second = None
        for n in range(3):
            first = [*(first or words(500, 1)), *words(20, 10 + n)]
            second = [*(second or words(500, 2)), *words(20, 20 + n)]
            for tokens in (first, second):
                talker.turn(tokens, policy_of())
                assert talker.cached == (len(tokens) - 20 if n else 0)
                tokens[:] = talker.tokens


def test_memory_stays_in_its_budget_and_then_computes_again():
    from edgekv.sessions.memory import BlockMemory

    memory = BlockMemory(150_000)
    with Talker(memory=memory) as talker:
        for n in range(4):
            talker.turn(words(500, n), policy_of())
            assert 0 < memory.nbytes <= 150_000
        talker.turn(words(500, 0), policy_of())
        assert talker.cached == 0


def test_a_request_without_a_session_leaves_no_file(tmp_path):
    with Store(tmp_path) as store:
        before = sorted(tmp_path.rglob("*"))
        with Talker(store) as talker:
            talker.turn(words(500), policy_of())
        assert sorted(tmp_path.rglob("*")) == before
