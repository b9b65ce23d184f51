"""The online-softmax rule: attention over parts of the keys, put together exactly.

Source: Milakov and Gimelshein, arXiv 1805.02867; FlashAttention, arXiv 2205.14135, section 3.1.
"""

from collections.abc import Sequence
from typing import NamedTuple

import mlx.core as mx

MASKED = -1e30
"""Added to a score that must not count. Finite, so that a wholly masked part yields no NaN:
its maximum is so low that merging gives it the weight zero."""


class Partial(NamedTuple):
    """Attention over one part of the keys, before division by the sum.

    top: (..., n, 1) the largest score; total: (..., n, 1) the sum of exp(score - top);
    out: (..., n, head_dim) the values weighted by exp(score - top). All fp32.
    """

    top: mx.array
    total: mx.array
    out: mx.array


def partial(scores: mx.array, values: mx.array) -> Partial:
    """scores (..., n, keys) in fp32, masked ones near MASKED; values (..., keys, head_dim)."""
    top = scores.max(axis=-1, keepdims=True)
    weights = mx.exp(scores - top)
    out = weights.astype(values.dtype) @ values
    return Partial(top, weights.sum(axis=-1, keepdims=True), out.astype(mx.float32))


def join(parts: Sequence[Partial]) -> Partial:
    """The partial attention over all parts together."""
    top = parts[0].top
    for part in parts[1:]:
        top = mx.maximum(top, part.top)
    shares = [mx.exp(part.top - top) for part in parts]
    total = sum(
        (p.total * s for p, s in zip(parts[1:], shares[1:], strict=True)),
        start=parts[0].total * shares[0],
    )
    out = sum(
        (p.out * s for p, s in zip(parts[1:], shares[1:], strict=True)),
        start=parts[0].out * shares[0],
    )
    return Partial(top, total, out)


def merge(parts: Sequence[Partial]) -> mx.array:
    """The attention output (..., n, head_dim) over all parts together, fp32.

    At least one key of each row must count in at least one part.
    """
    whole = join(parts)
    return whole.out / whole.total
