"""The host unpacks what MLX packs, number for number."""

import mlx.core as mx
import numpy as np
import pytest

from edgekv.metal.host import view
from edgekv.metal.host_packed import numbers, unpack
from edgekv.metal.packed import expand

BITS = [2, 3, 4, 5, 6, 8]


@pytest.mark.parametrize("bits", BITS)
def test_codes_come_out_of_the_stream_in_their_order(bits):
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 64))
    stream = sum(int(c) << (bits * i) for i, c in enumerate(codes[1]))
    words = np.zeros((3, 2 * bits), np.uint32)
    words[1] = np.frombuffer(stream.to_bytes(8 * bits, "little"), "<u4")
    found = unpack(words, bits)
    np.testing.assert_array_equal(found[1], codes[1])
    assert not found[0].any() and not found[2].any()


@pytest.mark.parametrize("group", [32, 64, 128])
@pytest.mark.parametrize("bits", BITS)
def test_numbers_are_those_of_the_twin(bits, group):
    weights = mx.random.normal((3, 5, 256), key=mx.random.key(bits))
    packed, *constants = mx.quantize(weights, group_size=group, bits=bits)
    matrix = (packed, *(x.astype(mx.float16) for x in constants))
    found = numbers(tuple(map(view, matrix)), 256)
    np.testing.assert_array_equal(found, np.array(expand(matrix, 256, mx.float32)))
