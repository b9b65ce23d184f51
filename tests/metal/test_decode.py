"""The decode kernel is its twin, over templates, lengths, layouts and orders of threads."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from edgekv.metal import fused
from edgekv.metal.kernels import REGISTERS, THREADGROUP_BYTES
from tests.metal.cases import (
    COUNTS,
    DTYPES,
    LAYOUTS,
    WINDOW,
    Template,
    make_case,
    make_rows_case,
)
from tests.metal.host import ORDERS

HEAD_DIMS, GROUPS, BITS = (64, 96, 128, 256), range(1, 9), (2, 3, 4, 8)
F32, F16, BF16 = DTYPES
# Each head_dim, group, width of keys and of values, and dtype, with others each time.
FEW = [
    Template(64, 3, 4, 4, F16),
    Template(64, 8, 2, 3, BF16),
    Template(96, 2, 3, 8, F32),
    Template(96, 5, 8, 2, F16),
    Template(128, 4, 4, 4, BF16),
    Template(128, 7, 4, 3, F16),
    Template(128, 6, 8, 4, F32),
    Template(256, 1, 3, 3, BF16),
    Template(256, 8, 2, 8, F32),
]
PLACES = list(itertools.product(COUNTS, LAYOUTS))


def check_all(host, cases):
    """Every case once, in one order of threads after the other."""
    host.prepare([case.attend for case in cases])
    for host.seed, case in enumerate(cases):
        host.order = ORDERS[host.seed % len(ORDERS)]
        case.check()
        assert host.traffic["edgekv_decode"].threadgroup_bytes == planned_bytes(case)


def planned_bytes(case):
    q, _, _, blocks, hot = case.inputs
    shape = fused.decode_shape(q, blocks, hot.shape[1])
    return shape.threadgroup_bytes(shape.simdgroups)


def test_kernel_equals_twin_at_every_length_and_layout(host):
    check_all(host, [make_case(FEW[0], *place) for place in PLACES])


def test_kernel_equals_twin_in_every_template_dimension(host):
    """Each template at places of its own, so that all places are met."""
    check_all(
        host,
        [make_case(t, *place) for i, t in enumerate(FEW) for place in PLACES[i::8]],
    )


@pytest.mark.slow
@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("group", GROUPS)
def test_kernel_equals_twin_over_the_whole_grid(host, head_dim, group):
    grid = itertools.product(BITS, BITS, DTYPES)
    places = itertools.cycle(PLACES)
    templates = [Template(head_dim, group, *rest) for rest in grid]
    # Three places each; 48 templates and 24 places would repeat the same ones without the skip.
    cases = []
    for template in templates:
        cases += [make_case(template, *next(places)) for _ in range(3)]
        next(places)
    check_all(host, cases)


@pytest.mark.slow
@pytest.mark.parametrize("template", FEW, ids=str)
@pytest.mark.parametrize("order", ORDERS)
def test_kernel_equals_twin_at_all_places_in_all_orders(host, template, order):
    host.order = order
    for place in PLACES:
        make_case(template, *place).check()


@pytest.mark.parametrize("count", [960, 1000])
def test_a_long_window_is_split_and_merged(host, count):
    case = make_case(Template(64, 1), count, "pinned", window=900)
    case.check()
    assert {"edgekv_decode", "edgekv_merge"} == set(host.traffic)


@pytest.mark.parametrize(
    ("group", "rows"), [(3, 2), (1, 8), (4, 5)], ids=["at once", "eight", "one by one"]
)
def test_several_tokens_each_see_their_own_past(host, group, rows):
    # They lie in one block, and the later ones no longer see all of the oldest block.
    make_rows_case(Template(64, group), 458, rows).check()


@pytest.mark.parametrize("count", [0, WINDOW + 1])
def test_the_order_of_threads_changes_no_bit(host, count):
    case, found = make_case(FEW[0], count, "sinks"), []
    for host.order in ORDERS:
        found.append(np.array(case.attend().view(mx.uint16)))
    assert (found[0] == found[1]).all() and (found[0] == found[2]).all()


def test_every_template_fits_its_threadgroup_and_its_registers():
    """The registers are an estimate: no compiler for an Apple GPU is at hand to ask."""
    for head_dim, group, rows, bits in itertools.product(HEAD_DIMS, GROUPS, range(1, 9), BITS):
        layer = Template(head_dim, group, bits, bits).layer
        shape = fused.DecodeShape(head_dim, group, rows, bits, bits, layer.v_group)
        assert rows % shape.rows_at_once == 0
        assert shape.threadgroup_bytes(shape.simdgroups) <= THREADGROUP_BYTES
        if group <= (5 if head_dim == 256 else 6):
            assert shape.registers <= REGISTERS, shape
