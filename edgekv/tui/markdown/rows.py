"""What blocks are made of: logical lines that wrap behind a prefix."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from textual.content import Content

NOTHING = Content("")


@dataclass(frozen=True)
class Row:
    """One line of text. `first` stands before its first screen line, `rest` before the others.

    fill: a style that colours the whole width behind it; rule: draw a line across instead.
    """

    body: Content
    first: Content = NOTHING
    rest: Content = NOTHING
    fill: str = ""
    rule: bool = False

    def looks_like(self, other: "Row") -> bool:
        """Whether both are drawn alike; `==` of their texts would leave styles out."""
        mine, its = (self.body, self.first, self.rest), (other.body, other.first, other.rest)
        plain = self.fill == other.fill and self.rule == other.rule
        return plain and all(a.is_same(b) for a, b in zip(mine, its, strict=True))


def indented(rows: Iterable[Row], first: Content, rest: Content) -> list[Row]:
    """The rows behind `first` (once) and `rest` (from then on)."""
    done: list[Row] = []
    for row in rows:
        before = rest if done else first
        done.append(replace(row, first=before + row.first, rest=rest + row.rest))
    return done
