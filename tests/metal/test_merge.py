import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgekv.metal.merge import MASKED, merge, partial

HEADS, ROWS, DIM = 3, 5, 8


def random_part(n, seed, scale=3.0):
    rng = np.random.default_rng(seed)
    scores = rng.normal(0, scale, (HEADS, ROWS, n)).astype(np.float32)
    return scores, rng.normal(0, 1, (HEADS, n, DIM)).astype(np.float32)


def softmax_over_all(parts):
    scores = np.concatenate([s for s, _ in parts], axis=-1).astype(np.float64)
    values = np.concatenate([v for _, v in parts], axis=-2).astype(np.float64)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ values


def merged(parts):
    return np.array(merge([partial(mx.array(s), mx.array(v)) for s, v in parts]))


def assert_merged(parts):
    np.testing.assert_allclose(merged(parts), softmax_over_all(parts), rtol=1e-5, atol=1e-5)


@settings(deadline=None)
@given(st.lists(st.integers(1, 70), min_size=1, max_size=4), st.integers(0, 10))
def test_parts_together_are_the_softmax_over_all_keys(sizes, seed):
    assert_merged([random_part(n, seed + i) for i, n in enumerate(sizes)])


@pytest.mark.parametrize("masked", [0, 1, 2])
def test_a_wholly_masked_part_counts_for_nothing(masked):
    parts = [random_part(n, seed=n) for n in (4, 9, 17)]
    expected = softmax_over_all([p for i, p in enumerate(parts) if i != masked])
    scores, values = parts[masked]
    parts[masked] = (scores + np.float32(MASKED), values * 1000)
    np.testing.assert_allclose(merged(parts), expected, rtol=1e-5, atol=1e-5)


def test_rows_may_be_masked_in_different_parts():
    (first, a), (second, b) = random_part(6, 0), random_part(7, 1)
    first[:, :2] += np.float32(MASKED)
    second[:, 2:] += np.float32(MASKED)
    found = merged([(first, a), (second, b)])
    np.testing.assert_allclose(found[:, :2], softmax_over_all([(second, b)])[:, :2], atol=1e-5)
    np.testing.assert_allclose(found[:, 2:], softmax_over_all([(first, a)])[:, 2:], atol=1e-5)


def test_a_part_that_is_not_there_changes_nothing():
    parts = [random_part(n, seed=n) for n in (5, 6)]
    np.testing.assert_allclose(merged(parts[:1]), softmax_over_all(parts[:1]), atol=1e-5)
    split = [(parts[0][0][..., :2], parts[0][1][:, :2]), (parts[0][0][..., 2:], parts[0][1][:, 2:])]
    np.testing.assert_allclose(merged(split), merged(parts[:1]), atol=1e-6)


@pytest.mark.parametrize("height", [1e4, -1e4, 1e30, -1e29])
def test_scores_of_any_height_neither_overflow_nor_vanish(height):
    parts = [random_part(n, seed=n) for n in (3, 8, 4)]
    assert_merged([(scores + np.float32(height), values) for scores, values in parts])


def test_one_part_far_above_the_others_takes_all():
    low, high = random_part(5, 0), random_part(5, 1)
    high = (high[0] + 500, high[1])
    np.testing.assert_allclose(merged([low, high]), softmax_over_all([high]), atol=1e-5)
    np.testing.assert_allclose(merged([high, low]), softmax_over_all([high]), atol=1e-5)


def test_the_order_of_parts_does_not_matter():
    parts = [random_part(n, seed=n) for n in (5, 6, 7)]
    np.testing.assert_allclose(merged(parts), merged(parts[::-1]), atol=1e-6)


def test_half_precision_values_are_merged_in_fp32():
    parts = [random_part(n, seed=n) for n in (30, 40)]
    found = merge([partial(mx.array(s), mx.array(v).astype(mx.float16)) for s, v in parts])
    assert found.dtype == mx.float32
    np.testing.assert_allclose(np.array(found), softmax_over_all(parts), atol=5e-3)
