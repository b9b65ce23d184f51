"""The block formats of ggml, read with numpy.

Source of the layouts: `ggml-common.h` and `ggml-quants.c` of ggml-org/ggml. Every function takes
blocks (n, bytes of a block) uint8. Affine formats give codes (n, elements) uint8 with scales and
biases (n, elements / 32), `weight = scale * code + bias`; the others give weights (n, elements)
fp32.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[Any]
Affine = tuple[Bytes, Floats, Floats]

# The sixteen levels of IQ4_NL and IQ4_XS, ggml's table `kvalues_iq4nl`, moved up by 128 so that
# they are 8-bit codes with bias -128 * scale.
_IQ4_CODES = (
    np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]) + 128
).astype(np.uint8)


def _half(blocks: Bytes, at: int) -> NDArray[np.float16]:
    """The fp16 at byte `at` of every block, (n, 1)."""
    return np.ascontiguousarray(blocks[:, at : at + 2]).view("<f2")


def _single(blocks: Bytes, at: int) -> NDArray[np.float32]:
    return _half(blocks, at).astype(np.float32)


def _fields(data: Bytes, width: int, lane: int) -> Bytes:
    """Unpack (n, bytes) into (n, bytes * 8 / width): each run of `lane` bytes holds first the
    lowest `width` bits of all its bytes, then the next ones."""
    n, count = data.shape
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields = (data.reshape(n, count // lane, 1, lane) >> shifts) & np.uint8((1 << width) - 1)
    return fields.reshape(n, -1)


def q4_0(blocks: Bytes) -> Affine:
    d = _half(blocks, 0)
    return _fields(blocks[:, 2:], 4, 16), d, d * np.float16(-8)


def q4_1(blocks: Bytes) -> Affine:
    return _fields(blocks[:, 4:], 4, 16), _half(blocks, 0), _half(blocks, 2)


def _fifth_bit(packed: Bytes) -> Bytes:
    return np.unpackbits(packed, axis=1, bitorder="little") << np.uint8(4)


def q5_0(blocks: Bytes) -> Affine:
    d = _half(blocks, 0)
    codes = _fields(blocks[:, 6:], 4, 16) | _fifth_bit(blocks[:, 2:6])
    return codes, d, d * np.float16(-16)


def q5_1(blocks: Bytes) -> Affine:
    codes = _fields(blocks[:, 8:], 4, 16) | _fifth_bit(blocks[:, 4:8])
    return codes, _half(blocks, 0), _half(blocks, 2)


def q8_0(blocks: Bytes) -> Affine:
    d = _half(blocks, 0)
    return blocks[:, 2:] ^ np.uint8(128), d, d * np.float16(-128)


def iq4_nl(blocks: Bytes) -> Affine:
    d = _half(blocks, 0)
    return _IQ4_CODES[_fields(blocks[:, 2:], 4, 16)], d, d * np.float16(-128)


def iq4_xs(blocks: Bytes) -> Affine:
    """Bytes: d, high 2 bits of eight scales, their low 4 bits, 256 codes."""
    high = np.ascontiguousarray(blocks[:, 2:4]).view("<u2") >> np.arange(0, 16, 2, dtype=np.uint16)
    low = _fields(blocks[:, 4:8], 4, 1)
    scales = (low | ((high & 3) << 4)).astype(np.float32) - 32
    d = _single(blocks, 0) * scales
    return _IQ4_CODES[_fields(blocks[:, 8:], 4, 16)], d, d * -128


def _k_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight 6-bit scales and eight 6-bit offsets from 12 bytes."""
    a, b, c = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    top_a, top_b = (a >> 6) << 4, (b >> 6) << 4
    scales = np.concatenate([a & 63, (c & 15) | top_a], axis=1)
    return scales, np.concatenate([b & 63, (c >> 4) | top_b], axis=1)


def _k_affine(blocks: Bytes, codes: Bytes) -> Affine:
    """Shared by Q4_K and Q5_K. Bytes: d, dmin, scales and offsets, codes."""
    scales, offsets = _k_scales(blocks[:, 4:16])
    return codes, _single(blocks, 0) * scales, -_single(blocks, 2) * offsets


def q4_k(blocks: Bytes) -> Affine:
    return _k_affine(blocks, _fields(blocks[:, 16:], 4, 32))


def q5_k(blocks: Bytes) -> Affine:
    high = _fields(blocks[:, 16:48], 1, 32) << np.uint8(4)
    return _k_affine(blocks, _fields(blocks[:, 48:], 4, 32) | high)


def q2_k(blocks: Bytes) -> Floats:
    """Bytes: 16 scales (low 4 bits) and offsets (high 4), 256 codes, d, dmin."""
    scales = _single(blocks, 80) * (blocks[:, :16] & 15)
    offsets = _single(blocks, 82) * (blocks[:, :16] >> 4)
    codes = _fields(blocks[:, 16:80], 2, 32).reshape(-1, 16, 16)
    return scales[:, :, None] * codes - offsets[:, :, None]


def q3_k(blocks: Bytes) -> Floats:
    """Bytes: inverted third bit of the codes, their low 2 bits, 16 scales of 6 bits, d."""
    high = _fields(blocks[:, :32], 1, 32)
    codes = (_fields(blocks[:, 32:96], 2, 32) | (high << 2)).astype(np.float32) - 4
    low_scale = _fields(blocks[:, 96:104], 4, 8)
    scales = (low_scale | (_fields(blocks[:, 104:108], 2, 4) << 4)).astype(np.float32) - 32
    d = _single(blocks, 108) * scales
    return d[:, :, None] * codes.reshape(-1, 16, 16)


def q6_k(blocks: Bytes) -> Floats:
    """Bytes: low 4 bits of the codes, their high 2 bits, 16 signed scales, d."""
    low, high = _fields(blocks[:, :128], 4, 64), _fields(blocks[:, 128:192], 2, 32)
    codes = (low | (high << 4)).astype(np.float32) - 32
    scales = np.ascontiguousarray(blocks[:, 192:208]).view(np.int8)
    d = _single(blocks, 208) * scales
    return d[:, :, None] * codes.reshape(-1, 16, 16)
