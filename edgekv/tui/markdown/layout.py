"""A row as lines of the screen, each character knowing its place in the row for selections."""

from dataclasses import dataclass

from rich.segment import Segment
from textual.content import Content
from textual.strip import Strip
from textual.style import Style

from edgekv.tui.markdown.rows import Row

NARROWEST = 8
"""Cells that text keeps beside the prefixes of deep nesting."""


@dataclass(frozen=True)
class Paint:
    """How rows are drawn: the base style, and the style of a line across."""

    style: Style
    rule: Style


def layout(row: Row, y: int, width: int, paint: Paint) -> list[Strip]:
    """The screen lines of a row of index `y`, exactly `width` cells each."""
    style = paint.style + Style.parse(row.fill) if row.fill else paint.style
    if row.rule:
        return [Strip([Segment("─" * width, (style + paint.rule).rich_style)], width)]
    first, rest = (_fitting(prefix, width) for prefix in (row.first, row.rest))
    strips, at = [], 0
    inner = max(1, width - max(first.cell_length, rest.cell_length))
    for i, piece in enumerate(row.body.wrap(inner)):
        # Wrapping drops spaces at a line's end, so each piece is found again in the row.
        at = max(at, row.body.plain.find(piece.plain, at))
        prefix = first if i == 0 else rest
        text = Strip(piece.render_segments(style), piece.cell_length).apply_offsets(at, y)
        strip = Strip.join([Strip(prefix.render_segments(style), prefix.cell_length), text])
        strips.append(strip.adjust_cell_length(width, style.rich_style))
        at += len(piece.plain)
    return strips


def _fitting(prefix: Content, width: int) -> Content:
    room = max(0, width - NARROWEST)
    return prefix if prefix.cell_length <= room else prefix.truncate(room)
