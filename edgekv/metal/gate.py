"""The gate of SwiGLU (Shazeer, arXiv 2002.05202): silu(gate) * up, silu(x) = x / (1 + exp(-x)).

On the host in numpy: 512 rows of 1,536 take it 1.2 ms, and 12.5 in the plain operations of MLX's
CPU backend, which computes exponentials one by one (mlx 0.32.4, numpy 2.4).
"""

import mlx.core as mx
import numpy as np

from edgekv.metal.device import has_metal
from edgekv.metal.host import Floats, floats

AT_ONCE = 1 << 16
"""Numbers that are worked together: what a core's cache holds several times."""


def gated(gate: mx.array, up: mx.array) -> mx.array:
    """silu(gate) * up, both (n, features)."""
    if has_metal():
        return gate * mx.sigmoid(gate) * up
    mx.eval(gate, up)
    return mx.array(gated_on_host(floats(gate), floats(up))).astype(gate.dtype)


def gated_on_host(gate: Floats, up: Floats) -> Floats:
    """The same of numpy's arrays."""
    out = np.empty_like(gate)
    step = max(1, AT_ONCE // gate.shape[-1])
    # exp overflows to infinity below -88, and the gate is then zero, as it should be.
    with np.errstate(over="ignore"):
        for start in range(0, len(gate), step):
            rows = slice(start, start + step)
            part = np.negative(gate[rows], out=out[rows])
            np.exp(part, out=part)
            part += 1
            np.divide(gate[rows], part, out=part)
            part *= up[rows]
    return out
