"""The widget that shows one text of Markdown, whole or while it grows."""

import re
from dataclasses import dataclass
from itertools import count

from textual.geometry import Size
from textual.selection import Selection
from textual.strip import Strip
from textual.style import Style
from textual.widget import Widget

from edgekv.tui.markdown.blocks import Block
from edgekv.tui.markdown.document import Document
from edgekv.tui.markdown.layout import Paint, layout
from edgekv.tui.markdown.rows import Row

MARK = "reverse bold"


@dataclass
class _Laid:
    """A block with the screen lines of each of its rows; `first` is the index of the first."""

    block: Block
    first: int
    by_row: list[tuple[Row, list[Strip]]]

    def __post_init__(self) -> None:
        self.strips = [strip for _, strips in self.by_row for strip in strips]


class MarkdownView(Widget):
    """Draws a Document; the lines of a block are laid out once a width and theme."""

    DEFAULT_CSS = "MarkdownView { height: auto; width: 1fr; }"
    ALLOW_SELECT = True

    def __init__(self, source: str = "", *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.document = Document(source)
        self._marked = ""
        self._width = 0
        self._laid: list[_Laid] = []

    @property
    def source(self) -> str:
        return self.document.source

    def append(self, text: str) -> None:
        """More of the text, at the cost of its last block."""
        self.document.append(text)
        self.refresh(layout=True)

    def finish(self) -> None:
        """The text is whole."""
        self.document.finish()
        self.refresh(layout=True)

    def mark(self, words: str) -> None:
        """Show where `words` stand in the text; none for an empty string."""
        if words != self._marked:
            self._marked = words
            self._forget()

    def codes(self) -> list[str]:
        """The code blocks of the text, as they would be copied."""
        return [block.code for block in self.document.blocks if block.code is not None]

    def get_content_width(self, container: Size, viewport: Size) -> int:
        return container.width

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return sum(len(laid.strips) for laid in self._lines(width))

    def render_line(self, y: int) -> Strip:
        for laid in self._lines(self.size.width):
            if y < len(laid.strips):
                return laid.strips[y]
            y -= len(laid.strips)
        return Strip.blank(self.size.width, self.visual_style.rich_style)

    def get_selection(self, selection: Selection) -> tuple[str, str] | None:
        """The selected text without prefixes or wrapping."""
        rows = [row for block in self.document.blocks for row in block.rows(self.size.width)]
        return selection.extract("\n".join(row.body.plain or " " for row in rows)), "\n"

    def selection_updated(self, selection: Selection | None) -> None:
        self._forget()

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._laid.clear()

    def _forget(self) -> None:
        self._laid.clear()
        self.refresh()

    def _lines(self, width: int) -> list[_Laid]:
        """Every block laid out; of a block that has grown, only the rows that changed."""
        if width != self._width:
            self._laid, self._width = [], width
        blocks = self.document.blocks
        same = 0
        for laid, wanted in zip(self._laid, blocks, strict=False):
            if laid.block is not wanted:
                break
            same += 1
        if same < len(blocks) or same < len(self._laid):
            stale = self._laid[same:]
            del self._laid[same:]
            first = sum(len(laid.by_row) for laid in self._laid)
            for i, block in enumerate(blocks[same:]):
                before = stale[i] if i < len(stale) and stale[i].first == first else None
                self._laid.append(self._lay(block, first, width, before))
                first += len(self._laid[-1].by_row)
        return self._laid

    def _lay(self, block: Block, first: int, width: int, before: _Laid | None) -> _Laid:
        rows = [self._styled(row, y) for row, y in zip(block.rows(width), count(first))]
        known = before.by_row if before else []
        paint = Paint(self.visual_style, Style.parse("$foreground 40%"))
        by_row = [
            known[i][1]
            if i < len(known) and known[i][0].looks_like(row)
            else layout(row, first + i, width, paint)
            for i, row in enumerate(rows)
        ]
        return _Laid(block, first, list(zip(rows, by_row, strict=True)))

    def _styled(self, row: Row, y: int) -> Row:
        """The row with the selection and the words looked for in it."""
        body = row.body
        if self._marked:
            body = body.highlight_regex(re.compile(re.escape(self._marked), re.I), style=MARK)
        selection = self.text_selection
        if selection is not None and (span := selection.get_span(y)) is not None:
            style = Style.from_styles(self.screen.get_component_styles("screen--selection"))
            end = len(body.plain) if span[1] == -1 else span[1]
            body = body.stylize(style, span[0], end)
        return Row(body, row.first, row.rest, row.fill, row.rule)
