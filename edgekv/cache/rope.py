"""Rotary position embeddings as the cache uses them: tables of small positions, made on the host.

Rotations compose, so a key rotated by its offset inside its block and a query rotated by its
distance to the block's first token give the same score as absolute positions do (Su et al.,
RoFormer, arXiv 2104.09864, section 3.4.2). No position larger than the cache ever reaches a sine.
"""

from collections.abc import Sequence
from functools import cached_property

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgekv.metal.rotary import RotaryTable, Turns

Positions = Sequence[int] | NDArray[np.int64]


class Rope:
    """Frequencies of a model's rotary embedding, in radians a position, computed in float64.

    attention_factor multiplies queries and keys in models with YaRN. Keys are rotated in more
    than one step here, so queries carry it for both.
    """

    def __init__(self, frequencies: NDArray[np.float64], attention_factor: float = 1.0) -> None:
        self.frequencies = frequencies
        self.attention_factor = attention_factor

    @property
    def head_dim(self) -> int:
        return 2 * len(self.frequencies)

    def for_keys(self, positions: Positions) -> RotaryTable:
        """The rotations of whole positions, which may be negative."""
        return self._table(positions, 1.0)

    def for_queries(self, positions: Positions) -> RotaryTable:
        """The same, with the attention factor of both sides."""
        return self._table(positions, self.attention_factor**2)

    @cached_property
    def turns(self) -> Turns:
        """The same rotations for a kernel, factor included."""
        frequencies = np.round(self.frequencies / (2 * np.pi) * 2**32).astype(np.uint32)
        return Turns(mx.array(frequencies), mx.array(self.attention_factor**2, mx.float32))

    def _table(self, positions: Positions, factor: float) -> RotaryTable:
        angles = np.outer(np.asarray(positions, dtype=np.float64), self.frequencies)
        cos = (np.cos(angles) * factor).astype(np.float32)
        sin = (np.sin(angles) * factor).astype(np.float32)
        return RotaryTable(mx.array(np.hstack([cos, cos])), mx.array(np.hstack([-sin, sin])))
