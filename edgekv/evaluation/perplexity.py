"""Perplexity of a text read through a cache, by position, so that drift shows."""

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.evaluation.walk import (
    Keeper,
    Numbers,
    Score,
    Walk,
    Watch,
    of,
    one_by_one,
    scores,
    walk_on,
)
from edgekv.models.layers import Decoder

STRETCHES = 16
"""Into how many pieces a long text's perplexity is cut."""


@dataclass(frozen=True)
class Perplexity:
    """nll: of each token but the first, in nats, given those before it that the cache keeps."""

    nll: Numbers

    @property
    def ppl(self) -> float:
        return exp_mean(self.nll)

    def by_position(self) -> list[tuple[int, int, float]]:
        """(first token, last token, perplexity) of each stretch of the text."""
        return [
            (first, last, exp_mean(self.nll[first - 1 : last]))
            for first, last in stretches(len(self.nll) + 1)
        ]


def exp_mean(nll: Numbers) -> float:
    return float(np.exp(nll.mean(dtype=np.float64)))


def stretches(tokens: int) -> list[tuple[int, int]]:
    """The scored tokens 1 to tokens - 1 in pieces of a power of two, 128 at the least."""
    size = 128
    while size * STRETCHES < tokens:
        size *= 2
    edges = [max(1, at) for at in range(0, tokens, size)]
    return [(first, min(first - first % size + size, tokens) - 1) for first in edges]


def nll_of(model: Decoder) -> Score:
    """Scores the first cache's hidden states by the loss of each token: one column."""

    def score(hidden: list[mx.array], wanted: mx.array) -> Numbers:
        parts = []
        for rows, (found,) in scores(model, hidden):
            parts.append(mx.logsumexp(found, axis=-1) - of(found, wanted[rows]))
            mx.eval(parts[-1])
        return np.array(mx.concatenate(parts))[:, None]

    return score


def fresh_nll(
    model: Decoder,
    policy: CachePolicy,
    rope: Rope,
    tokens: Sequence[int],
    stretch: tuple[int, int],
    watch: Watch,
) -> Numbers:
    """The losses of tokens first..last where a new cache is given no more than it can hold.

    It is fed the last_slot + 1 tokens before the stretch, then the stretch: it sees the same
    window of the same words as a cache that has read all of the text, but other sinks.
    """
    first, last = stretch
    start = max(0, first - policy.last_slot - 1)
    given = tokens[start : last + 1]
    walk = Walk([SequenceCache(policy, rope)])
    return walk_on(model, walk, given, nll_of(model), watch, skip=first - start)[:, 0]


def fresh(
    model: Decoder,
    policy: CachePolicy,
    rope: Rope,
    tokens: Sequence[int],
    walk: Walk,
    watch: Watch,
    keeper: Keeper | None = None,
) -> list[tuple[int, int, float]]:
    """(first, last, perplexity) of each later stretch behind a new cache.

    The walk counts stretches. Raises Cancelled, with the walk kept.
    """
    later = [stretch for stretch in stretches(len(tokens)) if stretch[0] > policy.last_slot]

    def measure(stretch: tuple[int, int], watch: Watch) -> Numbers:
        return fresh_nll(model, policy, rope, tokens, stretch, watch)[:, None]

    numbers = one_by_one(later, measure, walk, watch, keeper)[:, 0]
    found, at = [], 0
    for first, last in later:
        at, start = at + last + 1 - first, at
        found.append((first, last, exp_mean(numbers[start:at])))
    return found
