"""One new token on the host: what DecodeStep does, in numpy on the memory of the same arrays."""

import mlx.core as mx
import numpy as np

from edgekv.cache.decode import close_recent
from edgekv.cache.pool import as_slice
from edgekv.cache.reach import reach
from edgekv.cache.sequence import SequenceCache
from edgekv.metal.host import Far, Floats, Hot, decode_attention, on_host, rotate, view
from edgekv.metal.merge import MASKED


class HostStep:
    """The step of one token behind the sinks; `attend` must be called once for every layer.

    It writes into the fp16 arrays of the cache in place, which MLX cannot see: nobody else may
    hold them.
    """

    def __init__(self, cache: SequenceCache) -> None:
        # A block that DecodeStep closed may still have to be made from what is written over here.
        mx.eval([cache.pool.blocks(layer) for layer in range(len(cache.layers))])
        rope, seen = cache.rope, reach(cache)
        self._cache, self._reach = cache, seen
        self._rows = [slice(p.place + p.start, p.place + p.stop) for p in seen.parts]
        self._hot_rotations = on_host(rope.for_queries([p.distance for p in seen.parts]))
        if seen.slots:
            self._slots = as_slice(seen.slots) or np.array(seen.slots)
        self._far_rotations = on_host(rope.for_queries(seen.distances))
        self._far_mask = np.where(seen.seen.ravel(), 0.0, MASKED).astype(np.float32)
        self._key_rotation = on_host(rope.for_keys([seen.offset]))
        self._closing = cache.advance(1)

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        """Store the token's key and value and return its attention over the cache.

        q: (1, n_heads, head_dim), scaled; k, v: (1, n_kv_heads, head_dim); neither rotated.
        Returns (1, n_heads, head_dim).
        """
        cache = self._cache
        pair = view(cache.layers[layer].hot)
        pair[0, :, self._reach.place] = rotate(k[0], self._key_rotation)[0]
        pair[1, :, self._reach.place] = v[0]
        hot, far = Hot(pair, self._rows, self._hot_rotations), None
        if self._reach.slots:
            far = Far(cache.pool.blocks(layer), self._slots, self._far_rotations, self._far_mask)
        out = decode_attention(q[0], hot, far)[None]
        if self._closing.kept:
            close_recent(cache, layer, self._closing.first, self._closing.slots)
            # Before the next token is written into the arrays that the block is made from.
            mx.eval(cache.pool.blocks(layer))
        return out
