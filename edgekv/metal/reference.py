"""Attention over the cache in plain MLX operations: the specification, and the path without Metal.

Queries come grouped by the KV head they share, (n_kv_heads, group, ...), and already scaled.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx

from edgekv.metal.merge import Partial, join, merge, partial
from edgekv.metal.packed import Blocks, multiply
from edgekv.metal.rotary import RotaryTable, rotate
from edgekv.metal.segments import Expand, KeysValues, Segment, Span, tiles
from edgekv.metal.tile import BLOCK


@dataclass(frozen=True)
class Sight:
    """What one query token sees, and from where: the same in every layer.

    far: (n, 1, 1, head_dim), the query's distance to the first token of each closed block, and
    far_mask (n * 64,) to be added to their scores, or None where all count; both None without
    closed blocks. hot: (head_dim, parts * head_dim), the rotations to the first token of each
    part of the fp16 tokens (sinks, recent blocks), and hot_mask (parts, tokens): MASKED but
    where a part's own tokens are seen.
    """

    far: RotaryTable | None
    far_mask: mx.array | None
    hot: mx.array
    hot_mask: mx.array


def decode_attention(q: mx.array, sight: Sight, blocks: Blocks | None, hot: mx.array) -> mx.array:
    """One query token over closed blocks and fp16 tokens.

    q: (n_kv_heads, group, head_dim), not rotated; hot: (2, n_kv_heads, tokens, head_dim), keys
    and values. Returns (n_kv_heads, group, head_dim) in q's dtype.
    """
    hot = hot.astype(q.dtype)
    keys, values = hot[0].swapaxes(-1, -2), hot[1]
    scores = _hot_scores(q, keys, sight)
    if blocks is None or sight.far is None:
        return mx.softmax(scores, axis=-1).astype(q.dtype) @ values
    scores = mx.concatenate([_far_scores(q, blocks, sight.far, sight.far_mask), scores], axis=-1)
    weights = mx.softmax(scores, axis=-1).astype(q.dtype)
    n = sight.far.cos.shape[0] * BLOCK
    tiles = multiply(_by_block(weights[..., :n]), blocks.values, q.shape[-1])
    return weights[..., n:] @ values + tiles.sum(axis=0)


def _hot_scores(q: mx.array, keys: mx.array, sight: Sight) -> mx.array:
    """Scores of the fp16 tokens, (heads, group, tokens) in fp32.

    The query meets every token in every part's rotation, and the mask leaves the right one: a
    product of three times the size costs less than a product for each part.
    """
    heads, group, dim = q.shape
    turned = (q.reshape(-1, dim) @ sight.hot).astype(q.dtype).reshape(heads, -1, dim)
    scores = (turned @ keys).astype(mx.float32)
    return (scores.reshape(heads, group, -1, keys.shape[-1]) + sight.hot_mask).max(axis=-2)


def _far_scores(
    q: mx.array, blocks: Blocks, rotations: RotaryTable, mask: mx.array | None
) -> mx.array:
    """Scores of the closed blocks, (heads, group, tokens) in fp32."""
    tiles = multiply(rotate(q, rotations), blocks.keys, BLOCK)
    n, heads, group, width = tiles.shape
    scores = tiles.transpose(1, 2, 0, 3).reshape(heads, group, n * width).astype(mx.float32)
    return scores if mask is None else scores + mask


def _by_block(weights: mx.array) -> mx.array:
    """(heads, group, blocks * 64) weights as (blocks, heads, group, 64)."""
    heads, group, width = weights.shape
    return weights.reshape(heads, group, width // BLOCK, BLOCK).transpose(2, 0, 1, 3)


def prefill_attention(
    q: mx.array,
    q_slot: mx.array,
    anchors: KeysValues,
    far: Expand,
    near: KeysValues,
    spans: Sequence[Span],
) -> mx.array:
    """A chunk of queries over anchors (sinks and pinned), far (closed) and near (recent) keys.

    q, q_slot: (n_kv_heads, group, n, head_dim), rotated for the far and near keys, and for the
    anchors. Keys and values: (n_kv_heads, keys, head_dim), rotated to match; far expands them
    from one key to another, for one tile after the other, so that never more than one is there.
    Returns (n_kv_heads, group, n, head_dim) in q's dtype.
    """
    rows = [slice(span.first, span.last) for span in spans]
    found = [
        _partials(q_slot[:, :, r], anchors, span.anchors)
        for r, span in zip(rows, spans, strict=True)
    ]
    edges = tiles(spans)
    for start, stop in edges:
        tile = far(start, stop)
        for parts, r, span in zip(found, rows, spans, strict=True):
            parts += _partials(q[:, :, r], tile, span.far and span.far.clip(start, stop))
        del tile
        if (start, stop) != edges[-1]:
            # Otherwise the tiles, which are lazy, would all be expanded before one is let go.
            found = [[join(parts)] if parts else [] for parts in found]
            mx.eval(found)
    outs = [
        merge(parts + _partials(q[:, :, r], near, span.near)).reshape(q[:, :, r].shape)
        for parts, r, span in zip(found, rows, spans, strict=True)
    ]
    return mx.concatenate(outs, axis=2).astype(q.dtype)


def _partials(q: mx.array, part: KeysValues, segment: Segment | None) -> list[Partial]:
    pieces = [] if segment is None else segment.pieces()
    return [_partial(q, part, piece) for piece in pieces]


def _partial(q: mx.array, part: KeysValues, segment: Segment) -> Partial:
    heads, group, n, dim = q.shape
    keys, values = (x[:, segment.start : segment.stop] for x in part)
    scores = (q.reshape(heads, group * n, dim) @ keys.swapaxes(-1, -2)).astype(mx.float32)
    if segment.mask is not None:
        masked = segment.mask.shape[1]
        first = scores[..., :masked].reshape(heads, group, n, masked) + segment.mask
        first = first.reshape(heads, group * n, masked)
        scores = mx.concatenate([first, scores[..., masked:]], axis=-1)
    return partial(scores, values)
