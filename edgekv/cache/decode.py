"""One new token: where it goes, and its attention in every layer."""

from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx
import numpy as np

from edgekv.cache.block import close
from edgekv.cache.reach import Part, Reach, reach
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import LayerArrays, SequenceCache
from edgekv.cache.table import table
from edgekv.metal import fused
from edgekv.metal.attention import decode_attention, has_decode_kernel
from edgekv.metal.merge import MASKED
from edgekv.metal.reference import Sight
from edgekv.metal.rotary import matrices
from edgekv.metal.tile import BLOCK


class DecodeStep:
    """The step of one token behind the sinks; `attend` must be called once for every layer."""

    n = 1

    def __init__(self, cache: SequenceCache) -> None:
        self._cache = cache
        self._reach = reach(cache)
        self._key_rotation = matrices(cache.rope.for_keys([self._reach.offset]))
        self._closing = cache.advance(1)

    @cached_property
    def _table(self) -> mx.array:
        return table(self._reach)

    @cached_property
    def _sight(self) -> Sight:
        return sight(self._reach, self._cache.rope)

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """Store the token's key and value and return its attention over the cache.

        q: (1, n_heads, head_dim), scaled; k, v: (1, n_kv_heads, head_dim); neither rotated.
        Returns (1, n_heads, head_dim) in q's dtype.
        """
        arrays, blocks = self._cache.layers[layer], self._cache.pool.blocks(layer)
        self._append(arrays, k, v)
        if has_decode_kernel(q, blocks, k.shape[1]):
            turns = self._cache.rope.turns
            out = fused.decode_attention(q, self._table, turns, blocks, arrays.hot)
        else:
            out = self._by_twin(layer, q, arrays.hot)
        if self._closing.kept:
            close_recent(self._cache, layer, self._closing.first, self._closing.slots)
        return out

    def _by_twin(self, layer: int, q: mx.array, hot: mx.array) -> mx.array:
        slots = self._reach.slots
        out = decode_attention(
            q.reshape(hot.shape[1], -1, q.shape[-1]),
            self._sight,
            self._cache.pool.read(layer, slots) if slots else None,
            hot[:, :, : self._sight.hot_mask.shape[-1]],
        )
        return out.reshape(q.shape)

    def _append(self, arrays: LayerArrays, k: mx.array, v: mx.array) -> None:
        pair = mx.concatenate([k[0] @ self._key_rotation, v[0]]).astype(mx.float16)
        arrays.hot[:, :, self._reach.place] = pair.reshape(2, *k.shape[1:])


def sight(seen: Reach, rope: Rope) -> Sight:
    """What a new token sees, as the twin of the decode kernel takes it."""
    far = rope.for_queries(seen.distances).over(2) if seen.slots else None
    hot = matrices(rope.for_queries([part.distance for part in seen.parts]))
    far_mask = None if seen.seen.all() else _mask(seen.seen.ravel())
    return Sight(far, far_mask, hot, _hot_mask(seen.parts))


def close_recent(cache: SequenceCache, layer: int, block: int, slots: Sequence[int]) -> None:
    """Move a full recent block of one layer into the pool's slot for it."""
    row = cache.recent_row(block)
    full = cache.layers[layer].hot[:, :, row : row + BLOCK]
    # Slices, which the kernel reads where they lie; indexing with None would copy them first.
    cache.pool.write(layer, slots, close(full[:1], full[1:], cache.policy.layers[layer]))


def _hot_mask(parts: Sequence[Part]) -> mx.array:
    """The mask over the fp16 tokens up to the last one in use, a row for each part."""
    seen = np.zeros((len(parts), parts[-1].place + parts[-1].stop), dtype=bool)
    for row, part in zip(seen, parts, strict=True):
        row[part.place + part.start : part.place + part.stop] = True
    return _mask(seen)


def _mask(seen: np.ndarray) -> mx.array:
    return mx.array(np.where(seen, 0.0, MASKED).astype(np.float32))
