"""Which layers' keys four bits would break: those with a large constant in a fast channel.

A key that is w x + b, with b large, as in Qwen2.5, turns with its place in the block: after the
rotation the pair of channels i runs around a circle of the radius of b's pair. In slow pairs the
circle is hardly begun within 64 tokens and the zero of the channel's scale takes b up; in fast
ones the range of the codes becomes twice the radius, and the key's own part drowns in a step.

Measured on a random model of two layers, one key channel of the first at 100 (300), divergence in
nats: four bits 0.221 (0.494), that layer's keys in eight bits 0.012 (0.021), and the constant
taken off before four-bit codes and added back 0.030 (0.030), which is what four bits cost without
any constant. Eight bits in few layers are the better remedy and need no path of their own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgekv.cache.rope import Rope
from edgekv.metal.tile import BLOCK
from edgekv.models.shape import ModelShape

LIMIT = 0.25
"""Error of a score, in nats for queries of unit size, that the constant part alone may cause. The
part of the keys that does vary causes 0.1 to 0.2 of it in four bits (channels of deviation one to
two), which is what `eval kld` shows to be harmless."""

Numbers = NDArray[np.float64]


def score_error(bias: Numbers, rope: Rope, bits: int = 4) -> float:
    """The error of scores that quantizing a constant key makes: standard deviation, in nats.

    bias: (n_kv_heads, head_dim), of which the worst head counts. A step is the range of a channel
    over a block's 64 places by 2^bits - 1, its error a twelfth of its square, and the scores are
    scaled by 1 / sqrt(head_dim).
    """
    low, high = np.split(bias, 2, axis=-1)
    angles = np.arange(BLOCK)[:, None, None] * rope.frequencies
    cos, sin = np.cos(angles), np.sin(angles)
    turned = np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    steps = np.ptp(turned, axis=0) / (2**bits - 1)
    variances = (steps**2 / 12).sum(axis=-1) / bias.shape[-1]
    return float(np.sqrt(variances.max()))


def sensitive_layers(biases: Sequence[Numbers | None], rope: Rope) -> frozenset[int]:
    """The layers, of those with a key bias (n_kv_heads, head_dim), whose keys need more bits."""
    return frozenset(
        layer
        for layer, bias in enumerate(biases)
        if bias is not None and score_error(bias, rope) > LIMIT
    )


def guarded(shape: ModelShape, weights: Mapping[str, mx.array], rope: Rope) -> ModelShape:
    """The shape of a checkpoint with its sensitive layers; reads no weights but key biases."""
    found = [weights.get(f"model.layers.{i}.self_attn.k_proj.bias") for i in range(shape.n_layers)]
    biases = [
        None
        if bias is None
        else np.array(bias.astype(mx.float32), np.float64).reshape(-1, shape.head_dim)
        for bias in found
    ]
    return replace(shape, sensitive=sensitive_layers(biases, rope))
