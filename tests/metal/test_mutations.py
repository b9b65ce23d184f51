"""Faults put into the kernels one at a time: the checks of this folder notice each of them."""

import sys
from functools import cache, partial

import mlx.core as mx
import pytest

from edgekv.metal import fused, kernels
from tests.metal.cases import Template, make_case
from tests.metal.host import Host, Trap
from tests.metal.test_close import assert_same_bits, blocks, extreme, halfway

FAULTS = {
    "off by one at the window's end": ("token < to", "token <= to"),
    "off by one at its start": ("token >= from", "token > from"),
    "off by one in the second token": ("token + 1 < to", "token < to"),
    "nibbles in the wrong order": ("(codes >> (BITS * i))", "(codes >> (BITS * (7 - i)))"),
    "the last head of the group forgotten": (
        "v = 0; v < VECTORS; ++v) {\n      float q = staged",
        "v = 0; v < VECTORS - 1; ++v) {\n      float q = staged",
    ),
    "the first KV head for all": ("slot * n_heads + head;", "slot * n_heads;"),
    "the distance to the next token": ("uint(distance[row])", "uint(distance[row] + 1)"),
    "a rotation the wrong way": ("a * cosine - b * sine", "a * cosine + b * sine"),
    "keys without their zeros": ("bias[v] += x * zero.x + y * zero.y;", ""),
    "values without their zeros": ("bias[v] += weight * zero;", ""),
    "values without their scale": ("weight *= scale;", ""),
    "a scale of the wrong channel": ("high = low + DIM / 2;", "high = low;"),
    "a maximum that moves without the sum": ("total[v] * shrink", "total[v]"),
    "a maximum that moves without the output": ("out_of[v][i] *= shrink;", ""),
    "splits merged without their weights": ("exp(top - simd_max(top))", "exp(0 * simd_max(top))"),
    "a split forgotten": ("split < splits; ++split", "split < splits - 1; ++split"),
    "the last tile forgotten": (
        "tile < (split + 1) * tiles / splits",
        "tile < (split + 1) * tiles / splits - 1",
    ),
}
CLOSE_FAULTS = {
    "rounded down": ("rint(", "floor("),
    "a level too few": ("(1 << BITS) - 1;", "(1 << BITS) - 2;"),
    "codes beyond the last level": ("clamp(code, 0.0f, LEVELS)", "max(code, 0.0f)"),
    "codes for a scale that is not stored": (
        "1.0f : float(step)",
        "1.0f : high / LEVELS - low / LEVELS",
    ),
    "words in the wrong order": ("word |= bits << bit", "word |= bits << (32 - BITS - bit)"),
}
N_BARRIERS = 7
ORDERED = "group_barrier(mem_flags::mem_threadgroup);"


def replacing(old, new):
    return lambda text: text.replace(old, new)


def unordered(number):
    """One of decode's barriers still meets, but orders no memory."""

    def edit(text):
        parts = text.split(ORDERED)
        if len(parts) != N_BARRIERS + 1:
            return text
        parts[number] += ORDERED.replace("mem_threadgroup", "mem_none")
        return parts[0] + "".join(
            part if i == number + 1 else ORDERED + part for i, part in enumerate(parts) if i
        )

    return edit


def nothing(text):
    return text


@cache
def decode_case():
    """Two splits, sinks, and odd numbers of tokens seen in the oldest block and in the newest."""
    return make_case(Template(64, 2, 4, 4, mx.float32), 1002, "sinks", window=900)


def check_decode():
    decode_case().check()


def check_close():
    for draw in (halfway, extreme):
        assert_same_bits(*blocks(draw, 64), Template(64, 1, 4, 4))


@pytest.fixture(scope="module")
def mutants():
    """Run a check with kernels that were edited; all of them are compiled together, once."""
    if sys.platform == "darwin":
        pytest.skip("the host runner is for Linux")
    host = Host()

    def run(edit, check):
        edited = []
        host.edit = lambda text: edited.append(edit(text) != text) or edit(text)
        kernels.build.cache_clear()
        for name in kernels.SOURCES:
            kernels.build(name)
        if edit is not nothing and not any(edited):
            raise LookupError("the edit changes nothing")
        check()

    edits = [replacing(*fault) for fault in FAULTS.values()] + list(
        map(unordered, range(N_BARRIERS))
    )
    calls = [partial(run, edit, decode_case().attend) for edit in [nothing, *edits]]
    edits = [replacing(*fault) for fault in CLOSE_FAULTS.values()]
    calls += [partial(run, edit, launch_close) for edit in [nothing, *edits]]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx.fast, "metal_kernel", host.metal_kernel)
        host.prepare(calls)
        yield run
    kernels.build.cache_clear()


def launch_close():
    fused.close(*blocks(halfway, 64), 4, 4, 64)


@pytest.mark.parametrize("check", [check_decode, check_close])
def test_without_a_fault_both_pass(mutants, check):
    mutants(nothing, check)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_attention_is_noticed(mutants, fault):
    with pytest.raises(AssertionError):
        mutants(replacing(*FAULTS[fault]), check_decode)


@pytest.mark.parametrize("fault", CLOSE_FAULTS)
def test_a_fault_in_closing_is_noticed(mutants, fault):
    with pytest.raises(AssertionError):
        mutants(replacing(*CLOSE_FAULTS[fault]), check_close)


@pytest.mark.parametrize("number", range(N_BARRIERS))
def test_every_barrier_is_missed_where_it_orders_nothing(mutants, number):
    with pytest.raises(Trap, match="a race|before it is written"):
        mutants(unordered(number), check_decode)
