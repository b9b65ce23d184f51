import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.cache.policy import BITS, CachePolicy, LayerPolicy, describe, fit_window
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.metal.tile import BLOCK
from tests.cache.naive import FREQUENCIES

SMALL = LayerPolicy(3, 64)


@pytest.mark.parametrize(("k_bits", "v_bits"), list(itertools.product(BITS, BITS)))
@pytest.mark.parametrize("head_dim", [64, 96, 128])
def test_bytes_are_those_of_the_arrays(head_dim, k_bits, v_bits):
    layers = (LayerPolicy(2, head_dim, k_bits, v_bits), LayerPolicy(1, head_dim, v_bits, k_bits))
    policy = CachePolicy(300, layers, n_sink=4, n_pinned=64)
    cache = SequenceCache(policy, Rope(FREQUENCIES))
    assert cache.nbytes == policy.nbytes
    assert cache.pool.nbytes == policy.max_blocks * sum(x.block_nbytes for x in layers)
    assert sum(a.nbytes for a in cache.arrays()) == policy.fixed_nbytes


@pytest.mark.parametrize("n_sink", [0, 1, 64])
@pytest.mark.parametrize("window", [1, 2, 64, 65, 66, 129, 1000])
def test_bytes_are_those_of_the_arrays_for_any_window(window, n_sink):
    policy = CachePolicy(window, (SMALL,), n_sink)
    assert SequenceCache(policy, Rope(FREQUENCIES)).nbytes == policy.nbytes


def test_four_bits_cost_four_and_a_half():
    numbers = 2 * SMALL.n_kv_heads * SMALL.head_dim
    assert CachePolicy(512, (SMALL,) * 30).bytes_per_token == 30 * numbers * 4.5 / 8


def test_values_in_groups_of_32_cost_five_bits():
    layer = LayerPolicy(2, 96)
    assert CachePolicy(512, (layer,)).bytes_per_token == 2 * 96 * (4.5 + 5) / 8


@pytest.mark.parametrize(
    ("window", "blocks"), [(1, 0), (2, 1), (65, 1), (66, 2), (129, 2), (130, 3)]
)
def test_the_ring_reaches_back_to_the_windows_oldest_token(window, blocks):
    assert CachePolicy(window, (SMALL,)).ring_blocks == blocks


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": 0}, "window must be at least 1 token, got 0"),
        ({"window": -5}, "window must be at least 1 token, got -5"),
        ({"n_sink": -1}, "n_sink must be from 0 to 64, got -1"),
        ({"n_sink": 65}, "n_sink must be from 0 to 64, got 65"),
        ({"n_pinned": 63}, "n_pinned must be a multiple of 64, got 63"),
        ({"n_pinned": -64}, "n_pinned must be a multiple of 64, got -64"),
        ({"n_pinned": 64, "window": 127}, "window of at least 128 tokens, got 127"),
    ],
)
def test_an_impossible_policy_is_refused(change, message):
    with pytest.raises(InvalidValue, match=message):
        CachePolicy(**{"window": 512, "layers": (SMALL,)} | change)


@pytest.mark.parametrize("bits", [0, 1, 5, 6, 7, 9, 32, -4])
def test_bits_that_cannot_be_packed_are_refused(bits):
    with pytest.raises(InvalidValue, match=f"k_bits must be one of .*, got {bits}"):
        LayerPolicy(3, 64, k_bits=bits)
    with pytest.raises(InvalidValue, match=f"v_bits must be one of .*, got {bits}"):
        LayerPolicy(3, 64, v_bits=bits)


layers = st.builds(
    LayerPolicy,
    st.integers(1, 8),
    st.sampled_from([64, 96, 128]),
    st.sampled_from(BITS),
    st.sampled_from(BITS),
)


@given(
    st.lists(layers, min_size=1, max_size=3).map(tuple),
    st.integers(0, 64),
    st.integers(0, 3),
    st.integers(128, 20_000),
    st.integers(0, 2**24),
)
def test_the_window_fitted_is_the_largest_that_fits(layers, n_sink, pinned, longest, budget):
    policy = CachePolicy(512, layers, n_sink, pinned * BLOCK)
    smallest = policy.with_window(128)
    if smallest.nbytes > budget:
        with pytest.raises(DoesNotFit, match="raise --kv-budget"):
            fit_window(policy, budget, longest)
        return
    fitted = fit_window(policy, budget, longest)
    assert fitted.nbytes <= budget
    assert fitted.window == longest or fitted.with_window(fitted.window + 1).nbytes > budget
    assert fitted == policy.with_window(fitted.window)


def test_a_model_with_less_context_than_two_blocks_is_fitted_whole():
    policy = CachePolicy(40, (SMALL,))
    assert fit_window(policy, policy.nbytes, 40).window == 40


def test_a_description_has_a_row_for_each_run_of_equal_layers():
    wide = LayerPolicy(3, 64, k_bits=8, v_bits=4)
    policy = CachePolicy(512, (wide, SMALL, SMALL, SMALL, wide), n_sink=4, n_pinned=64)
    rows = describe(policy)
    assert [row["layers"] for row in rows] == ["0", "1-3", "4"]
    assert [row["k_bits"] for row in rows] == [8, 4, 8]
    assert rows[1] == {
        "layers": "1-3",
        "kind": "rolling",
        "window": 512,
        "n_sink": 4,
        "pinned": 64,
        "k_bits": 4,
        "v_bits": 4,
        "n_kv_heads": 3,
        "head_dim": 64,
        "block_bytes": SMALL.block_nbytes,
    }
