"""Bits by layer for a budget: what each layer's keys and values bear, then the best division.

Layers differ in what they bear, and keys from values (KVTuner, arXiv 2502.04420). One side of one
layer is stored in few bits, all else in sixteen, and the divergence is measured. The error of
uniform codes has a variance of (range / (2^bits - 1))^2 / 12, and the divergence of a small error
grows with its variance, so one measurement gives the cost of any other bits.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from edgekv.cache.bits import LayerBits, with_bits
from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.evaluation.divergence import compare, each, reference_policy
from edgekv.evaluation.walk import Keeper, Numbers, Walk, Watch, one_by_one, walk_on
from edgekv.models.layers import Decoder

CHOICES = (2, 3, 4, 8)
PROBES = (3, 2)
"""Bits that keys and values are measured at: few enough to show, and keys bear less."""

GROUP = 5
"""Sides measured against one pass of the reference."""

TOKENS = 512
"""Tokens that are read for it, the second half of which is scored."""


@dataclass(frozen=True)
class Side:
    """Keys (0) or values (1) of one layer."""

    layer: int
    side: int

    def probe(self, policy: CachePolicy) -> CachePolicy:
        bits = [(16, 16)] * len(policy.layers)
        one = (PROBES[0], 16) if self.side == 0 else (16, PROBES[1])
        return with_bits(policy, [*bits[: self.layer], one, *bits[self.layer + 1 :]])


def sides(n_layers: int) -> list[Side]:
    return [Side(layer, side) for layer in range(n_layers) for side in (0, 1)]


def sensitivities(
    model: Decoder,
    rope: Rope,
    policy: CachePolicy,
    tokens: Sequence[int],
    walk: Walk,
    watch: Watch,
    keeper: Keeper | None = None,
) -> Numbers:
    """Divergences (n_layers, 2) of keys and values of one layer alone at PROBES bits, in nats.

    The walk counts groups of sides. Raises Cancelled, with the walk kept.
    """
    wide = reference_policy(policy, len(tokens))
    every = sides(len(policy.layers))
    groups = [every[at : at + GROUP] for at in range(0, len(every), GROUP)]

    def measure(group: list[Side], watch: Watch) -> Numbers:
        caches = [SequenceCache(p, rope) for p in (wide, *(side.probe(wide) for side in group))]
        half = len(tokens) // 2
        found = walk_on(model, Walk(caches), tokens, compare(model), watch, skip=half)
        return np.array([[one.mean] for one in each(found)], dtype=np.float32)

    return one_by_one(groups, measure, walk, watch, keeper).reshape(-1, 2)


def cost(measured: float, probe: int, bits: int) -> float:
    """The divergence to expect of other bits than those measured."""
    steps: float = (2**probe - 1) / (2**bits - 1)
    return max(measured, 0.0) * steps**2


def divide(measured: Numbers, mean_bits: float) -> list[LayerBits]:
    """The bits of each layer with the least sum of costs, at most so many in the mean.

    Each bit goes where it saves most: costs fall ever more slowly, so that greed is right but for
    the last few bits. Raises InvalidValue below the fewest bits there are.
    """
    n_layers = len(measured)
    if mean_bits < CHOICES[0]:
        raise InvalidValue(f"{mean_bits:g} bits in the mean are below the fewest, {CHOICES[0]}")
    bits = np.full((n_layers, 2), CHOICES[0])
    left = int(mean_bits * 2 * n_layers + 1e-6) - int(bits.sum())
    while best := max(_raises(measured, bits, left), default=None):
        _, layer, side, more = best
        left -= more - int(bits[layer, side])
        bits[layer, side] = more
    return [(int(k), int(v)) for k, v in bits]


def _raises(
    measured: Numbers, bits: "np.ndarray[tuple[int, int], np.dtype[np.int64]]", left: int
) -> Iterator[tuple[float, int, int, int]]:
    """(saved a bit, layer, side, bits) of each side's next choice that is within what is left."""
    for layer, side in np.ndindex(*bits.shape):
        now = int(bits[layer, side])
        if now == CHOICES[-1]:
            continue
        more = CHOICES[CHOICES.index(now) + 1]
        value, probe = float(measured[layer, side]), PROBES[side]
        saved = cost(value, probe, now) - cost(value, probe, more)
        if more - now <= left:
            yield saved / (more - now), layer, side, more


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
