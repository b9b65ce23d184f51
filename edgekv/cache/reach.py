"""What one new token sees of its cache, and from how far: the same in every layer."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.policy import RECENT_BLOCKS
from edgekv.cache.sequence import SequenceCache
from edgekv.metal.tile import BLOCK


@dataclass(frozen=True)
class Part:
    """Tokens of each layer's `hot` that share a rotation: the sinks, or those of a recent block.

    place: the row of the part's first token; start..stop: the rows that are seen, of the part's
    own; distance: from the part's first token to the query.
    """

    place: int
    start: int
    stop: int
    distance: int


@dataclass(frozen=True)
class Reach:
    """Where a new token goes, and everything that it attends to.

    place: its row in `hot`; offset: its place inside its block. slots: the closed blocks it
    reaches, in the order of the pool's arrays; distances (n,): from the first token of each to
    the query; seen (n, 64): which of their tokens are in the window. parts: the fp16 tokens, in
    order of their rows.
    """

    place: int
    offset: int
    slots: tuple[int, ...]
    distances: NDArray[np.int64]
    seen: NDArray[np.bool_]
    parts: tuple[Part, ...]


def reach(cache: SequenceCache) -> Reach:
    """What the next token of a sequence sees; the sinks must be filled."""
    policy = cache.policy
    assert cache.length >= policy.n_sink
    newest = cache.length - policy.n_sink
    oldest = newest - policy.window + 1
    block, offset = divmod(newest, BLOCK)
    held = [(slot, b) for b, slot in enumerate(cache.pinned)]
    held += [(slot, b) for b, slot in enumerate(cache.ring, cache.ring_start)]
    # Attention does not mind the order of its keys, and ascending slots are one view.
    held.sort()
    blocks = np.array([b for _, b in held], dtype=np.int64)
    # A cached prefix keeps the position that it has in the cache (StreamingLLM,
    # arXiv 2309.17453, section 3.2): the query stands at most at the last slot before it.
    slot = min(cache.length, policy.last_slot)
    pinned = blocks < policy.pinned_blocks
    position = np.where(pinned, slot, cache.length)
    tokens = blocks[:, None] * BLOCK + np.arange(BLOCK)
    return Reach(
        place=cache.recent_row(block) + offset,
        offset=offset,
        slots=tuple(slot for slot, _ in held),
        distances=position - policy.n_sink - blocks * BLOCK,
        seen=(tokens >= oldest) | pinned[:, None],
        parts=_parts(cache, newest, max(oldest, cache.closed * BLOCK), slot),
    )


def _parts(cache: SequenceCache, newest: int, oldest: int, slot: int) -> tuple[Part, ...]:
    """The sinks, seen from the query's slot, and the recent blocks from oldest to newest."""
    n_sink, block = cache.policy.n_sink, newest // BLOCK
    parts = [Part(0, 0, n_sink, slot)] if n_sink else []
    for b in range(max(0, block - RECENT_BLOCKS + 1), block + 1):
        first = b * BLOCK
        start, stop = max(oldest - first, 0), min(newest - first + 1, BLOCK)
        if start < stop:
            parts.append(Part(cache.recent_row(b), start, stop, newest - first))
    return tuple(sorted(parts, key=lambda part: part.place))
