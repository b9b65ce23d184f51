"""Many new tokens at once: the same rules as one by one, worked block by block."""

from collections.abc import Iterator
from functools import partial

import mlx.core as mx
import numpy as np

from edgekv.cache.block import close
from edgekv.cache.sequence import LayerArrays, SequenceCache
from edgekv.metal.attention import prefill_attention
from edgekv.metal.merge import MASKED
from edgekv.metal.packed import Blocks
from edgekv.metal.rotary import RotaryTable, rotate
from edgekv.metal.segments import KeysValues, Segment, Span
from edgekv.metal.tile import BLOCK
from edgekv.metal.turned import Turned, expand_turned


class PrefillStep:
    """The step of n tokens; `attend` must be called once for every layer.

    Keys come in three parts. Anchors: the sinks and the closed pinned blocks, seen from the
    query's position in the cache. Far: the other closed blocks, those that this step closes
    included. Near: the fp16 tokens behind them. Far and near are seen from the query's true
    position, counted from `_base` so that it stays small.
    """

    def __init__(self, cache: SequenceCache, n: int) -> None:
        policy = cache.policy
        self.n = n
        self._cache = cache
        self._start = cache.length
        self._closed = cache.closed
        self._n_recent = cache.recent_tokens
        self._pinned, self._ring = list(cache.pinned), list(cache.ring)
        self._far_start = max(cache.ring_start, policy.pinned_blocks)
        self._closing = cache.advance(n)
        self._n_sink = min(max(0, policy.n_sink - self._start), n)
        self._plan_rotations()
        self._spans = [self._span(*rows) for rows in self._rows()]

    def _plan_rotations(self) -> None:
        cache, policy = self._cache, self._cache.policy
        positions = np.arange(self._start, self._start + self.n)
        closing = self._closing
        base = policy.n_sink + min(self._far_start, self._closed) * BLOCK
        offsets = np.where(
            positions < policy.n_sink, positions, (positions - policy.n_sink) % BLOCK
        )
        self._key_rotation = cache.rope.for_keys(offsets).over(1)
        self._query = cache.rope.for_queries(positions - base).over(1)
        self._slot_query = cache.rope.for_queries(np.minimum(positions, policy.last_slot)).over(1)
        n_pinned = min(policy.pinned_blocks, closing.last)
        starts = policy.n_sink + BLOCK * np.arange(max(closing.last, self._closed) + 1)
        self._anchor_rotations = cache.rope.for_keys(starts[:n_pinned]).over(2)
        far = starts[self._far_start : closing.last] - base
        self._far_rotations = cache.rope.for_keys(far).over(2)
        tail = np.arange(self._closed * BLOCK, max(0, self._start + self.n - policy.n_sink))
        self._tail_rotation = cache.rope.for_keys(policy.n_sink - base + tail // BLOCK * BLOCK)

    def _rows(self) -> list[tuple[int, int]]:
        """(first, last) of the rows that lie in one block; sink tokens are a run of their own."""
        policy, end = self._cache.policy, self._start + self.n
        cuts = [0, self._n_sink, self.n]
        first = -(-(max(self._start, policy.n_sink) - policy.n_sink) // BLOCK)
        cuts += [t - self._start for t in range(policy.n_sink + first * BLOCK, end, BLOCK)]
        edges = sorted(set(cuts))
        return list(zip(edges, edges[1:], strict=False))

    def _span(self, first: int, last: int) -> Span:
        policy = self._cache.policy
        rows = np.arange(self._start + first, self._start + last)
        if first < self._n_sink:
            return Span(first, last, _segment(0, last + self._start, _causal(rows)), None, None)
        block = (int(rows[0]) - policy.n_sink) // BLOCK
        near = max(block - 1, self._closed)
        pinned = min(policy.pinned_blocks, near, self._closing.last)
        anchors = _segment(0, policy.n_sink + pinned * BLOCK, None)
        return Span(first, last, anchors, self._far(rows, near), self._near(rows, near))

    def _far(self, rows: np.ndarray, near: int) -> Segment | None:
        """The closed blocks of the window, of which the oldest may be partly out of it."""
        policy = self._cache.policy
        oldest = rows - policy.window + 1 - policy.n_sink
        first = max(self._far_start, int(oldest[0]) // BLOCK)
        start, stop = ((b - self._far_start) * BLOCK for b in (first, near))
        # A span lies in one block, so the oldest token that its rows see does in one of two.
        tokens = np.arange(first * BLOCK, min(first + 2, near) * BLOCK)
        seen = tokens[None] >= oldest[:, None]
        return _segment(start, stop, None if seen.all() else seen)

    def _near(self, rows: np.ndarray, near: int) -> Segment | None:
        policy = self._cache.policy
        newest = rows - policy.n_sink
        stop = int(newest[-1]) + 1
        tokens = np.arange(near * BLOCK, stop)
        seen = tokens[None] <= newest[:, None]
        seen &= tokens[None] > newest[:, None] - policy.window
        tail = self._closed * BLOCK
        return _segment(near * BLOCK - tail, stop - tail, seen)

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """Store keys and values and return the attention of each new token over the cache.

        q: (n, n_heads, head_dim), scaled; k, v: (n, n_kv_heads, head_dim); neither rotated.
        Returns (n, n_heads, head_dim) in q's dtype.
        """
        arrays = self._cache.layers[layer]
        keys, values = self._tail(arrays, k, v)
        closed = self._close(layer, keys, values)
        anchors = self._anchors(layer, arrays, closed, q.dtype)
        far = partial(self._far_blocks, layer, closed)
        near = self._near_keys(keys, values, q.dtype)
        heads = k.shape[1]
        out = prefill_attention(
            _grouped(q, self._query, heads),
            _grouped(q, self._slot_query, heads),
            anchors,
            far,
            near,
            self._spans,
        )
        self._store(layer, arrays, keys, values, closed)
        return out.transpose(2, 0, 1, 3).reshape(q.shape)

    def _tail(self, arrays: LayerArrays, k: mx.array, v: mx.array) -> KeysValues:
        """Sinks into their place; recent and new tokens joined: (n_kv_heads, tokens, head_dim)."""
        turned = rotate(k, self._key_rotation)
        new = mx.stack([turned, v]).swapaxes(1, 2).astype(mx.float16)
        if self._n_sink:
            place = slice(self._start, self._start + self._n_sink)
            arrays.hot[:, :, place] = new[:, :, : self._n_sink]
        tail = [arrays.hot[:, :, place] for _, place in self._recent(0, self._n_recent)]
        keys, values = mx.concatenate([*tail, new[:, :, self._n_sink :]], axis=2)
        return keys, values

    def _close(self, layer: int, keys: mx.array, values: mx.array) -> Blocks | None:
        n = self._closing.last - self._closing.first
        if n == 0:
            return None
        policy = self._cache.policy.layers[layer]
        return close(_blocks(keys, n), _blocks(values, n), policy)

    def _anchors(
        self, layer: int, arrays: LayerArrays, closed: Blocks | None, dtype: mx.Dtype
    ) -> KeysValues:
        keys, values = arrays.hot[:, :, : self._cache.policy.n_sink].astype(dtype)
        fresh = self._cache.policy.pinned_blocks - self._closed
        pinned = self._runs(layer, self._pinned, _take(closed, 0, max(0, fresh)))
        if not pinned:
            return keys, values
        more = expand_turned(Turned(pinned, self._anchor_rotations), dtype)
        return mx.concatenate([keys, more[0]], axis=1), mx.concatenate([values, more[1]], axis=1)

    def _far_blocks(self, layer: int, closed: Blocks | None, start: int, stop: int) -> Turned:
        """The blocks of far keys start..stop, which are edges of blocks."""
        first, last, old = start // BLOCK, stop // BLOCK, len(self._ring)
        fresh = max(0, self._cache.policy.pinned_blocks - self._closed) - old
        new = _take(closed, fresh + max(first, old), fresh + max(last, old))
        runs = self._runs(layer, self._ring[first:last], new)
        return Turned(runs, self._far_rotations[first:last])

    def _runs(self, layer: int, slots: list[int], fresh: Blocks | None) -> list[Blocks]:
        """Blocks of the pool, and those just closed."""
        old = [self._cache.pool.read(layer, slots)] if slots else []
        return old if fresh is None else [*old, fresh]

    def _near_keys(self, keys: mx.array, values: mx.array, dtype: mx.Dtype) -> KeysValues:
        return rotate(keys.astype(dtype), self._tail_rotation), values.astype(dtype)

    def _store(
        self,
        layer: int,
        arrays: LayerArrays,
        keys: mx.array,
        values: mx.array,
        closed: Blocks | None,
    ) -> None:
        if closed is not None and self._closing.kept:
            kept = mx.array(list(self._closing.kept))
            chosen = Blocks(*(tuple(a[kept] for a in part) for part in closed))
            self._cache.pool.write(layer, self._closing.slots, chosen)
        done = (self._closing.last - self._closed) * BLOCK
        for here, place in self._recent(done, keys.shape[1]):
            arrays.hot[0, :, place] = keys[:, here]
            arrays.hot[1, :, place] = values[:, here]

    def _recent(self, first: int, last: int) -> Iterator[tuple[slice, slice]]:
        """Tokens first..last behind the closed blocks, cut at blocks, and their places in `hot`."""
        for at in range(first, last, BLOCK):
            row, count = self._cache.recent_row(self._closed + at // BLOCK), min(BLOCK, last - at)
            yield slice(at, at + count), slice(row, row + count)


def _segment(start: int, stop: int, seen: np.ndarray | None) -> Segment | None:
    if stop <= start:
        return None
    if seen is None:
        return Segment(start, stop)
    return Segment(start, stop, mx.array(np.where(seen, 0.0, MASKED).astype(np.float32)))


def _causal(rows: np.ndarray) -> np.ndarray:
    return np.arange(rows[-1] + 1)[None] <= rows[:, None]


def _grouped(q: mx.array, table: RotaryTable, n_kv_heads: int) -> mx.array:
    """(n, n_heads, head_dim) rotated, as (n_kv_heads, group, n, head_dim)."""
    turned = rotate(q, table)
    n, heads, dim = q.shape
    return turned.reshape(n, n_kv_heads, heads // n_kv_heads, dim).transpose(1, 2, 0, 3)


def _blocks(x: mx.array, n: int) -> mx.array:
    """The first n blocks of (heads, tokens, head_dim), as (n, heads, 64, head_dim)."""
    heads, _, dim = x.shape
    return x[:, : n * BLOCK].reshape(heads, n, BLOCK, dim).swapaxes(0, 1)


def _take(blocks: Blocks | None, first: int, last: int | None) -> Blocks | None:
    """Blocks first..last, or None where there are none."""
    if blocks is None or blocks.keys[0][first:last].shape[0] == 0:
        return None
    return Blocks(*(tuple(a[first:last] for a in part) for part in blocks))
