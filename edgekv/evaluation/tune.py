"""Bits by layer for a budget: what each layer's keys and values bear, then the best division.

Layers differ in what they bear, and keys from values (KVTuner, arXiv 2502.04420). One side of one
layer is stored in three bits, all else in sixteen, and the divergence is measured: so much it
costs. How that grows with fewer bits and falls with more is measured on all layers' keys, and on
all their values. By the variance of uniform codes, 1 / (2^bits - 1)^2, the third bit would save
four fifths; on the default model it saves nine tenths of what keys cost (SmolLM2-135M, 512 tokens).
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.bits import LayerBits, with_bits
from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.evaluation.divergence import compare, each, reference_policy
from edgekv.evaluation.walk import Keeper, Numbers, Walk, Watch, one_by_one, walk_on
from edgekv.models.layers import Decoder

CHOICES = (2, 3, 4, 8)
PROBE = CHOICES.index(3)
"""Which of them one side of one layer is measured at: few enough to show."""

GROUP = 5
"""Probes measured against one pass of the reference."""

TOKENS = 512
"""Tokens that are read for it, the second half of which is scored."""

Costs = NDArray[np.float32]
"""(n_layers, 2, len(CHOICES)): what keys and values of each layer cost in so many bits, in nats."""

_LEAST = 1e-12
"""A divergence below this is rounding."""


def probes(n_layers: int) -> list[list[LayerBits]]:
    """What is measured: each layer's keys, then its values, alone; then those of all layers."""
    found = []
    for layer, side in np.ndindex(n_layers, 2):
        bits = [(16, 16)] * n_layers
        bits[layer] = _one(side, CHOICES[PROBE])
        found.append(bits)
    return found + [[_one(side, bits)] * n_layers for side in (0, 1) for bits in CHOICES]


def _one(side: int, bits: int) -> LayerBits:
    """Keys (0) or values (1) in so many bits, the other in sixteen."""
    return (bits, 16) if side == 0 else (16, bits)


def sensitivities(
    model: Decoder,
    rope: Rope,
    policy: CachePolicy,
    tokens: Sequence[int],
    walk: Walk,
    watch: Watch,
    keeper: Keeper | None = None,
) -> Costs:
    """What each side of each layer costs in each of the bits there are to choose from.

    The walk counts groups of probes. Raises Cancelled, with the walk kept.
    """
    wide = reference_policy(policy, len(tokens))
    every = probes(len(policy.layers))
    groups = [every[at : at + GROUP] for at in range(0, len(every), GROUP)]

    def measure(group: list[list[LayerBits]], watch: Watch) -> Numbers:
        policies = (wide, *(with_bits(wide, bits) for bits in group))
        caches = [SequenceCache(policy, rope) for policy in policies]
        half = len(tokens) // 2
        found = walk_on(model, Walk(caches), tokens, compare(model), watch, skip=half)
        return np.array([[one.mean] for one in each(found)], dtype=np.float32)

    measured = np.maximum(one_by_one(groups, measure, walk, watch, keeper)[:, 0], _LEAST)
    alone, together = np.split(measured, [2 * len(policy.layers)])
    return costs(alone.reshape(-1, 2), together.reshape(2, -1))


def costs(alone: Numbers, together: Numbers) -> Costs:
    """From one side of one layer in PROBE's bits (n_layers, 2), and one of all (2, CHOICES)."""
    growth = together / together[:, PROBE, None]
    return alone[:, :, None] * growth


def divide(costs: Costs, mean_bits: float) -> list[LayerBits]:
    """The bits of each layer with the least sum of costs, at most so many in the mean.

    Each bit goes where it saves most: costs fall ever more slowly, so that greed is right but for
    the last few bits. Keys of two bits fail seldom and badly, which a short text does not show:
    there are none where the budget has room for three. Raises InvalidValue below the fewest bits
    there are.
    """
    if mean_bits < CHOICES[0]:
        raise InvalidValue(f"{mean_bits:g} bits in the mean are below the fewest, {CHOICES[0]}")
    chosen = np.zeros(costs.shape[:2], dtype=np.intp)
    left = int(mean_bits * chosen.size + 1e-6) - CHOICES[0] * chosen.size
    step = CHOICES[1] - CHOICES[0]
    if left >= step * len(costs):
        chosen[:, 0] += 1
        left -= step * len(costs)
    while best := max(_raises(costs, chosen, left), default=None):
        _, layer, side, bits = best
        left -= bits
        chosen[layer, side] += 1
    return [(CHOICES[k], CHOICES[v]) for k, v in chosen]


def _raises(
    costs: Costs, chosen: NDArray[np.intp], left: int
) -> Iterator[tuple[float, int, int, int]]:
    """(saved a bit, layer, side, bits) of each side's next choice that is within what is left."""
    for layer, side in np.ndindex(*chosen.shape):
        now = int(chosen[layer, side])
        if now + 1 == len(CHOICES):
            continue
        bits = CHOICES[now + 1] - CHOICES[now]
        saved = float(costs[layer, side, now] - costs[layer, side, now + 1])
        if bits <= left:
            yield saved / bits, layer, side, bits


def mean_bits_of(policy: CachePolicy, budget: int) -> float:
    """How many bits a number may have in the mean for the policy to be within so many bytes.

    Raises DoesNotFit where not even two-bit blocks are.
    """
    few, more = (with_bits(policy, [(b, b)] * len(policy.layers)).nbytes for b in (2, 4))
    if budget < few:
        raise DoesNotFit(
            f"a KV budget of {budget:,} bytes is below the {few:,} bytes that a window of "
            f"{policy.window} tokens takes in two bits: raise --kv-budget or lower --window"
        )
    # Bytes grow by the same with each bit: scales and zeros are the same for all.
    return 2 + 2 * (budget - few) / (more - few) if more > few else float(CHOICES[-1])
