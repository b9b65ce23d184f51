import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_flatten

from edgekv.cache.sequence import SequenceCache
from edgekv.generate import PREFILL_CHUNK, Cancelled, chunks, decode, forward, prefill
from edgekv.metal.tile import BLOCK
from edgekv.models.llama import Model, ModelArgs
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape
from edgekv.sampling import RepetitionPenalty, Sampling, make_sampler

VOCAB = 60
CONFIG = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 48,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": VOCAB,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
}


@pytest.fixture(scope="module")
def model():
    mx.random.seed(3)
    weights = dict(tree_flatten(Model(ModelArgs.from_config(CONFIG)).parameters()))
    return build(CONFIG, {name: array * 3 for name, array in weights.items()})


def new_cache(window=200, bits=4):
    shape = ModelShape.from_config(CONFIG)
    policy = shape.policy(window, n_sink=4, k_bits=bits, v_bits=bits)
    return SequenceCache(policy, make_rope(CONFIG, shape.head_dim))


def text(n, seed=0):
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def sampler(temp=0.0, seed=0):
    return make_sampler(Sampling(temp=temp), seed)


@given(st.integers(0, 5000), st.integers(1, 5000), st.integers(0, 64), st.integers(1, 9))
def test_pieces_are_cut_on_one_grid_behind_the_sinks(start, n, n_sink, blocks):
    size = blocks * BLOCK
    pieces = list(chunks(start, n, n_sink, size))
    assert sum(pieces) == n
    assert 0 < min(pieces) <= max(pieces) <= size + max(0, n_sink - start)
    ends = start + np.cumsum(pieces)
    assert all((end - n_sink) % size == 0 for end in ends[:-1])


def test_the_grid_does_not_depend_on_where_a_prompt_was_interrupted():
    whole = set(np.cumsum(list(chunks(0, 2000, 4))))
    for first in (1, 4, 5, 513, 516, 700, 1025, 1028):
        rest = set(first + np.cumsum(list(chunks(first, 2000 - first, 4))))
        assert rest == {end for end in whole if end > first}


@pytest.mark.parametrize("n", [1, 3, 4, 5, 70, 600])
def test_a_prompts_scores_are_those_of_its_tokens_one_by_one(model, n):
    together, alone = new_cache(), new_cache()
    found = prefill(model, together, text(n))
    for token in text(n):
        hidden = forward(model, alone, mx.array([token]))
        mx.eval(hidden, *alone.arrays())
    assert together.length == alone.length == n
    wanted = model.logits(hidden)[0]
    np.testing.assert_allclose(np.array(found), np.array(wanted), atol=2e-2)


def test_progress_is_told_after_each_chunk(model):
    told = []
    prefill(model, new_cache(600), text(1200), progress=lambda done, of: told.append((done, of)))
    assert told == [(4 + PREFILL_CHUNK, 1200), (4 + 2 * PREFILL_CHUNK, 1200), (1200, 1200)]


def test_a_small_window_has_chunks_of_no_more_blocks_than_its_ring(model):
    told = []
    prefill(model, new_cache(200), text(600), progress=lambda done, of: told.append(done))
    assert told == [4 + 4 * 64, 4 + 8 * 64, 600]


def test_a_cancelled_prompt_stops_between_chunks(model):
    cache, asked = new_cache(600), []

    def cancelled():
        asked.append(cache.length)
        return len(asked) == 3

    with pytest.raises(Cancelled):
        prefill(model, cache, text(2000), cancelled=cancelled)
    assert asked == [0, 4 + PREFILL_CHUNK, 4 + 2 * PREFILL_CHUNK]
    assert cache.length == 4 + 2 * PREFILL_CHUNK


def test_a_cancelled_prompt_can_be_gone_on_with(model):
    whole, halved = new_cache(), new_cache()
    stop = iter([False, True])
    with pytest.raises(Cancelled):
        prefill(model, halved, text(900), cancelled=lambda: next(stop))
    found = prefill(model, halved, text(900)[halved.length :])
    np.testing.assert_array_equal(np.array(found), np.array(prefill(model, whole, text(900))))


@pytest.mark.parametrize("temp", [0.0, 1.0])
def test_decoding_equals_a_forward_pass_for_each_token(model, temp):
    ahead, plain = new_cache(), new_cache()
    found = list(decode(model, ahead, prefill(model, ahead, text(50)), sampler(temp), None, 90))
    draw, wanted = sampler(temp), []
    logits = prefill(model, plain, text(50))
    for _ in range(90):
        token = draw(logits)
        wanted.append(int(token.item()))
        logits = model.logits(forward(model, plain, token))[0]
        mx.eval(logits, *plain.arrays())
    assert found == wanted
    assert len(set(found)) > 1


@pytest.mark.parametrize("max_tokens", [1, 2, 70])
def test_all_tokens_but_the_last_are_in_the_cache_at_the_end(model, max_tokens):
    cache = new_cache()
    logits = prefill(model, cache, text(30))
    assert len(list(decode(model, cache, logits, sampler(), None, max_tokens))) == max_tokens
    assert cache.length == 30 + max_tokens - 1


def test_the_cache_of_a_stopped_answer_holds_the_prompt_and_what_was_yielded(model):
    cache, expected = new_cache(), new_cache()
    stream = decode(model, cache, prefill(model, cache, text(30)), sampler(), None, 100)
    said = [next(stream) for _ in range(40)]
    stream.close()
    assert cache.length == 30 + 40
    prefill(model, expected, text(30))
    for token in said:
        mx.eval(forward(model, expected, mx.array([token])), *expected.arrays())
    for token in text(3, seed=8):
        one, other = (forward(model, c, mx.array([token])) for c in (cache, expected))
        np.testing.assert_array_equal(np.array(one), np.array(other))


def test_nothing_is_yielded_where_nothing_is_asked_for(model):
    cache = new_cache()
    assert list(decode(model, cache, prefill(model, cache, text(9)), sampler(), None, 0)) == []
    assert cache.length == 9


def test_a_penalty_sees_every_token_drawn(model):
    cache = new_cache()
    logits = prefill(model, cache, text(10))
    penalty = RepetitionPenalty(100.0, text(10), VOCAB)
    # Scores near or below zero are not lowered by a factor, so not every token differs.
    penalized = list(decode(model, cache, logits, sampler(), penalty, 20))
    assert not set(penalized[:5]) & set(text(10))
    assert len(set(penalized)) == 20


def test_an_answer_longer_than_the_window_goes_on(model):
    cache = new_cache(window=100)
    tokens = list(decode(model, cache, prefill(model, cache, text(150)), sampler(1.0), None, 300))
    assert len(tokens) == 300
    assert cache.nbytes == cache.policy.nbytes
    assert cache.evicted_tokens == 150 + 299 - 104
