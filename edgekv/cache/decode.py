"""One new token: where it goes, what it sees, and the attention of every layer."""

import mlx.core as mx
import numpy as np

from edgekv.cache.block import close
from edgekv.cache.policy import RECENT_BLOCKS
from edgekv.cache.sequence import LayerArrays, SequenceCache
from edgekv.metal.attention import decode_attention
from edgekv.metal.device import beside
from edgekv.metal.merge import MASKED
from edgekv.metal.reference import Sight
from edgekv.metal.rotary import matrices
from edgekv.metal.tile import BLOCK


class DecodeStep:
    """The step of one token behind the sinks; `attend` must be called once for every layer."""

    n = 1

    def __init__(self, cache: SequenceCache) -> None:
        policy = cache.policy
        self._cache = cache
        self._position = cache.length
        self._block, self._offset = divmod(self._position - policy.n_sink, BLOCK)
        self._place = cache.recent_row(self._block) + self._offset
        held = [(slot, b) for b, slot in enumerate(cache.pinned)]
        held += [(slot, b) for b, slot in enumerate(cache.ring, cache.ring_start)]
        # Attention does not mind the order of its keys, and ascending slots are one view.
        held.sort()
        self._slots = [slot for slot, _ in held]
        self._sight = self._look(np.array([b for _, b in held], dtype=np.int64))
        self._key_rotation = matrices(cache.rope.for_keys([self._offset]))
        self._closing = cache.advance(1)

    def _look(self, blocks: np.ndarray) -> Sight:
        rope, parts = self._cache.rope, self._parts()
        far = rope.for_queries(self._distances(blocks)).over(2) if len(blocks) else None
        seen = self._visible(blocks)
        hot = matrices(rope.for_queries([distance for _, _, distance in parts]))
        return Sight(far, None if seen.all() else _mask(seen), hot, self._hot_mask(parts))

    @property
    def _oldest(self) -> int:
        """The oldest token of the window, counted behind the sinks."""
        return self._position - self._cache.policy.window + 1 - self._cache.policy.n_sink

    def _distances(self, blocks: np.ndarray) -> np.ndarray:
        """From the first token of closed blocks to the query, for pinned ones as if no more were.

        A cached prefix keeps the position that it has in the cache (StreamingLLM,
        arXiv 2309.17453, section 3.2): the query stands at most at the last slot before it.
        """
        policy = self._cache.policy
        slot = min(self._position, policy.last_slot)
        query = np.where(blocks < policy.pinned_blocks, slot, self._position)
        return np.asarray(query - policy.n_sink - blocks * BLOCK)

    def _visible(self, blocks: np.ndarray) -> np.ndarray:
        """Which tokens of closed blocks the query sees: pinned ones, and those in the window."""
        tokens = blocks[:, None] * BLOCK + np.arange(BLOCK)
        pinned = blocks[:, None] < self._cache.policy.pinned_blocks
        return ((tokens >= self._oldest) | pinned).ravel()

    def _parts(self) -> list[tuple[int, int, int]]:
        """(place in `hot`, first token behind the sinks, distance to the query) of each part.

        Sinks are seen from the query's slot, as pinned blocks are.
        """
        policy, newest = self._cache.policy, self._block
        parts = []
        if policy.n_sink:
            parts.append((0, -policy.n_sink, min(self._position, policy.last_slot)))
        for block in range(max(0, newest - RECENT_BLOCKS + 1), newest + 1):
            first = block * BLOCK
            distance = self._position - policy.n_sink - first
            parts.append((self._cache.recent_row(block), first, distance))
        return sorted(parts)

    def _hot_mask(self, parts: list[tuple[int, int, int]]) -> mx.array:
        """The mask over the fp16 tokens up to the last one in use, a row for each part."""
        policy, newest = self._cache.policy, self._position - self._cache.policy.n_sink
        oldest = max(self._oldest, self._cache.closed * BLOCK)
        place, first, _ = parts[-1]
        seen = np.zeros((len(parts), place + min(BLOCK, newest + 1 - first)), dtype=bool)
        for row, (place, first, _) in zip(seen, parts, strict=True):
            width = policy.n_sink if first < 0 else BLOCK
            tokens = first + np.arange(width)
            shown = (tokens < 0) | ((tokens >= oldest) & (tokens <= newest))
            row[place : place + width] = shown[: len(row) - place]
        return _mask(seen)

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """Store the token's key and value and return its attention over the cache.

        q: (1, n_heads, head_dim), scaled; k, v: (1, n_kv_heads, head_dim); neither rotated.
        Returns (1, n_heads, head_dim) in q's dtype.
        """
        arrays, pool = self._cache.layers[layer], self._cache.pool
        # Keys and values need no query: their side of the work runs beside its projection.
        with beside():
            self._append(arrays, k, v)
            hot = arrays.hot[:, :, : self._sight.hot_mask.shape[-1]]
        blocks = pool.read(layer, self._slots) if self._slots else None
        n_kv_heads = k.shape[1]
        out = decode_attention(
            q.reshape(n_kv_heads, -1, q.shape[-1]),
            self._sight,
            blocks,
            hot,
        )
        if self._closing.kept:
            self._close(layer, arrays)
        return out.reshape(q.shape)

    def _append(self, arrays: LayerArrays, k: mx.array, v: mx.array) -> None:
        pair = mx.concatenate([k[0] @ self._key_rotation, v[0]]).astype(mx.float16)
        arrays.hot[:, :, self._place] = pair.reshape(2, *k.shape[1:])

    def _close(self, layer: int, arrays: LayerArrays) -> None:
        row = self._cache.recent_row(self._closing.first)
        full = arrays.hot[:, None, :, row : row + BLOCK]
        blocks = close(full[0], full[1], self._cache.policy.layers[layer])
        self._cache.pool.write(layer, self._closing.slots, blocks)


def _mask(seen: np.ndarray) -> mx.array:
    return mx.array(np.where(seen, 0.0, MASKED).astype(np.float32))
