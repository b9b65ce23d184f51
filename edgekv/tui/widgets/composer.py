"""Where the prompt is written: Enter sends, a paste is one block, and nothing typed is lost."""

import re
from dataclasses import dataclass

from textual import events
from textual.binding import Binding
from textual.message import Message as Event
from textual.widgets import TextArea

from edgekv.tui.printable import typed

FOLD_LINES, FOLD_TEXT = 8, 1500
"""Lines and characters from which a paste is shown as one short mark."""


class Composer(TextArea):
    """A text area that grows with its text up to a third of the screen."""

    DEFAULT_CSS = """
    Composer { height: auto; max-height: 33vh; min-height: 3; border: round $primary 50%; }
    Composer:focus { border: round $primary; }
    """
    BINDINGS = [
        Binding("shift+enter,alt+enter,ctrl+j", "newline", "New line", show=False),
        Binding("tab", "complete", "Complete", show=False),
    ]

    @dataclass
    class Submitted(Event):
        """Enter was pressed on a prompt; pastes are whole again in `text`."""

        text: str

    @dataclass
    class Recall(Event):
        """The prompt before (-1) or after (+1) is wanted."""

        step: int

    @dataclass
    class CompletionWanted(Event):
        """Tab (0), or up and down (-1, +1) in the list of completions."""

        step: int

    def __init__(self) -> None:
        super().__init__(
            id="composer", soft_wrap=True, tab_behavior="focus", show_line_numbers=False
        )
        self._pastes: dict[str, str] = {}
        self.completing = False

    @property
    def value(self) -> str:
        """The prompt with its pastes whole."""
        if not self._pastes:
            return self.text
        marks = "|".join(map(re.escape, self._pastes))
        return re.sub(marks, lambda found: self._pastes[found[0]], self.text)

    @value.setter
    def value(self, text: str) -> None:
        self._pastes.clear()
        self.load_text("")
        self.add(text)

    def add(self, text: str) -> None:
        """Put text in at the cursor, folded where it is long."""
        self.insert(self._folded(typed(text)))
        self.scroll_cursor_visible(animate=False)

    def add_block(self, mark: str, text: str) -> None:
        """Put a mark in that stands for `text`."""
        self.insert(self._marked(mark, text))

    @property
    def before_cursor(self) -> str:
        """The text before the cursor, on its line; a space stands for the lines before."""
        row, column = self.cursor_location
        line = self.document.get_line(row)[:column]
        return line if row == 0 else f" {line}"

    def replace_before(self, text: str, length: int) -> None:
        """Put `text` in place of the last `length` characters before the cursor."""
        row, column = self.cursor_location
        self.replace(text, (row, max(0, column - length)), (row, column))

    def _folded(self, text: str) -> str:
        lines = text.count("\n") + 1
        if lines <= FOLD_LINES and len(text) <= FOLD_TEXT:
            return text
        what = f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters"
        return self._marked(f"[pasted {what}]", text)

    def _marked(self, mark: str, text: str) -> str:
        if self._pastes.get(mark, text) != text or mark in self.text:
            mark = f"{mark[:-1]}, {len(self._pastes) + 1}]"
        self._pastes[mark] = text
        return mark

    async def _on_paste(self, event: events.Paste) -> None:
        event.stop()
        event.prevent_default()
        self.add(event.text)

    async def _on_key(self, event: events.Key) -> None:
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.post_message(self.Submitted(self.value))
            return
        await super()._on_key(event)

    def action_newline(self) -> None:
        self.insert("\n")

    def action_complete(self) -> None:
        self.post_message(self.CompletionWanted(0))

    def action_cursor_up(self, select: bool = False) -> None:
        if self.completing:
            self.post_message(self.CompletionWanted(-1))
        elif not select and self.cursor_at_first_line:
            self.post_message(self.Recall(-1))
        else:
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        if self.completing:
            self.post_message(self.CompletionWanted(1))
        elif not select and self.cursor_at_last_line:
            self.post_message(self.Recall(1))
        else:
            super().action_cursor_down(select)
