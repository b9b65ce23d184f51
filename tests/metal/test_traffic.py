"""What the kernels read and write, counted byte by byte, against the fewest bytes there are."""

import numpy as np
import pytest

from edgekv.cache.traffic import close_nbytes, decode_nbytes, merge_nbytes
from edgekv.metal import fused
from tests.metal.cases import N_KV_HEADS, Template, make_case
from tests.metal.test_close import blocks, ordinary

SLACK = 1.10
PACKED = ("k_codes", "k_scale", "k_zero", "v_codes", "v_scale", "v_zero")


def counted(host):
    return sum(traffic.nbytes for traffic in host.traffic.values())


@pytest.mark.parametrize("head_dim", fused.HEAD_DIMS)
@pytest.mark.parametrize(("group", "window", "count"), [(1, 512, 700), (8, 512, 512)])
def test_decode_moves_at_most_a_tenth_more_than_it_must(host, head_dim, group, window, count):
    assert_near_least(host, make_case(Template(head_dim, group), count, "sinks", window))


@pytest.mark.parametrize(
    ("head_dim", "group", "window", "count"), [(64, 4, 2048, 2100), (128, 1, 1024, 1030)]
)
def test_so_does_a_split_and_merged_one(host, head_dim, group, window, count):
    assert_near_least(host, make_case(Template(head_dim, group), count, "sinks", window))
    n_heads = N_KV_HEADS * group
    splits = host.traffic["edgekv_decode"].counts["out"].size // (4 * n_heads * (head_dim + 2))
    least = merge_nbytes(n_heads, head_dim, 2, splits)
    assert splits > 1 and host.traffic["edgekv_merge"].nbytes == least


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", range(1, 9))
@pytest.mark.parametrize("head_dim", fused.HEAD_DIMS)
def test_so_does_every_template(host, head_dim, group, bits):
    for window in (512, 1024, 2048):
        host.traffic.clear()
        template = Template(head_dim, group, bits, bits)
        assert_near_least(host, make_case(template, window + 50, "sinks", window))


def assert_near_least(host, case):
    case.check()
    least = least_of(case)
    print(f"{case.template}: {counted(host) / least:.3f}")
    assert least <= counted(host) <= SLACK * least


def least_of(case):
    """The model's count, less the values of a block's tokens that have left the window."""
    template, tiles = case.template, np.array(case.inputs[1])[0]
    seen = tiles[:, 3] - tiles[:, 2]
    closed = seen[(tiles[:, 0] >= 0) & (seen > 0)]
    fresh = int(seen[tiles[:, 0] < 0].sum())
    n_heads = N_KV_HEADS * template.group
    least = decode_nbytes(template.layer, n_heads, template.dtype.size, closed.size, fresh)
    gone = N_KV_HEADS * template.head_dim * template.v_bits // 8
    return least - int((64 - closed).sum()) * gone


def test_each_packed_key_and_value_is_read_once(host):
    """By one launch, for all query heads that share it; blocks out of reach are not touched."""
    case = make_case(Template(64, 4), 733, "sinks", window=512)
    case.check()
    counts = host.traffic["edgekv_decode"].counts
    table, pool = np.array(case.inputs[1])[0], case.inputs[3]
    slots = table[(table[:, 0] >= 0) & (table[:, 3] > table[:, 2]), 0]
    for name, array in zip(PACKED, (*pool.keys, *pool.values), strict=True):
        by_block = counts[name].reshape(array.shape[0], -1)
        assert by_block.max() == 1, name
        # Values of a token that has left the window are passed over.
        reached = by_block.mean(axis=1)
        assert set(np.flatnonzero(reached)) == set(slots), name
        assert name == "v_codes" or (by_block[slots] == 1).all(), name
    assert counts["hot"].max() == 1
    assert set(counts["out"]) == {1}


@pytest.mark.parametrize("splits", [False, True])
def test_every_number_of_an_output_is_written_once(host, splits):
    make_case(Template(64, 1), 1000, "sinks", 900 if splits else 300).check()
    assert ("edgekv_merge" in host.traffic) == splits
    for traffic in host.traffic.values():
        assert set(traffic.counts["out"]) == {1}


def test_closing_moves_nothing_twice(host):
    template = Template(128)
    keys, values = blocks(ordinary, 128)
    layer = template.layer
    fused.close(keys, values, layer.k_bits, layer.v_bits, layer.v_group)
    assert counted(host) == keys.shape[0] * close_nbytes(layer)
