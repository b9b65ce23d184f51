import gguf
import mlx.core as mx
import numpy as np
import pytest

from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.loading import gguf_quants
from edgekv.loading.gguf import TENSOR_TYPES, Tensor
from edgekv.loading.gguf_quants import GROUP_SIZE, REPACKED, Packed, load_tensor, pack_codes
from tests.loading.files import HALVES, random_blocks

TYPES = {kind.name: kind for kind in TENSOR_TYPES.values()}
EXACT = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL")
PRODUCT_SCALES = ("Q4_K", "Q5_K", "IQ4_XS")
# Largest error allowed, in steps of the file's own quantization.
REQUANTIZED = {"Q2_K": 0.35, "Q3_K": 0.35, "Q6_K": 0.35}


def load(kind, raw, columns, **options):
    tensor = Tensor("blk.0.ffn_up.weight", (len(raw), columns), TYPES[kind], raw.reshape(-1))
    return load_tensor(tensor, **options)


def dense(packed):
    scales, biases = packed.scales.astype(mx.float32), packed.biases.astype(mx.float32)
    values = mx.dequantize(packed.weight, scales, biases, group_size=GROUP_SIZE, bits=packed.bits)
    return np.array(values)


def oracle(kind, raw):
    return gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])


@pytest.mark.parametrize("kind", EXACT)
def test_repacked_blocks_dequantize_to_the_very_same_numbers(kind):
    raw = random_blocks(kind, 6, 512)
    np.testing.assert_array_equal(dense(load(kind, raw, 512)), oracle(kind, raw))


@pytest.mark.parametrize("kind", PRODUCT_SCALES)
def test_blocks_with_product_scales_differ_by_the_rounding_to_halves_alone(kind):
    raw = random_blocks(kind, 6, 512)
    error = np.abs(dense(load(kind, raw, 512)) - oracle(kind, raw))
    groups = np.abs(oracle(kind, raw)).reshape(6, -1, 32).max(axis=2, keepdims=True)
    # Scale and bias each lose at most half a unit in 11 bits, or of the smallest halves.
    assert (error.reshape(6, -1, 32) <= groups * 2**-9 + 2**-16).all()


@pytest.mark.parametrize("kind", REQUANTIZED)
def test_requantized_blocks_stay_well_within_one_step_of_the_file(kind):
    raw = random_blocks(kind, 8, 512)
    want = oracle(kind, raw)
    error = np.abs(dense(load(kind, raw, 512)) - want).reshape(8, -1, 32)
    levels = {"Q2_K": 3, "Q3_K": 7, "Q6_K": 63}[kind]
    spread = np.ptp(want.reshape(8, -1, 32), axis=2, keepdims=True)
    assert (error <= REQUANTIZED[kind] * spread / levels + 2**-14).all()


@pytest.mark.parametrize("kind", HALVES)
def test_rows_are_reordered_before_they_are_packed(kind):
    raw = random_blocks(kind, 6, 256)
    order = np.array([3, 0, 5, 1, 4, 2])
    np.testing.assert_array_equal(
        dense(load(kind, raw, 256, row_order=order)), dense(load(kind, raw, 256))[order]
    )


@pytest.mark.parametrize("kind", HALVES)
def test_large_matrices_are_packed_in_pieces_with_the_same_result(kind, monkeypatch):
    raw = random_blocks(kind, 7, 256)
    whole = load(kind, raw, 256)
    monkeypatch.setattr(gguf_quants, "CHUNK_ELEMENTS", 512)
    pieces = load(kind, raw, 256)
    for key in ("weight", "scales", "biases"):
        np.testing.assert_array_equal(getattr(whole, key), getattr(pieces, key))


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_codes_are_packed_as_mlx_unpacks_them(bits):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (3, 96), dtype=np.uint8)
    words = mx.array(pack_codes(codes, bits))
    ones, zeros = mx.ones((3, 3)), mx.zeros((3, 3))
    found = mx.dequantize(words, ones, zeros, group_size=32, bits=bits)
    np.testing.assert_array_equal(np.array(found), codes)


def test_packed_arrays_have_the_layout_of_mlx_quantize():
    packed = load("Q4_1", random_blocks("Q4_1", 4, 64), 64)
    made = mx.quantize(mx.zeros((4, 64)), group_size=32, bits=4)
    assert [a.shape for a in packed[:3]] == [a.shape for a in made]
    assert [a.dtype for a in packed[:3]] == [mx.uint32, mx.float16, mx.float16]


@pytest.mark.parametrize(
    ("kind", "dtype"), [("F32", mx.float32), ("F16", mx.float16), ("BF16", mx.bfloat16)]
)
@pytest.mark.parametrize("shape", [(8,), (4, 8)])
def test_floats_are_taken_as_they_are(kind, dtype, shape):
    values = mx.random.normal(shape).astype(dtype)
    raw = np.frombuffer(bytes(memoryview(values.view(mx.uint8))), np.uint8)
    found = load_tensor(Tensor("x", shape, TYPES[kind], raw))
    assert found.dtype == dtype and mx.array_equal(found, values)


@pytest.mark.parametrize("kind", sorted(TYPES.keys() - HALVES.keys() - {"F32", "F16", "BF16"}))
def test_other_types_are_refused_by_the_tensor_and_the_type(kind):
    block, size = TYPES[kind][1:]
    tensor = Tensor("blk.0.ffn_up.weight", (2, block), TYPES[kind], np.zeros(2 * size, np.uint8))
    with pytest.raises(UnsupportedModel, match=rf"'blk.0.ffn_up.weight' .* type {kind}"):
        load_tensor(tensor)


def test_a_quantized_vector_is_refused():
    tensor = Tensor("output_norm.weight", (64,), TYPES["Q8_0"], np.zeros(68, np.uint8))
    with pytest.raises(UnsupportedModel, match="output_norm"):
        load_tensor(tensor, row_order=np.arange(64))


@pytest.mark.parametrize("kind", HALVES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_scales_that_are_not_finite_are_damage(kind, value):
    raw = random_blocks(kind, 2, 256)
    at = HALVES[kind][0]
    raw[1, at : at + 2] = np.array([value], "<f2").view(np.uint8)
    with pytest.raises(DamagedFile, match="not a finite half"):
        load(kind, raw, 256)


def test_a_bias_too_large_for_a_half_is_damage_and_not_infinity():
    raw = random_blocks("Q8_0", 1, 32)
    raw[0, :2] = np.array([1000], "<f2").view(np.uint8)
    with pytest.raises(DamagedFile):
        load("Q8_0", raw, 32)


def test_every_repacked_type_is_tested():
    assert {*EXACT, *PRODUCT_SCALES} == REPACKED.keys()
    assert isinstance(load("Q4_0", random_blocks("Q4_0", 1, 32), 32), Packed)
