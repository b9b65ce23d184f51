"""A table as rows that fit a width: columns side by side, or one cell a line where narrow."""

from dataclasses import dataclass

from textual.content import Content

from edgekv.tui.markdown.rows import Row

SEPARATOR = " │ "
NARROWEST = 10
HEAD, LABEL, LINES = "bold", "bold $foreground 60%", "$foreground 40%"


@dataclass(frozen=True)
class Table:
    """Cells of the head and of each row; every row has as many as the head."""

    head: tuple[Content, ...]
    body: tuple[tuple[Content, ...], ...]

    def rows(self, width: int) -> list[Row]:
        """Rows no wider than `width` cells."""
        room = width - len(SEPARATOR) * (len(self.head) - 1)
        if room < NARROWEST * len(self.head):
            return self._stacked()
        widths = _share([self._widest(i) for i in range(len(self.head))], room)
        rule = "─┼─".join("─" * each for each in widths)
        rows = _wrapped(tuple(cell.stylize(HEAD) for cell in self.head), widths)
        rows.append(Row(Content.styled(rule, LINES)))
        for cells in self.body:
            rows.extend(_wrapped(cells, widths))
        return rows

    def _widest(self, column: int) -> int:
        return max(row[column].cell_length for row in (self.head, *self.body))

    def _stacked(self) -> list[Row]:
        rows = []
        for cells in self.body:
            for name, cell in zip(self.head, cells, strict=True):
                rows.append(Row(Content.assemble(name.stylize(LABEL), ": ", cell)))
            rows.append(Row(Content("")))
        return rows[:-1] or [Row(Content(", ").join(self.head))]


def _share(wanted: list[int], room: int) -> list[int]:
    """Widths that sum to at most `room`: narrow columns keep theirs, wide ones share the rest."""
    widths = [max(1, width) for width in wanted]
    while (over := sum(widths) - room) > 0:
        widest = max(widths)
        second = max((width for width in widths if width < widest), default=1)
        columns = [i for i, width in enumerate(widths) if width == widest]
        cut = min(widest - second, -(-over // len(columns))) or 1
        for column in columns:
            widths[column] -= cut
    return widths


def _wrapped(cells: tuple[Content, ...], widths: list[int]) -> list[Row]:
    columns = [cell.wrap(width) for cell, width in zip(cells, widths, strict=True)]
    separator = Content.styled(SEPARATOR, LINES)
    rows = []
    for i in range(max(map(len, columns))):
        pieces = [lines[i] if i < len(lines) else Content("") for lines in columns]
        padded = (
            piece.pad_right(max(0, width - piece.cell_length))
            for piece, width in zip(pieces, widths, strict=True)
        )
        rows.append(Row(separator.join(padded)))
    return rows
