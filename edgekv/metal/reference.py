"""Attention over the cache in plain MLX operations: the specification, and the path without Metal.

Queries come grouped by the KV head they share, (n_kv_heads, group, ...), and already scaled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from edgekv.metal.merge import Partial, merge, partial
from edgekv.metal.packed import Blocks, multiply
from edgekv.metal.rotary import RotaryTable, rotate
from edgekv.metal.tile import BLOCK

TILE = 2048
"""Keys scored at once in prefill: bounds the score matrix whatever the window is."""

KeysValues = tuple[mx.array, mx.array]


@dataclass(frozen=True)
class Segment:
    """Keys start..stop of a part, and which of them each row may see.

    mask: (rows, stop - start) fp32 to be added to the scores, or None where all count.
    """

    start: int
    stop: int
    mask: mx.array | None = None


@dataclass(frozen=True)
class Span:
    """Query rows first..last of a chunk that lie in one block, and the keys they see."""

    first: int
    last: int
    anchors: Segment | None
    far: Segment | None
    near: Segment | None


def decode_attention(
    q: mx.array,
    rotations: RotaryTable,
    blocks: Blocks | None,
    recent: mx.array,
    sinks: mx.array,
    mask: mx.array,
) -> mx.array:
    """One query token over closed blocks, recent tokens and sinks.

    q: (n_kv_heads, group, head_dim), not rotated. rotations: (n + 3, 1, 1, head_dim), a row for
    each of the n closed blocks, for each of the two recent ones, and for the sinks: the query's
    distance to their first token. recent: (2, 2, n_kv_heads, 64, head_dim), keys and values of
    each block; sinks: (2, n_kv_heads, n_sink, head_dim). mask: (keys,) added to the scores in
    the order closed, recent, sinks. Returns (n_kv_heads, group, head_dim) in q's dtype.
    """
    turned = rotate(q, rotations)
    n, n_sink = turned.shape[0] - 3, sinks.shape[2]
    recent, sinks = recent.astype(q.dtype), sinks.astype(q.dtype)
    tiles = turned[n : n + 2] @ recent[:, 0].swapaxes(-1, -2)
    if blocks is not None:
        tiles = mx.concatenate([multiply(turned[:n], blocks.keys, BLOCK), tiles])
    scores = _by_head(tiles)
    if n_sink:
        scores = mx.concatenate([scores, turned[n + 2] @ sinks[0].swapaxes(-1, -2)], axis=-1)
    weights = mx.softmax(scores.astype(mx.float32) + mask, axis=-1).astype(q.dtype)
    tiles = _by_block(weights[..., : (n + 2) * BLOCK] if n_sink else weights)
    out = (tiles[n:] @ recent[:, 1]).sum(axis=0)
    if blocks is not None:
        out = out + multiply(tiles[:n], blocks.values, q.shape[-1]).sum(axis=0)
    if n_sink:
        out = out + weights[..., (n + 2) * BLOCK :] @ sinks[1]
    return out


def _by_head(tiles: mx.array) -> mx.array:
    """(blocks, heads, group, 64) scores as (heads, group, blocks * 64)."""
    n, heads, group, width = tiles.shape
    return tiles.transpose(1, 2, 0, 3).reshape(heads, group, n * width)


def _by_block(weights: mx.array) -> mx.array:
    """(heads, group, blocks * 64) weights as (blocks, heads, group, 64)."""
    heads, group, width = weights.shape
    return weights.reshape(heads, group, width // BLOCK, BLOCK).transpose(2, 0, 1, 3)


def prefill_attention(
    q: mx.array,
    q_slot: mx.array,
    anchors: KeysValues,
    far: KeysValues,
    near: KeysValues,
    spans: Sequence[Span],
) -> mx.array:
    """A chunk of queries over anchors (sinks and pinned), far (closed) and near (recent) keys.

    q, q_slot: (n_kv_heads, group, n, head_dim), rotated for the far and near keys, and for the
    anchors. Keys and values: (n_kv_heads, keys, head_dim), rotated to match.
    Returns (n_kv_heads, group, n, head_dim) in q's dtype.
    """
    outs = []
    for span in spans:
        rows = q[:, :, span.first : span.last]
        parts = _partials(q_slot[:, :, span.first : span.last], anchors, span.anchors)
        parts += _partials(rows, far, span.far)
        parts += _partials(rows, near, span.near)
        outs.append(merge(parts).reshape(rows.shape).astype(q.dtype))
    return mx.concatenate(outs, axis=2) if len(outs) > 1 else outs[0]


def _partials(q: mx.array, part: KeysValues, segment: Segment | None) -> list[Partial]:
    if segment is None:
        return []
    edges = range(segment.start, segment.stop, TILE)
    return [_partial(q, part, segment, a, min(a + TILE, segment.stop)) for a in edges]


def _partial(q: mx.array, part: KeysValues, segment: Segment, start: int, stop: int) -> Partial:
    heads, group, n, dim = q.shape
    keys, values = part[0][:, start:stop], part[1][:, start:stop]
    scores = (q.reshape(heads, group * n, dim) @ keys.swapaxes(-1, -2)).astype(mx.float32)
    if segment.mask is not None:
        visible = segment.mask[:, start - segment.start : stop - segment.start]
        scores = (scores.reshape(heads, group, n, -1) + visible).reshape(scores.shape)
    return partial(scores, values)
