"""One message of the transcript: what the user said, or a reply with what it took."""

import re
from dataclasses import dataclass

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message as Event
from textual.widgets import Static

from edgekv.sessions import Message
from edgekv.tui.markdown.view import MarkdownView
from edgekv.tui.printable import printable
from edgekv.tui.thinking import ThinkingSplitter

FOLD_LINES = 16
"""Lines of a user's message that are shown until it is unfolded."""
SHOWN_TEXT = 200_000
"""Characters of a user's message that unfolding shows at the most."""

ENDINGS = {
    "cancelled": "stopped by you",
    "length": "cut at the longest reply allowed: /continue goes on",
}
PARTIAL = "interrupted: /continue (F5) goes on"


class MessageView(Vertical, can_focus=True):
    """A message with the keys that act on it."""

    BINDINGS = [
        Binding("y", "do('copy')", "Copy"),
        Binding("e", "do('edit')", "Edit"),
        Binding("r", "do('retry')", "Retry"),
        Binding("b", "do('branch')", "Branch"),
        Binding("enter", "fold", "Fold"),
    ]

    @dataclass
    class Command(Event):
        """Run a command on this message."""

        name: str

    def __init__(self, message: Message) -> None:
        super().__init__(classes=f"-{message.role}")
        self.message = message

    @property
    def source(self) -> str:
        """What copying the message gives: its text as it was written."""
        return self.message.content

    def action_do(self, name: str) -> None:
        self.post_message(self.Command(name))

    def action_fold(self) -> None:
        """Show or hide what is folded."""

    def mark(self, words: str) -> None:
        """Show where `words` stand in the text; nowhere for an empty string."""

    def on_key(self, event: events.Key) -> None:
        # Typing anywhere writes the prompt.
        if event.is_printable and event.character not in ("y", "e", "r", "b"):
            self.post_message(Typed(event.character or ""))
            event.stop()


@dataclass
class Typed(Event):
    """A character typed outside the prompt, which belongs there."""

    character: str


class UserMessage(MessageView):
    """Plain text as it was typed, folded when long."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)
        self._folded = message.content.count("\n") >= FOLD_LINES
        self._marked = ""

    def compose(self) -> ComposeResult:
        yield Static(self._content(), markup=False, classes="body")

    def action_fold(self) -> None:
        if self.message.content.count("\n") >= FOLD_LINES:
            self._folded = not self._folded
            self._redraw()

    def mark(self, words: str) -> None:
        self._marked = words
        self._redraw()

    def _redraw(self) -> None:
        self.query_one(Static).update(self._content())

    def _content(self) -> Content:
        text = self.message.content
        note = ""
        if self._folded:
            head = text.split("\n", FOLD_LINES)[:FOLD_LINES]
            more = text.count("\n") + 1 - len(head)
            text, note = "\n".join(head), f"\n… {more:,} more lines (Enter unfolds)"
        text = text[:SHOWN_TEXT]
        content = Content(printable(text))
        return _marked(content, self._marked) + Content.styled(note, "$foreground 60%")


def _marked(content: Content, words: str) -> Content:
    if not words:
        return content
    return content.highlight_regex(re.compile(re.escape(words), re.I), style="reverse bold")


class ReplyMessage(MessageView):
    """Markdown, the thinking before it, and what it took behind it. live: more is to come."""

    def __init__(self, message: Message, live: bool = False) -> None:
        super().__init__(message)
        self._splitter = ThinkingSplitter()
        self._thoughts: list[str] = []
        self._note = "" if live else _ending(message)
        self.shows_thinking = False
        self._composed = False
        text = self._take(*self._splitter.feed(message.content))
        if live:
            self.view = MarkdownView()
            self.view.append(text)
        else:
            self.view = MarkdownView(text + self._take(*self._splitter.finish()))

    def compose(self) -> ComposeResult:
        yield Static("", markup=False, classes="thinking")
        yield self.view
        yield Static(self._note, markup=False, classes="note")

    def on_mount(self) -> None:
        self._composed = True
        self._show_thinking()
        self._show_note()

    @property
    def thinking(self) -> bool:
        """Whether what comes now is thought."""
        return self._splitter.thinking

    def grow(self, text: str) -> None:
        """More of the reply."""
        answer = self._take(*self._splitter.feed(text))
        if answer:
            self.view.append(answer)
        self._show_thinking()

    def finish(self, message: Message, note: str = "") -> None:
        """The reply is whole: what is kept of it, and what it took."""
        self.message = message
        answer = self._take(*self._splitter.finish())
        if answer:
            self.view.append(answer)
        self.view.finish()
        self._note = " · ".join(part for part in (_ending(message), note) if part)
        self._show_note()
        self._show_thinking()

    def action_fold(self) -> None:
        self.shows_thinking = not self.shows_thinking
        self._show_thinking()

    def mark(self, words: str) -> None:
        self.view.mark(words)

    def _take(self, thought: str, answer: str) -> str:
        if thought:
            self._thoughts.append(thought)
        return answer

    def _show_thinking(self) -> None:
        if not self._composed:
            return
        thought = "".join(self._thoughts).strip()
        box = self.query_one(".thinking", Static)
        box.display = bool(thought) or self._splitter.thinking
        words = len(thought.split())
        sign = "▾" if self.shows_thinking else "▸"
        state = "thinking" if self._splitter.thinking else "thought"
        head = f"{sign} {state}: {words:,} words"
        box.update(Content(printable(f"{head}\n{thought}") if self.shows_thinking else head))

    def _show_note(self) -> None:
        if self._composed:
            note = self.query_one(".note", Static)
            note.update(Content(self._note))
            note.display = bool(self._note)


def _ending(message: Message) -> str:
    return PARTIAL if message.partial else ENDINGS.get(message.finish_reason or "", "")


def view_of(message: Message) -> MessageView:
    """The widget for a stored message."""
    return ReplyMessage(message) if message.role == "assistant" else UserMessage(message)
