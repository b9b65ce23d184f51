"""Attention of one token in numpy, on the memory of MLX's arrays: for machines without Metal.

One token is hundreds of small operations. A call of MLX's CPU backend takes 5 us and handing a
result back to Python 90, where a call of numpy takes 1 (mlx 0.32.4, numpy 2.4, two cores).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgekv.metal.packed import Blocks, Matrix, bits_and_group
from edgekv.metal.rotary import RotaryTable
from edgekv.metal.tile import BLOCK

Floats = NDArray[np.float32]
Rotations = tuple[Floats, Floats]
"""Cosines and sines, laid out as a RotaryTable's."""

Arrays = tuple[NDArray[Any], ...]
"""A Matrix of metal/packed.py as numpy sees it."""


class Hot(NamedTuple):
    """The fp16 tokens: pair (2, n_kv_heads, tokens, head_dim), and the rows that are seen.

    Each slice of rows has its own rotation of the query: rotations (len(rows), 1, head_dim).
    """

    pair: NDArray[np.float16]
    rows: Sequence[slice]
    rotations: Rotations


class Far(NamedTuple):
    """Closed blocks: a layer's whole pool and which of its slots are meant.

    rotations: the query's to each of them (n, 1, head_dim); mask (n * 64,), added to the scores.
    """

    pool: Blocks
    slots: slice | NDArray[np.int64]
    rotations: Rotations
    mask: Floats


def view(array: mx.array) -> NDArray[Any]:
    """The memory of an array, evaluated first, as numpy sees it: writing to it is possible."""
    return np.array(array, copy=False)


def floats(array: mx.array) -> Floats:
    """The numbers of an array in rows without gaps: its own memory where it is fp32 and so laid."""
    found: Floats = np.ascontiguousarray(view(array.astype(mx.float32)))
    return found


def on_host(table: RotaryTable) -> Rotations:
    """A table's rotations with an axis for the heads."""
    return view(table.cos)[:, None], view(table.sin)[:, None]


def rotate(x: Floats, rotations: Rotations) -> Floats:
    """The rotations of rows x (n, head_dim), one after another: (rotations, n, head_dim)."""
    cos, sin = rotations
    half = x.shape[-1] // 2
    swapped = np.concatenate([x[:, half:], x[:, :half]], axis=-1)
    turned: Floats = x * cos
    turned += swapped * sin
    return turned


def decode_attention(q: Floats, hot: Hot, far: Far | None) -> Floats:
    """One query token (n_heads, head_dim), not rotated and scaled, over all that it sees.

    Equals the twin in metal/reference.py. Returns (n_heads, head_dim).
    """
    heads, dim = hot.pair.shape[1], q.shape[-1]
    pairs = [hot.pair[:, :, rows].astype(np.float32) for rows in hot.rows]
    turned = rotate(q, hot.rotations).reshape(len(pairs), heads, -1, dim)
    scores = [one @ keys.swapaxes(-1, -2) for one, (keys, _) in zip(turned, pairs, strict=True)]
    if far is not None:
        scores.append(_far_scores(q, heads, far))
    weights = _softmax(np.concatenate(scores, axis=-1))
    out, start = np.zeros((heads, q.shape[0] // heads, dim), np.float32), 0
    for _, values in pairs:
        stop = start + values.shape[1]
        out += weights[..., start:stop] @ values
        start = stop
    if far is not None:
        out += multiply(weights[..., start:], _in_rows(_taken(far.pool.values, far.slots)), dim)
    return out.reshape(q.shape)


def _in_rows(values: Arrays) -> Arrays:
    """Values of blocks (n, n_kv_heads, 64, …) as one matrix a head: (n_kv_heads, n * 64, …)."""
    return tuple(x.swapaxes(0, 1).reshape(x.shape[1], -1, x.shape[-1]) for x in values)


def _far_scores(q: Floats, heads: int, far: Far) -> Floats:
    turned = rotate(q, far.rotations)
    keys = _taken(far.pool.keys, far.slots)
    tiles = multiply(turned.reshape(len(turned), heads, -1, q.shape[-1]), keys, BLOCK)
    scores = tiles.transpose(1, 2, 0, 3).reshape(heads, tiles.shape[2], -1)
    return scores + far.mask


def _taken(matrix: Matrix, slots: slice | NDArray[np.int64]) -> Arrays:
    # Indexed by numpy: of MLX, each index would be an operation to wait for.
    return tuple(view(array)[slots] for array in matrix)


def _softmax(scores: Floats) -> Floats:
    weights: Floats = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def multiply(x: Floats, matrix: Arrays, columns: int) -> Floats:
    """x @ matrix for a packed or 16-bit matrix of so many columns, as metal/packed.py has it.

    The codes are multiplied as whole numbers: scales are folded into x, and zeros into one
    number a row and group.
    """
    if len(matrix) == 1:
        whole: Floats = x @ matrix[0].astype(np.float32)
        return whole
    bits, group = bits_and_group(matrix, columns)
    words = group * bits // 32
    scale, zero = (part.astype(np.float32) for part in matrix[1:])
    out = np.empty((*x.shape[:-1], columns), np.float32)
    for g in range(columns // group):
        scaled, codes = x * scale[..., None, :, g], matrix[0][..., g * words : (g + 1) * words]
        constant = x @ zero[..., g : g + 1]
        planes = _planes(codes, bits)
        for j, plane in enumerate(planes):
            columns_of_plane = slice(g * group + j, (g + 1) * group, len(planes))
            out[..., columns_of_plane] = scaled @ plane + constant
    return out


def _planes(codes: NDArray[np.uint32], bits: int) -> list[Floats]:
    """Packed codes as numbers: of p arrays, the j-th holds the columns j, j + p, j + 2p..."""
    units: NDArray[Any] = codes.view(np.uint8)
    if bits == 3:
        low, middle, high = (units[..., i::3].astype(np.uint32) for i in range(3))
        units = low | middle << 8 | high << 16
    count = 8 if bits == 3 else 8 // bits
    mask = 2**bits - 1
    return [(units >> (j * bits) & mask).astype(np.float32) for j in range(count)]
