"""How far a policy's distributions are from those over an fp16 cache that forgets nothing."""

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from edgekv.cache.policy import CachePolicy
from edgekv.evaluation.perplexity import exp_mean
from edgekv.evaluation.walk import Numbers, Score, of, scores
from edgekv.models.layers import Decoder

COLUMNS = 4
"""Numbers of one policy for each token."""


@dataclass(frozen=True)
class Divergence:
    """numbers: (tokens, 4), of each token the KL(reference || policy) in nats, whether the best
    token is the same, and the loss of the policy and of the reference."""

    numbers: Numbers

    @property
    def kld(self) -> Numbers:
        return self.numbers[:, 0]

    @property
    def mean(self) -> float:
        return float(self.kld.mean(dtype=np.float64))

    @property
    def p99(self) -> float:
        return float(np.percentile(self.kld, 99))

    @property
    def top1(self) -> float:
        """The share of places where both would choose the same token."""
        return float(self.numbers[:, 1].mean(dtype=np.float64))

    @property
    def ppl(self) -> float:
        return exp_mean(self.numbers[:, 2])

    @property
    def ppl_reference(self) -> float:
        return exp_mean(self.numbers[:, 3])


def reference_policy(policy: CachePolicy, tokens: int) -> CachePolicy:
    """Sixteen bits and a window of so many tokens: attention over all of a text that long."""
    layers = tuple(replace(layer, k_bits=16, v_bits=16) for layer in policy.layers)
    return replace(policy, window=tokens, layers=layers, n_pinned=0)


def compare(model: Decoder) -> Score:
    """Scores each further cache's hidden states against the first's: the columns of Divergence."""

    def score(hidden: list[mx.array], wanted: mx.array) -> Numbers:
        parts = []
        for rows, (reference, *others) in scores(model, hidden):
            parts.append(mx.concatenate(_columns(reference, others, wanted[rows]), axis=1))
            mx.eval(parts[-1])
        return np.array(mx.concatenate(parts))

    return score


def _columns(p: mx.array, others: list[mx.array], wanted: mx.array) -> list[mx.array]:
    """KL(p || q) = sum of softmax(p) (p - q) - logsumexp(p) + logsumexp(q), for scores p and q."""
    share, best = mx.softmax(p, axis=-1), p.argmax(axis=-1)
    total = mx.logsumexp(p, axis=-1)
    columns = []
    for q in others:
        own = mx.logsumexp(q, axis=-1)
        kld = (share * (p - q)).sum(axis=-1) - total + own
        same = (q.argmax(axis=-1) == best).astype(mx.float32)
        columns.append(mx.stack([kld, same, own - of(q, wanted), total - of(p, wanted)], axis=1))
    return columns


def each(numbers: Numbers) -> list[Divergence]:
    """The divergences of several policies that `compare` scored side by side."""
    edges = range(0, numbers.shape[1], COLUMNS)
    return [Divergence(numbers[:, at : at + COLUMNS]) for at in edges]
