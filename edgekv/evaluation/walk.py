"""A text fed to one or more caches side by side, and scored as it goes."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgekv.cache.sequence import SequenceCache
from edgekv.generate import PREFILL_CHUNK, Cancelled, chunks, forward
from edgekv.models.layers import Decoder

T = TypeVar("T")
Numbers = NDArray[np.float32]

SCORES = 6_000_000
"""Scores made at once, 24 MB: a whole matrix of tokens and words would not fit a small machine."""

KEEP_EVERY = 20.0
"""Seconds between two times that a walk is kept."""


@dataclass
class Walk:
    """How far a text was fed to each cache, and the numbers of each token so far."""

    caches: list[SequenceCache]
    done: int = 0
    numbers: list[Numbers] = field(default_factory=list)

    def so_far(self) -> Numbers:
        """(tokens, columns), a row for each token scored."""
        return np.concatenate(self.numbers) if self.numbers else np.zeros((0, 1), np.float32)


class Keeper(Protocol):
    """Where a walk is kept while it is under way."""

    def save(self, walk: Walk) -> None: ...


@dataclass(frozen=True)
class Watch:
    """Who follows a measurement: told of the tokens done, in all, and asked whether to go on."""

    told: Callable[[int, int], None] = lambda done, total: None
    cancelled: Callable[[], bool] = lambda: False


Score = Callable[[list[mx.array], mx.array], Numbers]
"""Hidden states (n, hidden_size) of each cache and the n tokens that really come next →
(n, columns)."""


def walk_on(
    model: Decoder,
    walk: Walk,
    tokens: Sequence[int],
    score: Score,
    watch: Watch | None = None,
    keeper: Keeper | None = None,
    skip: int = 1,
    size: int = PREFILL_CHUNK,
) -> Numbers:
    """Feed the rest of the tokens to every cache; the numbers of all but the first `skip`, >= 1.

    Raises Cancelled, with the walk kept, when asked to stop between two chunks.
    """
    watch, kept = watch or Watch(), time.monotonic()
    for n in chunks(walk.done, len(tokens) - walk.done, walk.caches[0].policy.n_sink, size):
        if watch.cancelled():
            if keeper is not None:
                keeper.save(walk)
            raise Cancelled
        _step(model, walk, tokens, n, score, skip)
        watch.told(walk.done, len(tokens))
        if keeper is not None and time.monotonic() - kept > KEEP_EVERY:
            keeper.save(walk)
            watch, kept = watch or Watch(), time.monotonic()
    return walk.so_far()


def _step(
    model: Decoder, walk: Walk, tokens: Sequence[int], n: int, score: Score, skip: int
) -> None:
    given = mx.array(list(tokens[walk.done : walk.done + n]))
    # A row of hidden states is scored by the token behind it, which the last one has not.
    first = max(0, skip - 1 - walk.done)
    wanted = mx.array(list(tokens[walk.done + first + 1 : walk.done + n + 1]))
    hidden = []
    for cache in walk.caches:
        hidden.append(forward(model, cache, given))
        mx.eval(hidden[-1], *cache.arrays())
    if wanted.size:
        rows = slice(first, first + wanted.size)
        walk.numbers.append(score([states[rows] for states in hidden], wanted))
    walk.done += n


def one_by_one(
    items: Sequence[T],
    measure: Callable[[T, Watch], Numbers],
    walk: Walk,
    watch: Watch,
    keeper: Keeper | None = None,
) -> Numbers:
    """The numbers of each item, for a walk that has no cache and counts items.

    `measure` is given a watch that may ask it to stop. Raises Cancelled, with whole items kept.
    """
    inside = Watch(cancelled=watch.cancelled)
    for item in items[walk.done :]:
        try:
            numbers = measure(item, inside)
        except Cancelled:
            if keeper is not None:
                keeper.save(walk)
            raise
        walk.numbers.append(numbers)
        walk.done += 1
        watch.told(walk.done, len(items))
    return walk.so_far()


def scores(model: Decoder, hidden: Sequence[mx.array]) -> Iterator[tuple[slice, list[mx.array]]]:
    """Of each cache's hidden states: which rows, and their (rows, vocab_size), a few at a time."""
    rows = max(1, SCORES // model.model.embed_tokens.weight.shape[0])
    for at in range(0, hidden[0].shape[0], rows):
        here = slice(at, at + rows)
        yield here, [model.logits(states[here]) for states in hidden]


def of(scores: mx.array, tokens: mx.array) -> mx.array:
    """The score of one token in each row, (rows,)."""
    return mx.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0]
