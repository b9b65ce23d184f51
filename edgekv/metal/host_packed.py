"""Packed matrices on the host: what metal/packed.py expands, in numpy and in half the time."""

import numpy as np
from numpy.typing import NDArray

from edgekv.metal.host import Arrays, Floats
from edgekv.metal.packed import bits_and_group


def numbers(matrix: Arrays, columns: int) -> Floats:
    """The numbers a packed or 16-bit matrix of so many columns stands for."""
    if len(matrix) == 1:
        return matrix[0].astype(np.float32)
    bits, group = bits_and_group(matrix, columns)
    scale, zero = (x[..., None].astype(np.float32) for x in matrix[1:])
    found = unpack(matrix[0], bits).reshape(*matrix[1].shape, group).astype(np.float32)
    found *= scale
    found += zero
    return found.reshape(*matrix[0].shape[:-1], columns)


def unpack(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """Codes of a little-endian stream, one a byte: words (..., n * bits / 32) to (..., n)."""
    packed = words.view(np.uint8)
    if bits == 8:
        return packed
    if bits == 4:
        pairs = packed.astype("<u2")
        pairs |= pairs << 4
        pairs &= 0x0F0F
        return pairs.view(np.uint8)
    # Eight codes are as many bytes as a code has bits: they are moved apart by halves.
    eights = np.zeros((*packed.shape[:-1], packed.shape[-1] // bits), "<u8")
    for i in range(bits):
        eights |= packed[..., i::bits].astype("<u8") << np.uint64(8 * i)
    for codes in 4, 2, 1:
        run = (1 << codes * bits) - 1
        mask = np.uint64(sum(run << 16 * codes * lane for lane in range(4 // codes)))
        upper = eights >> np.uint64(codes * bits) & mask
        eights = eights & mask | upper << np.uint64(8 * codes)
    return eights.view(np.uint8)
