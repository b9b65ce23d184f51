"""A trial of the kernels on this machine's GPU, against their twins, before anything relies on it.

A paravirtual GPU, as hosted Macs have, has been seen to answer with zeros and no error.
"""

import mlx.core as mx
import numpy as np

from edgekv.metal import fused, packed, reference
from edgekv.metal.merge import MASKED
from edgekv.metal.packed import Blocks
from edgekv.metal.reference import Sight
from edgekv.metal.rotary import RotaryTable, Turns, matrices
from edgekv.metal.tile import BLOCK

HEADS, GROUP, DIM, BITS = 2, 2, 64, 4
TOLERANCE = 0.01
"""Far above what the rounding of products to 11 bits comes to, as some GPUs do it for the twin, and
far below outputs, whose largest here is 0.35."""

# Every channel pair makes a quarter turn a token, so the angles are known without a cosine.
QUARTER_TURN = 1 << 30
DISTANCE = 1
# More tiles than one threadgroup takes, of blocks in no order; both kernels of decode run.
SLOTS = (2, 0, 1) * 8


def fault() -> str | None:
    """What is wrong with the kernels here, in a few words; None if nothing is."""
    try:
        return _close_fault() or _decode_fault()
    # MLX raises whatever the Metal compiler and the driver come up with.
    except Exception as error:
        return f"they do not run: {str(error).strip().splitlines()[0]}"


def _draw(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float16))


def _pool() -> Blocks:
    keys, values = _draw(0, 2, 3, HEADS, BLOCK, DIM)
    return packed.close(keys, values, BITS, BITS, DIM)


def _close_fault() -> str | None:
    keys, values = _draw(0, 2, 3, HEADS, BLOCK, DIM)
    found, wanted = _arrays(fused.close(keys, values, BITS, BITS, DIM)), _arrays(_pool())
    same = all(mx.array_equal(a, b).item() for a, b in zip(found, wanted, strict=True))
    return None if same else "closed blocks differ from plain operations"


def _arrays(blocks: Blocks) -> tuple[mx.array, ...]:
    return *blocks.keys, *blocks.values


def _decode_fault() -> str | None:
    q = _draw(1, 1, HEADS * GROUP, DIM).astype(mx.float32) * DIM**-0.5
    hot = _draw(2, 2, HEADS, BLOCK, DIM)
    blocks = _pool()
    tiles = [fused.Tile(slot, DISTANCE, 0, BLOCK) for slot in SLOTS]
    tiles.append(fused.Tile(~0, DISTANCE, 3, BLOCK))
    turns = Turns(mx.full((DIM // 2,), QUARTER_TURN, mx.uint32), mx.array(1.0))
    found = fused.decode_attention(q, mx.array([tiles], mx.int32), turns, blocks, hot)
    wanted = reference.decode_attention(
        q.reshape(HEADS, GROUP, DIM), _sight(), _take(blocks), hot
    ).reshape(q.shape)
    off = float(mx.abs(found - wanted).max())
    # Not the other way round: a NaN must not pass.
    return None if off <= TOLERANCE else f"attention is off by {off:.2g} from plain operations"


def _sight() -> Sight:
    quarter = mx.concatenate([mx.full((1, DIM // 2), -1.0), mx.full((1, DIM // 2), 1.0)], axis=-1)
    turned = RotaryTable(mx.zeros((1, DIM)), quarter)
    n = len(SLOTS)
    far = RotaryTable(mx.zeros((n, DIM)), mx.repeat(quarter, n, axis=0)).over(2)
    seen = mx.where(mx.arange(BLOCK) >= 3, 0.0, MASKED)[None]
    return Sight(far, None, matrices(turned), seen)


def _take(blocks: Blocks) -> Blocks:
    at = mx.array(SLOTS)
    return Blocks(*(tuple(array[at] for array in matrix) for matrix in blocks))
