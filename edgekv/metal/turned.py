"""Closed blocks as attention over many queries takes them: expanded, and their keys rotated."""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

from edgekv.metal.packed import Blocks, expand
from edgekv.metal.rotary import RotaryTable, rotate
from edgekv.metal.segments import KeysValues
from edgekv.metal.tile import BLOCK


class Turned(NamedTuple):
    """Blocks, in one or more runs, and the rotation of each: (blocks, 1, 1, head_dim)."""

    runs: Sequence[Blocks]
    rotations: RotaryTable


def expand_turned(turned: Turned, dtype: mx.Dtype) -> KeysValues:
    """Keys and values, both (n_kv_heads, blocks * 64, head_dim), in plain operations."""
    dim = turned.rotations.cos.shape[-1]
    keys = mx.concatenate([expand(run.keys, BLOCK, dtype).swapaxes(-1, -2) for run in turned.runs])
    values = mx.concatenate([expand(run.values, dim, dtype) for run in turned.runs])
    return _tokens(rotate(keys, turned.rotations)), _tokens(values)


def _tokens(blocks: mx.array) -> mx.array:
    """(n, heads, 64, head_dim) as (heads, n * 64, head_dim)."""
    n, heads, width, dim = blocks.shape
    return blocks.swapaxes(0, 1).reshape(heads, n * width, dim)
