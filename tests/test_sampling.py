import math

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekv.errors import InvalidValue
from edgekv.sampling import RepetitionPenalty, Sampling, make_sampler

VOCAB = 12
LOGITS = np.array([2.0, 1.5, 1.2, 0.9, 0.3, 0.0, -0.4, -0.8, -1.5, -2.0, -3.0, -6.0], np.float32)
ORDER = np.random.default_rng(4).permutation(VOCAB)
SHUFFLED = LOGITS[ORDER]


def draws(sampling, n, seed=0, logits=SHUFFLED):
    sampler = make_sampler(sampling, seed)
    scores = mx.array(logits)
    return np.array(mx.concatenate([sampler(scores) for _ in range(n)]))


def by_definition(logits, sampling):
    """Probabilities after the cuts, in float64: temperature, top_k, top_p, min_p."""
    p = np.exp(logits.astype(np.float64) / sampling.temp)
    p /= p.sum()
    if sampling.top_k:
        p[np.argsort(-p)[sampling.top_k :]] = 0
        p /= p.sum()
    if sampling.top_p < 1:
        order = np.argsort(-p)
        before = np.cumsum(p[order]) - p[order]
        p[order[before >= sampling.top_p]] = 0
        p /= p.sum()
    if sampling.min_p:
        p[p < sampling.min_p * p.max()] = 0
        p /= p.sum()
    return p


def assert_distribution(sampling, n=4000):
    expected = by_definition(SHUFFLED, sampling)
    counts = np.bincount(draws(sampling, n), minlength=VOCAB)
    assert (counts[expected == 0] == 0).all()
    # Five standard deviations of a binomial count, and one more for the small ones.
    slack = 5 * np.sqrt(n * expected * (1 - expected)) + 1
    assert (np.abs(counts - n * expected) <= slack).all(), (counts, n * expected)


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temp=1.0),
        Sampling(temp=0.5),
        Sampling(temp=3.0),
        Sampling(temp=1.0, top_k=3),
        Sampling(temp=1.0, top_k=VOCAB + 5),
        Sampling(temp=1.0, top_p=0.6),
        Sampling(temp=2.0, top_p=0.9),
        Sampling(temp=1.0, min_p=0.2),
        Sampling(temp=1.5, top_k=6, top_p=0.8, min_p=0.3),
    ],
    ids=str,
)
def test_draws_follow_the_distribution(sampling):
    assert_distribution(sampling)


def test_temperature_zero_takes_the_best_token_whatever_the_cuts():
    best = int(SHUFFLED.argmax())
    for sampling in (Sampling(temp=0), Sampling(temp=0, top_k=2, top_p=0.1, min_p=0.9)):
        assert set(draws(sampling, 5)) == {best}


@pytest.mark.parametrize(
    "cut", [{"top_k": 1}, {"top_p": 1e-9}, {"min_p": 1.0}], ids=["top_k", "top_p", "min_p"]
)
def test_the_sharpest_cut_leaves_the_best_token(cut):
    assert set(draws(Sampling(temp=5.0, **cut), 50)) == {int(SHUFFLED.argmax())}


def test_the_best_token_survives_when_it_alone_exceeds_top_p():
    logits = np.array([0, 9, 0, 0], np.float32)
    assert set(draws(Sampling(temp=1.0, top_p=0.5), 50, logits=logits)) == {1}


def test_equal_scores_are_all_drawn():
    logits = np.zeros(4, np.float32)
    for sampling in (Sampling(temp=1.0), Sampling(temp=1.0, min_p=1.0)):
        assert set(draws(sampling, 200, logits=logits)) == {0, 1, 2, 3}


def test_top_p_cuts_where_the_sum_is_reached_in_a_large_vocabulary():
    logits = np.random.default_rng(0).normal(0, 2, 49_152).astype(np.float32)
    sampling = Sampling(temp=1.0, top_p=0.3)
    allowed = by_definition(logits, sampling) > 0
    found = draws(sampling, 500, logits=logits)
    # fp32 sums over 49,152 tokens place the edge within a token or two.
    order = np.argsort(-logits)
    ranks = np.argsort(order)[found]
    assert ranks.max() < allowed.sum() + 5
    assert len(set(found)) > 100


def test_the_same_seed_draws_the_same():
    sampling = Sampling(temp=1.0)
    np.testing.assert_array_equal(draws(sampling, 60, seed=5), draws(sampling, 60, seed=5))
    assert (draws(sampling, 60, seed=5) != draws(sampling, 60, seed=6)).any()


def test_two_requests_do_not_disturb_each_other():
    sampling, scores = Sampling(temp=1.0), mx.array(SHUFFLED)
    alone = draws(sampling, 40, seed=1)
    one, other = make_sampler(sampling, 1), make_sampler(sampling, 2)
    mixed = []
    for _ in range(40):
        mixed.append(int(one(scores).item()))
        other(scores)
        mx.random.seed(9)
        mx.random.uniform()
    assert mixed == alone.tolist()


def test_a_draw_has_one_token_that_can_be_fed_back():
    for temp in (0.0, 1.0):
        assert make_sampler(Sampling(temp=temp), 0)(mx.array(SHUFFLED)).shape == (1,)


@pytest.mark.parametrize("name", ["temp", "top_p", "min_p", "repetition_penalty"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.1, 101.0])
def test_a_number_out_of_range_is_refused(name, value):
    with pytest.raises(InvalidValue, match=f"{name} must be .*, got {value}"):
        Sampling(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("top_p", 0.0), ("top_p", 2.0), ("min_p", 1.5), ("repetition_penalty", 0.0)]
    + [("top_k", -1), ("seed", -1), ("seed", 2**64)],
)
def test_the_edges_that_mean_nothing_are_refused(name, value):
    with pytest.raises(InvalidValue, match=name):
        Sampling(**{name: value})


def test_the_edges_that_mean_something_are_taken():
    Sampling(temp=0, top_p=1.0, top_k=0, min_p=0.0, repetition_penalty=1.0, seed=0)
    Sampling(temp=100, top_p=1e-6, top_k=10**9, min_p=1.0, repetition_penalty=100, seed=2**64 - 1)


@settings(deadline=None, max_examples=30)
@given(st.lists(st.integers(0, VOCAB - 1), max_size=5), st.floats(0.5, 3))
def test_the_penalty_lowers_what_has_been_said(tokens, factor):
    logits = SHUFFLED.copy()
    found = np.array(RepetitionPenalty(factor, tokens, VOCAB)(mx.array(logits)))
    for token in set(tokens):
        score = logits[token]
        logits[token] = score / factor if score > 0 else score * factor
    np.testing.assert_allclose(found, logits, rtol=1e-5)


def test_a_drawn_token_is_penalized_from_then_on():
    penalty = RepetitionPenalty(2.0, [], 4)
    scores = mx.array([4.0, 3.0, -1.0, 0.5])
    assert np.array(penalty(scores)).tolist() == [4.0, 3.0, -1.0, 0.5]
    penalty.observe(mx.array([0]))
    penalty.observe(mx.array([2]))
    assert np.array(penalty(scores)).tolist() == [2.0, 3.0, -2.0, 0.5]
