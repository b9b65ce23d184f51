"""Which keys each row of a chunk of queries sees, and the pieces in which they are worked."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

TILE = 2048
"""Keys scored, and expanded, at once in prefill: bounds both, whatever the window is."""

KeysValues = tuple[mx.array, mx.array]
Expand = Callable[[int, int], KeysValues]


@dataclass(frozen=True)
class Segment:
    """Keys start..stop of a part, and which of them each row may see.

    mask: (rows, n) fp32 to be added to the scores of the first n keys, for the others count for
    every row; None where all do.
    """

    start: int
    stop: int
    mask: mx.array | None = None

    def clip(self, start: int, stop: int) -> "Segment | None":
        """The part of it that lies in start..stop, counted from start; None where nothing does."""
        if self.stop <= start or self.start >= stop:
            return None
        first, last = max(self.start, start), min(self.stop, stop)
        return Segment(first - start, last - start, self._mask_of(first, last))

    def pieces(self) -> "list[Segment]":
        """It in runs of at most TILE."""
        edges = range(self.start, self.stop, TILE)
        if len(edges) < 2:
            return [self]
        ends = [min(start + TILE, self.stop) for start in edges]
        return [Segment(a, b, self._mask_of(a, b)) for a, b in zip(edges, ends, strict=True)]

    def _mask_of(self, start: int, stop: int) -> mx.array | None:
        if self.mask is None or self.mask.shape[1] <= start - self.start:
            return None
        return self.mask[:, start - self.start : stop - self.start]


@dataclass(frozen=True)
class Span:
    """Query rows first..last of a chunk that lie in one block, and the keys they see."""

    first: int
    last: int
    anchors: Segment | None
    far: Segment | None
    near: Segment | None


def tiles(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Far keys from the first that a span sees to the last, in runs of at most TILE."""
    segments = [span.far for span in spans if span.far is not None]
    if not segments:
        return []
    stop = max(segment.stop for segment in segments)
    edges = range(min(segment.start for segment in segments), stop, TILE)
    return [(start, min(start + TILE, stop)) for start in edges]
