"""One new token of each of several sequences: the rows of a batch, each through its own cache."""

from collections.abc import Sequence

import mlx.core as mx
import numpy as np

from edgekv.cache.host import HostStep
from edgekv.cache.step import Step
from edgekv.metal.host import Floats


class BatchStep:
    """`attend` must be called once for every layer, with a row for each step, in their order."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """q: (n, n_heads, head_dim); k, v: (n, n_kv_heads, head_dim). Returns q's shape."""
        rows = zip(self._steps, q[:, None], k[:, None], v[:, None], strict=True)
        return mx.concatenate([step.attend(layer, *row) for step, *row in rows])


class HostBatchStep:
    """The same on the host."""

    def __init__(self, steps: Sequence[HostStep]) -> None:
        self._steps = steps

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
        rows = zip(self._steps, q[:, None], k[:, None], v[:, None], strict=True)
        return np.concatenate([step.attend(layer, *row) for step, *row in rows])
