"""Tensors of a GGUF file as MLX arrays, packed ones kept packed.

A block of 32 codes with one scale and one offset is an MLX affine group of 32 as it stands, so
these types are repacked, not quantized again: `weight = scale * code + bias`, codes as a
little-endian stream of `bits`-bit numbers along the input axis, in uint32 words. Exact for Q4_0,
Q4_1, Q5_0, Q5_1, Q8_0 and IQ4_NL; for Q4_K, Q5_K and IQ4_XS, whose scales are products, exact
up to rounding these to fp16. Q2_K, Q3_K and Q6_K scale groups of 16, which MLX does not have:
they are dequantized and quantized again (see REQUANTIZED).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.loading import gguf_blocks as blocks
from edgekv.loading.gguf import Tensor
from edgekv.metal.beside import beside

GROUP_SIZE = 32
CHUNK_ELEMENTS = 1 << 18

Bytes = NDArray[np.uint8]


class Packed(NamedTuple):
    """A quantized matrix in MLX's layout.

    weight (rows, in * bits / 32) uint32; scales and biases (rows, in / 32) fp16.
    """

    weight: mx.array
    scales: mx.array
    biases: mx.array
    bits: int


class Affine(NamedTuple):
    """How a type is unpacked: blocks (n, bytes) to codes, scales and biases, and its bits."""

    bits: int
    unpack: Callable[[Bytes], blocks.Affine]


REPACKED = {
    "Q4_0": Affine(4, blocks.q4_0),
    "Q4_1": Affine(4, blocks.q4_1),
    "Q5_0": Affine(5, blocks.q5_0),
    "Q5_1": Affine(5, blocks.q5_1),
    "Q8_0": Affine(8, blocks.q8_0),
    "IQ4_NL": Affine(8, blocks.iq4_nl),
    "IQ4_XS": Affine(8, blocks.iq4_xs),
    "Q4_K": Affine(4, blocks.q4_k),
    "Q5_K": Affine(5, blocks.q5_k),
}

# Bits at which the second rounding stays near a tenth of the first one's step: 3, 7 and 63 steps
# in a group of 16 become 15, 31 and 255 in one of 32.
REQUANTIZED = {
    "Q2_K": (4, blocks.q2_k),
    "Q3_K": (5, blocks.q3_k),
    "Q6_K": (8, blocks.q6_k),
}

PLAIN: dict[str, tuple[str, mx.Dtype]] = {
    "F32": ("<u4", mx.float32),
    "F16": ("<u2", mx.float16),
    "BF16": ("<u2", mx.bfloat16),
}


def pack_codes(codes: Bytes, bits: int) -> NDArray[np.uint32]:
    """Codes (rows, n) below 2**bits as words (rows, n * bits / 32); n is a multiple of 32."""
    rows, count = codes.shape
    if bits == 8:
        packed = codes
    elif bits == 4:
        pairs = codes.view("<u2")
        packed = (pairs | (pairs >> 4)).astype(np.uint8)
    else:
        # Eight codes make `bits` whole bytes.
        stream = np.zeros((rows, count // 8), np.uint64)
        for i in range(8):
            stream |= codes[:, i::8].astype(np.uint64) << np.uint64(i * bits)
        packed = stream.view(np.uint8).reshape(rows, count // 8, 8)[:, :, :bits]
    return np.ascontiguousarray(packed).reshape(rows, -1).view("<u4")


def _half(tensor: Tensor, values: blocks.Floats, rows: int) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        half = values.reshape(rows, -1).astype(np.float16)
    if not np.isfinite(half).all():
        raise DamagedFile(
            f"tensor {tensor.name!r}: a {tensor.type.name} scale is not a finite half; "
            "the file is damaged, download it again"
        )
    return half


def _repack(tensor: Tensor, chunks: Sequence[Bytes]) -> Packed:
    bits, unpack = REPACKED[tensor.type.name]

    def convert(raw: Bytes) -> tuple[NDArray[Any], ...]:
        rows = len(raw)
        with np.errstate(over="ignore", invalid="ignore"):
            codes, scales, biases = unpack(raw.reshape(-1, tensor.type.nbytes))
        packed = pack_codes(codes.reshape(rows, -1), bits)
        return packed, _half(tensor, scales, rows), _half(tensor, biases, rows)

    half = len(chunks) // 2
    rest = beside.submit(lambda: [convert(raw) for raw in chunks[half:]])
    parts = [convert(raw) for raw in chunks[:half]] + rest.result()
    weight, scales, biases = (mx.array(np.concatenate(x)) for x in zip(*parts, strict=True))
    return Packed(weight, scales, biases, bits)


def _requantize(tensor: Tensor, chunks: Sequence[Bytes]) -> Packed:
    parts = [_requantized(tensor, raw) for raw in chunks]
    weight, scales, biases = (mx.concatenate(list(x)) for x in zip(*parts, strict=True))
    return Packed(weight, scales, biases, REQUANTIZED[tensor.type.name][0])


def _requantized(tensor: Tensor, raw: Bytes) -> tuple[mx.array, mx.array, mx.array]:
    bits, dequantize = REQUANTIZED[tensor.type.name]
    with np.errstate(over="ignore", invalid="ignore"):
        values = dequantize(raw.reshape(-1, tensor.type.nbytes)).reshape(len(raw), -1)
    _half(tensor, np.abs(values).max(axis=1), len(raw))
    weight, scales, biases = mx.quantize(mx.array(values), group_size=GROUP_SIZE, bits=bits)
    return weight, scales.astype(mx.float16), biases.astype(mx.float16)


def _plain(tensor: Tensor, raw: Bytes) -> mx.array:
    words, dtype = PLAIN[tensor.type.name]
    return mx.array(np.ascontiguousarray(raw).view(words).reshape(tensor.shape)).view(dtype)


def _row_chunks(tensor: Tensor, raw: Bytes) -> Iterator[Bytes]:
    # As many as a core's cache holds when they are unpacked to a byte each, and less of them twice.
    step = max(1, CHUNK_ELEMENTS // tensor.shape[-1])
    for begin in range(0, len(raw), step):
        yield raw[begin : begin + step]


def load_tensor(tensor: Tensor, row_order: NDArray[np.intp] | None = None) -> mx.array | Packed:
    """The tensor as `Packed` (matrices of quantized types) or as an array of its own dtype.

    row_order (rows,): row i of the result is row row_order[i] of the file.
    Raises UnsupportedModel for a type without a rule, DamagedFile for scales that are not finite.
    """
    raw, name = tensor.rows(), tensor.type.name
    packable = REPACKED.keys() | REQUANTIZED.keys()
    if name not in PLAIN and (len(tensor.shape) != 2 or name not in packable):
        raise UnsupportedModel(
            f"tensor {tensor.name!r} of shape {tensor.shape} is of type {name}; supported: "
            f"{', '.join(sorted(packable | PLAIN.keys()))}"
        )
    if row_order is not None:
        raw = raw.reshape(len(row_order), -1)[row_order].reshape(raw.shape)
    if name in PLAIN:
        return _plain(tensor, raw)
    convert = _repack if name in REPACKED else _requantize
    return convert(tensor, list(_row_chunks(tensor, raw)))
