import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from edgekv.cache.block import close, empty
from edgekv.cache.policy import LayerPolicy, value_group
from edgekv.errors import InvalidValue
from edgekv.metal.packed import bits_and_group, expand, multiply, pack, quantize
from edgekv.metal.tile import BLOCK

BITS = (2, 3, 4, 8)
FP16_ROUNDING = 2.0**-11
SMALLEST = 2.0**-24


def packed_by_definition(codes, bits):
    """Code i of a row stands in bits i * bits … of the row, read as one little-endian number."""
    places = codes[..., None] >> np.arange(bits) & 1
    stream = places.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    return np.packbits(stream, axis=-1, bitorder="little").view(np.uint32)


def unpacked_by_definition(words, bits):
    stream = np.unpackbits(words.view(np.uint8), axis=-1, bitorder="little")
    places = stream.reshape(*words.shape[:-1], -1, bits).astype(np.int64)
    return (places << np.arange(bits)).sum(-1)


def expanded_by_definition(matrix, bits, group):
    words, scale, zero = (np.array(part) for part in matrix)
    codes = unpacked_by_definition(words, bits)
    assert codes.shape[-1] == group * scale.shape[-1]
    scale, zero = (x.astype(np.float64).repeat(group, axis=-1) for x in (scale, zero))
    return scale * codes + zero, scale


def assert_near(x, matrix, bits, group):
    """Half a step off at most, and what rounding step and zero to fp16 adds."""
    found, scale = expanded_by_definition(matrix, bits, group)
    levels = 2**bits - 1
    low = x.reshape(*x.shape[:-1], -1, group).min(-1).repeat(group, axis=-1)
    rounding = FP16_ROUNDING * (np.abs(low) + levels * scale) + levels * SMALLEST / 2
    assert (np.abs(x - found) <= scale / 2 + rounding + 1e-6 * np.abs(x)).all()
    expanded = np.array(expand(matrix, x.shape[-1], mx.float32))
    np.testing.assert_allclose(expanded, found, rtol=1e-6, atol=1e-6 * np.abs(low).max())


@pytest.mark.parametrize("bits", BITS)
def test_codes_are_packed_as_one_little_endian_number(bits):
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, 5, 96))
    words = np.array(pack(mx.array(codes.astype(np.uint32)), bits))
    np.testing.assert_array_equal(words, packed_by_definition(codes, bits))


@pytest.mark.parametrize(("columns", "group"), [(64, 32), (64, 64), (96, 32), (128, 32), (128, 64)])
@pytest.mark.parametrize("bits", BITS)
def test_numbers_come_back_within_half_a_step(bits, group, columns):
    x = np.random.default_rng(0).normal(3, 5, (2, 7, columns)).astype(np.float16)
    matrix = quantize(mx.array(x), bits, group)
    assert bits_and_group(matrix, columns) == (bits, group)
    assert_near(x.astype(np.float64), matrix, bits, group)


@settings(deadline=None, max_examples=150)
@given(
    st.sampled_from(BITS),
    arrays(np.float16, (2, 32), elements=st.floats(-65504, 65504, width=16)),
)
def test_any_fp16_numbers_come_back_within_half_a_step(bits, x):
    matrix = quantize(mx.array(x), bits, 32)
    assert np.isfinite(np.array(matrix[1])).all()
    assert_near(x.astype(np.float64), matrix, bits, 32)


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("low", [0.0, 10.3, -1000.3])
def test_each_code_is_the_nearest_for_the_constants_that_are_stored(low, bits):
    x = np.random.default_rng(4).uniform(low, low + 3, (5, 64)).astype(np.float32)
    words, scale, zero = (np.array(part) for part in quantize(mx.array(x), bits, 64))
    codes = unpacked_by_definition(words, bits)
    meant = zero.astype(np.float64) + scale.astype(np.float64) * np.arange(2**bits)
    distances = np.abs(x[..., None] - meant[:, None])
    chosen = np.take_along_axis(distances, codes[..., None], axis=-1)[..., 0]
    np.testing.assert_allclose(chosen, distances.min(-1), atol=1e-4)


def row(*values):
    return np.resize(np.array(values, np.float16), (1, 64))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "x",
    [row(0), row(-2.5), row(65504), row(-65504), row(-0.0, 0.0), row(6e-8), row(1e-4)],
    ids=["zeros", "constant", "largest", "lowest", "signed zeros", "subnormal", "small"],
)
def test_a_constant_channel_comes_back_exactly(x, bits):
    matrix = quantize(mx.array(x), bits, 64)
    np.testing.assert_array_equal(np.array(expand(matrix, 64, mx.float32)), x.astype(np.float32))


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize(
    "x",
    [
        row(-65504, 65504),
        row(0, 65504),
        row(0, 6e-8, 1.2e-7),
        row(*(i * SMALLEST for i in range(9))),
        row(1, 1.001),
        row(1000, 1000.5, 1001),
    ],
    ids=["whole range", "positive range", "one subnormal", "subnormals", "two near", "far off"],
)
def test_extreme_channels_come_back_within_half_a_step(x, bits):
    matrix = quantize(mx.array(x), bits, 64)
    assert_near(x.astype(np.float64), matrix, bits, 64)


def test_numbers_beyond_fp16_are_cut_at_its_ends():
    x = np.resize(np.array([-1e6, 1e6], np.float32), (1, 64))
    found = np.array(expand(quantize(mx.array(x), 4, 64), 64, mx.float32))
    np.testing.assert_allclose(found, np.clip(x, -65504, 65504), rtol=1e-3)


@pytest.mark.parametrize("bits", [*BITS, 16])
def test_a_product_with_a_packed_matrix_is_that_with_its_numbers(bits):
    rng = np.random.default_rng(1)
    matrix = quantize(mx.array(rng.normal(0, 1, (3, 2, 64, 96)).astype(np.float32)), bits, 32)
    x = mx.array(rng.normal(0, 1, (3, 2, 5, 64)).astype(np.float32))
    wanted = np.array(x) @ np.array(expand(matrix, 96, mx.float32))
    np.testing.assert_allclose(np.array(multiply(x, matrix, 96)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head_dim", [64, 96, 128])
@pytest.mark.parametrize(("k_bits", "v_bits"), [(4, 4), (3, 8), (2, 16), (16, 2)])
def test_keys_have_a_scale_a_channel_and_values_a_scale_a_token(head_dim, k_bits, v_bits):
    layer = LayerPolicy(2, head_dim, k_bits, v_bits)
    rng = np.random.default_rng(2)
    keys, values = (rng.normal(0, 1, (3, 2, BLOCK, head_dim)).astype(np.float16) for _ in "kv")
    # A channel that is far off costs the others nothing; the same among the values does.
    keys[..., 5] += 60
    values[:, :, 9] += 60
    blocks = close(mx.array(keys), mx.array(values), layer)
    found_k = np.array(expand(blocks.keys, BLOCK, mx.float32)).swapaxes(-1, -2)
    found_v = np.array(expand(blocks.values, head_dim, mx.float32))
    spread = {2: 1.4, 3: 0.6, 4: 0.3, 8: 0.06, 16: 1e-3}
    assert np.abs(np.delete(found_k - keys, 5, axis=-1)).max() < spread[k_bits]
    assert np.abs(np.delete(found_v - values, 9, axis=-2)).max() < spread[v_bits]
    if v_bits != 16:
        groups = head_dim // value_group(head_dim)
        assert blocks.values[1].shape == (3, 2, BLOCK, groups)
    if k_bits != 16:
        assert blocks.keys[1].shape == (3, 2, head_dim, 1)


@pytest.mark.parametrize("k_bits", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("v_bits", [2, 3, 4, 8, 16])
def test_room_has_the_shapes_and_types_of_closed_blocks(k_bits, v_bits):
    layer = LayerPolicy(2, 96, k_bits, v_bits)
    shape = (3, 2, BLOCK, 96)
    blocks = close(mx.zeros(shape, mx.float16), mx.zeros(shape, mx.float16), layer)
    for made, room in zip(blocks, empty(3, layer), strict=True):
        assert [(a.shape, a.dtype) for a in made] == [(a.shape, a.dtype) for a in room]


def test_values_of_80_channels_can_only_be_kept_in_16_bits():
    assert LayerPolicy(1, 80, 4, 16).block_nbytes > 0
    with pytest.raises(InvalidValue, match="80 is not a multiple of 32"):
        LayerPolicy(1, 80, 4, 4)
