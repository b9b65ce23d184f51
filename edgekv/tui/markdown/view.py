"""The widget that shows one text of Markdown, whole or while it grows."""

import re
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


class MarkdownView(Widget):
    """Draws a Document; the lines of a block are laid out once a width and theme."""

    DEFAULT_CSS = "MarkdownView { height: auto; width: 1fr; }"
    ALLOW_SELECT = True

    def __init__(self, source: str = "", *, classes: str | None = None) -> None:
        super().__init__(classes=classes)
        self.document = Document(source)
        self._marked = ""
        self._width = 0
        self._laid: list[tuple[Block, int, list[Strip]]] = []

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
        return sum(len(strips) for _, _, strips in self._lines(width))

    def render_line(self, y: int) -> Strip:
        for _, _, strips in self._lines(self.size.width):
            if y < len(strips):
                return strips[y]
            y -= len(strips)
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

    def _lines(self, width: int) -> list[tuple[Block, int, list[Strip]]]:
        """(block, rows in it, its lines) of every block; only what changed is laid out."""
        if width != self._width:
            self._laid, self._width = [], width
        blocks = self.document.blocks
        same = 0
        for (block, _, _), wanted in zip(self._laid, blocks, strict=False):
            if block is not wanted:
                break
            same += 1
        if same < len(blocks) or same < len(self._laid):
            del self._laid[same:]
            first = sum(rows for _, rows, _ in self._laid)
            for block in blocks[same:]:
                rows = [self._styled(row, y) for row, y in zip(block.rows(width), count(first))]
                self._laid.append((block, len(rows), self._strips(rows, first, width)))
                first += len(rows)
        return self._laid

    def _strips(self, rows: list[Row], first: int, width: int) -> list[Strip]:
        paint = Paint(self.visual_style, Style.parse("$foreground 40%"))
        return [
            strip for y, row in enumerate(rows, first) for strip in layout(row, y, width, paint)
        ]

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
