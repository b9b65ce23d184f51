"""Prefill in chunks and decode token by token: token ids in, token ids out, no text."""

from collections.abc import Callable, Iterator, Sequence

import mlx.core as mx

from edgekv.cache.batch import BatchStep, HostBatchStep
from edgekv.cache.host import HostStep
from edgekv.cache.policy import CachePolicy
from edgekv.cache.sequence import SequenceCache
from edgekv.cache.step import make_step, takes_one
from edgekv.metal.tile import BLOCK
from edgekv.models.layers import Decoder
from edgekv.sampling import RepetitionPenalty, Sampler

PREFILL_CHUNK = 512
"""Tokens of a prompt computed at once, on a grid of that many behind the sinks."""

Progress = Callable[[int, int], None]
"""Called after each chunk of a prompt with the tokens done and the tokens in all."""


class Cancelled(Exception):
    """The caller's cancel flag was seen between two chunks of a prompt."""


def forward(model: Decoder, cache: SequenceCache, tokens: mx.array) -> mx.array:
    """Take tokens (n,) into a sequence; returns their hidden states (n, hidden_size)."""
    if model.host is not None and takes_one(cache, tokens.shape[0]):
        return model.host(tokens, HostStep(cache))
    return model(tokens, make_step(cache, tokens.shape[0]))


def forward_each(
    model: Decoder, caches: Sequence[SequenceCache], tokens: Sequence[mx.array]
) -> mx.array:
    """Take one token (1,) into each of several sequences; returns their (n, hidden_size)."""
    if len(caches) == 1:
        return forward(model, caches[0], tokens[0])
    rows = mx.concatenate(list(tokens))
    if model.host is not None and all(takes_one(cache, 1) for cache in caches):
        step = HostBatchStep([HostStep(cache) for cache in caches])
        return model.host(rows, step)
    return model(rows, BatchStep([make_step(cache, 1) for cache in caches]))


def forward_by_layer(model: Decoder, cache: SequenceCache, tokens: mx.array) -> Iterator[mx.array]:
    """As `forward`, a layer at each turn; the last gives the hidden states.

    The sequence holds the tokens in all layers, and may be used, once the turns are over.
    """
    return model.model.by_layer(tokens, make_step(cache, tokens.shape[0]))


def chunks(start: int, n: int, n_sink: int, size: int = PREFILL_CHUNK) -> Iterator[int]:
    """Sizes of the pieces of n tokens behind `start`, cut where the grid is cut."""
    assert size % BLOCK == 0
    end = start + n
    while start < end:
        cut = n_sink + (max(0, start - n_sink) // size + 1) * size
        yield min(cut, end) - start
        start = min(cut, end)


def longest_chunk(policy: CachePolicy) -> int:
    """Tokens to compute at once: no more blocks are closed than the ring holds, so that the caller
    can keep each of them."""
    return min(PREFILL_CHUNK, max(1, policy.ring_blocks) * BLOCK)


def prefill(
    model: Decoder,
    cache: SequenceCache,
    tokens: Sequence[int],
    progress: Progress | None = None,
    cancelled: Callable[[], bool] = lambda: False,
) -> mx.array:
    """Take a prompt into a sequence; returns the scores (vocab_size,) behind its last token.

    Each chunk is computed before the next is built, so the peak does not grow with the prompt.
    Raises Cancelled, with whole chunks taken in, when asked to stop.
    """
    done = 0
    for size in chunks(cache.length, len(tokens), cache.policy.n_sink, longest_chunk(cache.policy)):
        if cancelled():
            raise Cancelled
        hidden = forward(model, cache, mx.array(list(tokens[done : done + size])))
        mx.eval(hidden, *cache.arrays())
        done += size
        if progress is not None:
            progress(done, len(tokens))
    return model.logits(hidden[-1:])[0]


def decode(
    model: Decoder,
    cache: SequenceCache,
    logits: mx.array,
    sampler: Sampler,
    penalty: RepetitionPenalty | None,
    max_tokens: int,
) -> Iterator[int]:
    """Yield up to max_tokens tokens; one that was yielded is in the cache unless it is the last.

    The next token is under way while the caller looks at this one. The caller stops by
    closing the iterator.
    """
    token = _choose(logits, sampler, penalty)
    mx.async_eval(token)
    for n in range(1, max_tokens + 1):
        ahead = None
        if n < max_tokens:
            hidden = forward(model, cache, token)
            ahead = _choose(model.logits(hidden)[0], sampler, penalty)
            mx.async_eval(ahead, *cache.arrays())
        yield int(token.item())  # type: ignore[arg-type]
        if ahead is not None:
            token = ahead


def _choose(logits: mx.array, sampler: Sampler, penalty: RepetitionPenalty | None) -> mx.array:
    if penalty is not None:
        logits = penalty(logits)
    token = sampler(logits)
    if penalty is not None:
        penalty.observe(token)
    return token
