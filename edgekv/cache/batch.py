"""Steps of several sequences as one: the rows of a batch, each run through its own cache."""

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx

from edgekv.cache.step import Step


class BatchStep:
    """`attend` must be called once for every layer, with the rows of all steps, in their order."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self._steps = steps
        ends = list(accumulate(step.n for step in steps))
        self._rows = list(zip([0, *ends], ends, strict=False))

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        """q: (n, n_heads, head_dim); k, v: (n, n_kv_heads, head_dim). Returns q's shape."""
        return mx.concatenate(
            [
                step.attend(layer, q[first:last], k[first:last], v[first:last])
                for step, (first, last) in zip(self._steps, self._rows, strict=True)
            ]
        )
