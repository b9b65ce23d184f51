"""Measurements against their definitions, and going on after an interruption."""

import mlx.core as mx
import numpy as np
import pytest

from edgekv.cache.policy import CachePolicy
from edgekv.cache.sequence import SequenceCache
from edgekv.evaluation import walk as walking
from edgekv.evaluation.checkpoint import Checkpoint, key
from edgekv.evaluation.divergence import compare, reference_policy
from edgekv.evaluation.perplexity import Perplexity, fresh, nll_of, stretches
from edgekv.evaluation.walk import Walk, Watch, walk_on
from edgekv.generate import Cancelled, forward


def log_softmax(loaded, policy, tokens):
    """The whole matrix at once, in float64."""
    cache = loaded.cache(policy)
    scores = loaded.model.logits(forward(loaded.model, cache, mx.array(tokens)))
    scores = np.array(scores, dtype=np.float64)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


@pytest.fixture
def few_rows(monkeypatch):
    """So few scores at once that a chunk takes several goes."""
    monkeypatch.setattr(walking, "SCORES", 288 * 50)


def test_perplexity_is_that_of_the_whole_matrix(tiny, words, few_rows):
    tokens, policy = words[:500], tiny.policy(1024)
    found = Perplexity(tiny.nll(tiny.cache(policy), tokens))
    wanted = -log_softmax(tiny, policy, tokens)[np.arange(499), tokens[1:]]
    np.testing.assert_allclose(found.nll, wanted, atol=2e-4)
    assert found.ppl == pytest.approx(np.exp(wanted.mean()), rel=1e-4)


def test_divergence_is_that_of_the_whole_matrices(tiny, words, few_rows):
    tokens, two, four = words[:500], tiny.policy(1024, bits=2), tiny.policy(1024)
    reference = reference_policy(two, 500)
    found = tiny.divergences([two, four], tokens)
    p = log_softmax(tiny, reference, tokens)[:-1]
    for divergence, policy in zip(found, (two, four), strict=True):
        q = log_softmax(tiny, policy, tokens)[:-1]
        kld = (np.exp(p) * (p - q)).sum(axis=-1)
        np.testing.assert_allclose(divergence.kld, kld, atol=2e-6)
        assert divergence.top1 == (p.argmax(-1) == q.argmax(-1)).mean()
        losses = -q[np.arange(499), tokens[1:]]
        assert divergence.ppl == pytest.approx(np.exp(losses.mean()), rel=1e-4)
    assert found[0].mean > 4 * found[1].mean > 0


def test_tokens_that_are_skipped_change_nothing_of_the_others(tiny, words):
    every = tiny.nll(tiny.cache(tiny.policy(128)), words)
    for skip in (2, 500, 517, 1499):
        some = tiny.nll(tiny.cache(tiny.policy(128)), words, skip=skip)
        np.testing.assert_array_equal(some, every[skip - 1 :])


@pytest.mark.parametrize("tokens", [2, 128, 129, 130, 2048, 2049, 5000])
def test_stretches_cover_every_scored_token_once(tokens):
    found = stretches(tokens)
    assert [t for first, last in found for t in range(first, last + 1)] == list(range(1, tokens))
    assert len(found) <= 17


def test_stretches_are_weighted_into_the_whole(tiny, words):
    found = Perplexity(tiny.nll(tiny.cache(tiny.policy(128)), words))
    parts = found.by_position()
    total = sum((last - first + 1) * np.log(ppl) for first, last, ppl in parts)
    assert np.exp(total / len(found.nll)) == pytest.approx(found.ppl)


class Stop:
    """Asks to stop after so many chunks."""

    def __init__(self, chunks):
        self.left = chunks

    def __call__(self):
        self.left -= 1
        return self.left < 0


def test_fresh_caches_see_the_same_words_behind_a_window(tiny, words, tmp_path):
    policy = tiny.policy(128, n_sink=0)
    found = Perplexity(tiny.nll(tiny.cache(policy), words)).by_position()
    place = Checkpoint(tmp_path, "name")
    with pytest.raises(Cancelled):
        walk, watch = place.load([], tiny.rope), Watch(cancelled=Stop(5))
        fresh(tiny.model, policy, tiny.rope, words, walk, watch, place)
    walk = place.load([], tiny.rope)
    assert 0 < walk.done < 10
    anew = fresh(tiny.model, policy, tiny.rope, words, walk, Watch())
    assert [row[:2] for row in anew] == [row[:2] for row in found if row[0] > 127]
    # One layer sees nothing beyond its window; the second sees a little through the first.
    for row, same in zip(anew, found[-len(anew) :], strict=True):
        assert row[2] == pytest.approx(same[2], rel=0.02)


@pytest.mark.parametrize("score", [nll_of, compare])
def test_an_interrupted_walk_goes_on_to_the_same_numbers(tiny, words, tmp_path, score):
    policies = [
        CachePolicy(1024, tiny.policy(1, bits=16).layers, n_sink=4, n_pinned=128),
        CachePolicy(200, tiny.policy(1, bits=3).layers, n_sink=4, n_pinned=64),
    ][-2 if score is compare else -1 :]
    whole = tiny.walk_on([tiny.cache(p) for p in policies], words, score)
    place = Checkpoint(tmp_path / "kept", "name")
    for _ in range(2):
        walk = place.load(policies, tiny.rope)
        watch = Watch(cancelled=Stop(1))
        with pytest.raises(Cancelled):
            walk_on(tiny.model, walk, words, score(tiny.model), watch, place)
    walk = place.load(policies, tiny.rope)
    assert walk.done == 4 + 2 * 512
    assert [cache.nbytes for cache in walk.caches] == [p.nbytes for p in policies]
    found = walk_on(tiny.model, walk, words, score(tiny.model), None, place)
    np.testing.assert_array_equal(found, whole)
    place.forget()
    assert not list((tmp_path / "kept").iterdir())


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_file_is_dropped_and_the_walk_begins_again(tiny, words, tmp_path, damage):
    policy = tiny.policy(128)
    place = Checkpoint(tmp_path, "name")
    walk = Walk([SequenceCache(policy, tiny.rope)])
    with pytest.raises(Cancelled):
        watch = Watch(cancelled=Stop(1))
        walk_on(tiny.model, walk, words, nll_of(tiny.model), watch, place)
    (path,) = tmp_path.iterdir()
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2] if damage is None else damage)
    assert place.load([policy], tiny.rope).done == 0
    assert not path.exists()


def test_another_text_policy_or_model_is_another_measurement(tiny, words, tiny_path, tmp_path):
    policy = tiny.policy(128)
    copy = tmp_path / "copy.gguf"
    copy.write_bytes(tiny_path.read_bytes())
    names = {
        key("ppl", tiny_path, words, [policy]),
        key("kld", tiny_path, words, [policy]),
        key("ppl", copy, words, [policy]),
        key("ppl", tiny_path, words[1:], [policy]),
        key("ppl", tiny_path, words, [tiny.policy(128, bits=8)]),
        key("ppl", tiny_path, words, [policy.with_window(129)]),
    }
    assert len(names) == 6
