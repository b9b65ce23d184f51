"""One new token: where it goes, what it sees, and the attention of every layer."""

import mlx.core as mx
import numpy as np

from edgekv.cache.block import close
from edgekv.cache.policy import RECENT_BLOCKS
from edgekv.cache.sequence import LayerArrays, SequenceCache
from edgekv.metal.attention import decode_attention
from edgekv.metal.merge import MASKED
from edgekv.metal.rotary import rotate
from edgekv.metal.tile import BLOCK


class DecodeStep:
    """The step of one token behind the sinks; `attend` must be called once for every layer."""

    n = 1

    def __init__(self, cache: SequenceCache) -> None:
        policy = cache.policy
        self._cache = cache
        self._position = cache.length
        block, self._offset = divmod(self._position - policy.n_sink, BLOCK)
        self._row = block % RECENT_BLOCKS
        held = [(slot, b) for b, slot in enumerate(cache.pinned)]
        held += [(slot, b) for b, slot in enumerate(cache.ring, cache.ring_start)]
        # Attention does not mind the order of its keys, and ascending slots are one view.
        held.sort()
        self._slots = [slot for slot, _ in held]
        blocks = np.array([b for _, b in held], dtype=np.int64)
        recent = np.array([block - (block + r) % 2 for r in range(RECENT_BLOCKS)])
        self._rotations = cache.rope.table(self._distances(blocks, recent)).over(2)
        self._key_rotation = cache.rope.table([self._offset])
        self._mask = mx.array(self._visible(blocks, recent, cache.closed))
        self._closing = cache.advance(1)

    def _distances(self, blocks: np.ndarray, recent: np.ndarray) -> np.ndarray:
        """From the first token of each part to the query, for anchors as if the cache were all.

        A cached prefix keeps the position that it has in the cache (StreamingLLM,
        arXiv 2309.17453, section 3.2): the query stands at most at the last slot before it.
        """
        policy = self._cache.policy
        slot = min(self._position, policy.last_slot)
        query = np.where(blocks < policy.pinned_blocks, slot, self._position)
        starts = policy.n_sink + blocks * BLOCK
        return np.concatenate(
            [query - starts, self._position - policy.n_sink - recent * BLOCK, [slot]]
        )

    def _visible(self, blocks: np.ndarray, recent: np.ndarray, closed: int) -> np.ndarray:
        """The mask over closed, recent and sink keys."""
        policy = self._cache.policy
        offsets = np.arange(BLOCK)
        oldest = self._position - policy.window + 1 - policy.n_sink
        stored = blocks[:, None] * BLOCK + offsets
        seen = (stored >= oldest) | (blocks[:, None] < policy.pinned_blocks)
        fresh = recent[:, None] * BLOCK + offsets
        newest = self._position - policy.n_sink
        near = (fresh >= max(oldest, closed * BLOCK)) & (fresh <= newest)
        shown = np.concatenate([seen.ravel(), near.ravel(), np.ones(policy.n_sink, bool)])
        return np.where(shown, 0.0, MASKED).astype(np.float32)

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """Store the token's key and value and return its attention over the cache.

        q: (1, n_heads, head_dim), scaled; k, v: (1, n_kv_heads, head_dim); neither rotated.
        Returns (1, n_heads, head_dim) in q's dtype.
        """
        arrays, pool = self._cache.layers[layer], self._cache.pool
        self._append(arrays, k, v)
        blocks = pool.read(layer, self._slots) if self._slots else None
        n_kv_heads = k.shape[1]
        out = decode_attention(
            q.reshape(n_kv_heads, -1, q.shape[-1]),
            self._rotations,
            blocks,
            arrays.recent,
            arrays.sinks,
            self._mask,
        )
        if self._closing.kept:
            self._close(layer, arrays)
        return out.reshape(q.shape)

    def _append(self, arrays: LayerArrays, k: mx.array, v: mx.array) -> None:
        pair = mx.concatenate([rotate(k, self._key_rotation), v]).astype(mx.float16)
        arrays.recent[self._row, :, :, self._offset] = pair

    def _close(self, layer: int, arrays: LayerArrays) -> None:
        row = self._closing.first % RECENT_BLOCKS
        blocks = close(
            arrays.recent[row : row + 1, 0],
            arrays.recent[row : row + 1, 1],
            self._cache.policy.layers[layer],
        )
        self._cache.pool.write(layer, self._closing.slots, blocks)
