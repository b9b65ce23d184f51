"""The host runner finds the faults it is there to find, in kernels that have just one."""

import sys

import mlx.core as mx
import numpy as np
import pytest

from tests.metal.host import ORDERS, Host, Trap

pytestmark = pytest.mark.skipif(sys.platform == "darwin", reason="the host runner is for Linux")

ROTATE = """
    uint i = thread_index_in_threadgroup;
    threadgroup float line[64];
    line[i] = float(x[i]);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    out[i] = T(line[(i + 1) % 64]);
"""


def run(source, host=None, x=None, threads=64, **options):
    host = host or Host()
    kernel = host.metal_kernel("test", ["x"], ["out"], source, **options)
    x = mx.arange(64, dtype=mx.float32) if x is None else x
    size, template = (threads, 1, 1), [("T", x.dtype)]
    outputs = {"output_shapes": [(64,)], "output_dtypes": [x.dtype]}
    return kernel(inputs=[x], **outputs, grid=size, threadgroup=size, template=template)[0]


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("order", ORDERS)
def test_threads_meet_at_a_barrier_in_any_order(order, dtype):
    host = Host()
    host.order = order
    found = run(ROTATE, host, mx.arange(64).astype(dtype))
    assert found.tolist() == [*range(1, 64), 0]


@pytest.mark.parametrize("order", ORDERS)
def test_without_its_barrier_it_is_a_race_in_any_order(order):
    host = Host(lambda source: source.replace("threadgroup_barrier(mem_flags", "(void)(mem_flags"))
    host.order = order
    with pytest.raises(Trap, match=r"a race|before it is written"):
        run(ROTATE, host)


def test_a_barrier_of_a_simdgroup_does_not_order_the_threadgroup():
    host = Host(lambda source: source.replace("threadgroup_barrier", "simdgroup_barrier"))
    with pytest.raises(Trap, match=r"a race|before it is written"):
        run(ROTATE, host)


def test_a_barrier_that_orders_no_memory_is_a_race():
    host = Host(lambda source: source.replace("mem_threadgroup", "mem_none"))
    with pytest.raises(Trap, match="a race"):
        run(ROTATE, host)


def test_a_write_under_a_read_is_a_race():
    again = ROTATE + "line[i] = 0;"
    with pytest.raises(Trap, match="a race: write under"):
        run(again)


def test_a_barrier_that_some_threads_miss_traps():
    with pytest.raises(Trap, match="a barrier not reached by all threads"):
        run("if (thread_index_in_threadgroup < 40) threadgroup_barrier(mem_flags::mem_none);")


def test_lanes_at_two_places_do_not_meet():
    divergent = """
        uint lane = thread_index_in_simdgroup;
        if (lane < 16) out[lane] = simd_sum(x[lane]);
        else out[lane] = simd_max(x[lane]);
    """
    with pytest.raises(Trap, match="a barrier not reached by all threads"):
        run(divergent)


def test_simdgroups_go_their_own_ways():
    source = """
        uint i = thread_index_in_threadgroup, lane = thread_index_in_simdgroup;
        if (simdgroup_index_in_threadgroup == 0) out[i] = simd_sum(x[i]);
        else out[i] = simd_shuffle_xor(simd_shuffle(x[i], 31 - lane), 1) + simd_max(x[i]);
    """
    wanted = np.concatenate(
        [np.full(32, 496), 63 - np.arange(32).reshape(-1, 2)[:, ::-1].ravel() + 63]
    )
    np.testing.assert_array_equal(np.array(run(source)), wanted)


@pytest.mark.parametrize("at", ["64", "-1"])
def test_a_step_outside_of_a_buffer_is_seen(at):
    with pytest.raises(Trap, match="AddressSanitizer"):
        run(f"out[thread_index_in_threadgroup] = x[{at}];")


def test_a_step_outside_of_threadgroup_memory_is_seen():
    with pytest.raises(Trap, match="outside of threadgroup memory"):
        run(ROTATE.replace("(i + 1) % 64", "i + 1"))


def test_undefined_arithmetic_is_seen():
    with pytest.raises(Trap, match="shift exponent"):
        run("uint i = thread_index_in_threadgroup; out[i] = 1u << (i + 1);")


def test_a_misaligned_read_is_seen():
    with pytest.raises(Trap, match="misaligned"):
        run("out[0] = ((const device uint*)((const device uchar*)x + 1))[0];")


def test_more_than_32_kilobytes_of_threadgroup_memory_trap():
    with pytest.raises(Trap, match="32 KB"):
        run("threadgroup float big[8193]; big[thread_index_in_threadgroup] = 0;")


def test_more_than_1024_threads_trap():
    with pytest.raises(Trap, match="1024"):
        run("out[0] = 0;", threads=1056)


def test_bytes_are_counted_as_often_as_they_are_touched():
    host = Host()
    run("uint i = thread_index_in_threadgroup; out[i] = x[i] + x[0];", host)
    counts = host.traffic["test"].counts
    assert counts["x"][:4].tolist() == [65] * 4 and set(counts["x"][4:]) == {1}
    assert set(counts["out"]) == {1}
    assert host.traffic["test"].nbytes == 4 * (64 + 64 + 64)


def test_what_clang_refuses_is_shown():
    with pytest.raises(AssertionError, match="use of undeclared identifier 'y'"):
        run("out[0] = y;")
