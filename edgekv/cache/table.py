"""What a new token sees, as the table that the decode kernel reads."""

import mlx.core as mx
import numpy as np

from edgekv.cache.reach import Reach
from edgekv.metal.fused import Tile

UNSEEN = Tile(0, 0, 0, 0)


def table(seen: Reach) -> mx.array:
    """A `Tile` for each closed block and each part of the fp16 tokens: (1, tiles, 4) int32."""
    # The window is one run of tokens, so those seen of a block are one run too.
    starts = seen.seen.argmax(axis=1)
    stops = starts + seen.seen.sum(axis=1)
    blocks = zip(seen.slots, seen.distances, starts, stops, strict=True)
    tiles = [Tile(*map(int, block)) for block in blocks]
    tiles += [Tile(~p.place, p.distance, p.start, p.stop) for p in seen.parts]
    # MLX passes fewer than eight numbers in another address space: another kernel to compile.
    tiles += [UNSEEN] * (2 - len(tiles))
    return mx.array(np.array(tiles, dtype=np.int32)[None])
