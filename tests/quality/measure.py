"""Perplexity and divergence of a cache policy, on the product's own forward path."""

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from edgekv import blas
from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.generate import PREFILL_CHUNK, chunks, forward
from edgekv.loading import open_checkpoint
from edgekv.models.layers import Decoder
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape
from edgekv.tokenizer import Tokenizer

TEXT = Path(__file__).parent.parent / "data" / "mansfield_park.txt"
ROWS = 128
"""Rows of scores made at once: a full matrix over 49,152 words does not fit a small machine."""


@dataclass(frozen=True)
class Loaded:
    """A model with all that a sequence of it needs."""

    model: Decoder
    rope: Rope
    shape: ModelShape
    tokenizer: Tokenizer

    def cache(self, policy: CachePolicy) -> SequenceCache:
        return SequenceCache(policy, self.rope)

    def policy(self, window: int, bits: int = 4, n_sink: int = 4) -> CachePolicy:
        return self.shape.policy(window, n_sink, bits, bits)

    def text(self) -> list[int]:
        return self.tokenizer.encode(TEXT.read_text("utf-8"))


@functools.cache
def load(path: Path) -> Loaded:
    blas.install()
    checkpoint = open_checkpoint(path)
    shape = ModelShape.from_config(checkpoint.config)
    model = build(checkpoint.config, checkpoint.weights)
    return Loaded(model, make_rope(checkpoint.config, shape.head_dim), shape, checkpoint.tokenizer)


@dataclass(frozen=True)
class Divergence:
    """Of one policy's distributions from another's, a number for each token of the text."""

    kld: np.ndarray
    same_top: np.ndarray

    @property
    def mean(self) -> float:
        return float(self.kld.mean())

    @property
    def top1(self) -> float:
        return float(self.same_top.mean())


def hidden_states(
    model: Decoder, cache: SequenceCache, tokens: Sequence[int], size: int = PREFILL_CHUNK
) -> Iterator[mx.array]:
    """Feed the tokens as a prompt; yields the hidden states of each chunk."""
    done = 0
    for n in chunks(cache.length, len(tokens), cache.policy.n_sink, size):
        hidden = forward(model, cache, mx.array(list(tokens[done : done + n])))
        mx.eval(hidden, *cache.arrays())
        done += n
        yield hidden


def log_probabilities(model: Decoder, hidden: mx.array) -> Iterator[mx.array]:
    """(at most ROWS, vocab_size) at a time."""
    for at in range(0, hidden.shape[0], ROWS):
        scores = model.logits(hidden[at : at + ROWS])
        yield scores - mx.logsumexp(scores, axis=-1, keepdims=True)


def nll(model: Decoder, cache: SequenceCache, tokens: Sequence[int], skip: int = 0) -> np.ndarray:
    """Of each token behind the first max(skip, 1), given those before it that the cache keeps."""
    skip = max(skip, 1)
    losses: list[np.ndarray] = []
    first = 0
    for hidden in hidden_states(model, cache, tokens):
        start, first = first, first + hidden.shape[0]
        rows = slice(max(skip - 1 - start, 0), len(tokens) - 1 - start)
        at = start + rows.start
        for log_p in log_probabilities(model, hidden[rows]):
            wanted = mx.array(list(tokens[at + 1 : at + 1 + log_p.shape[0]]))[:, None]
            losses.append(-np.array(mx.take_along_axis(log_p, wanted, axis=-1))[:, 0])
            at += log_p.shape[0]
    return np.concatenate(losses)


def perplexity(losses: np.ndarray) -> float:
    return float(np.exp(losses.mean(dtype=np.float64)))


def divergence(
    model: Decoder,
    reference: SequenceCache,
    other: SequenceCache,
    tokens: Sequence[int],
    sizes: tuple[int, int] = (PREFILL_CHUNK, PREFILL_CHUNK),
) -> Divergence:
    """KL(reference || other) in nats and equality of the best token, at every position.

    Both caches are fed side by side, in chunks of the given sizes, so that no more than ROWS
    distributions exist at once.
    """
    klds: list[np.ndarray] = []
    same: list[np.ndarray] = []
    caches = zip((reference, other), sizes, strict=True)
    p_rows, q_rows = (_rows(model, cache, tokens, size) for cache, size in caches)
    for p, q in zip(p_rows, q_rows, strict=True):
        klds.append(np.array((mx.exp(p) * (p - q)).sum(axis=-1)))
        same.append(np.array(p.argmax(axis=-1) == q.argmax(axis=-1)))
    return Divergence(np.concatenate(klds), np.concatenate(same))


def _rows(
    model: Decoder, cache: SequenceCache, tokens: Sequence[int], size: int
) -> Iterator[mx.array]:
    """Log-probabilities in groups of ROWS, whatever the chunks were."""
    waiting: list[mx.array] = []
    for hidden in hidden_states(model, cache, tokens, size):
        waiting.append(hidden)
        joined = mx.concatenate(waiting)
        full = len(joined) // ROWS * ROWS
        yield from log_probabilities(model, joined[:full])
        waiting = [joined[full:]]
    yield from log_probabilities(model, waiting[0])
