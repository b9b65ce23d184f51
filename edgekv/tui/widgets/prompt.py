"""The prompt with its completions: sends, runs commands, recalls, and says when a draft is due."""

from dataclasses import dataclass

from textual import getters, on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.message import Message as Event
from textual.timer import Timer
from textual.widgets import TextArea

from edgekv.tui.commands import BY_NAME, matching
from edgekv.tui.printable import one_line
from edgekv.tui.prompts import PromptHistory
from edgekv.tui.widgets.completions import Completions, completions
from edgekv.tui.widgets.composer import Composer

DRAFT_S = 0.5
"""Seconds without a key after which what was typed is kept."""


class PromptBox(Vertical):
    """Posts Send, Run, Refused and DraftDue. history: what Up recalls."""

    DEFAULT_CSS = "PromptBox { height: auto; }"

    composer = getters.query_one(Composer)
    offered = getters.query_one(Completions)

    @dataclass
    class Send(Event):
        """A prompt for the model."""

        text: str

    @dataclass
    class Run(Event):
        """A command with its argument."""

        name: str
        argument: str

    @dataclass
    class Refused(Event):
        """What was typed is no command."""

        why: str

    class DraftDue(Event):
        """What is typed has not changed for a while."""

    def __init__(self, history: PromptHistory) -> None:
        super().__init__(id="prompt")
        self._history = history
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield Completions()
        yield Composer()

    @property
    def value(self) -> str:
        return self.composer.value

    @value.setter
    def value(self, text: str) -> None:
        self.composer.value = text

    def type(self, text: str) -> None:
        """Take what was typed elsewhere."""
        self.composer.focus()
        self.composer.insert(text)

    def close_completions(self) -> bool:
        """Close the list; whether it was open."""
        was_open = self.composer.completing
        self._offer([])
        return was_open

    def _offer(self, items: list) -> None:  # type: ignore[type-arg]
        self.offered.show(items)
        self.composer.completing = bool(items)

    @on(TextArea.Changed)
    def _changed(self, event: TextArea.Changed) -> None:
        event.stop()
        self._offer(completions(self.composer.before_cursor))
        if self._timer is not None:
            self._timer.stop()
        self._timer = self.set_timer(DRAFT_S, self._due)

    def _due(self) -> None:
        self.post_message(self.DraftDue())

    @on(Composer.Submitted)
    def _submitted(self, event: Composer.Submitted) -> None:
        chosen = self.offered.selected
        self.close_completions()
        if event.text.startswith("/") and "\n" not in event.text.strip():
            self._slash(event.text.strip()[1:], chosen.text if chosen else "")
        else:
            self.post_message(self.Send(event.text))

    def _slash(self, typed: str, chosen: str) -> None:
        name, _, argument = typed.partition(" ")
        if name not in BY_NAME and chosen and not argument:
            if chosen.endswith(" "):
                self.value = chosen
                return
            name = chosen[1:]
        if name not in BY_NAME or not BY_NAME[name].slash:
            known = ", ".join(f"/{each.name}" for each in matching(name[:1])) or "/help"
            name = one_line(name, 40)
            why = f"no command /{name} (try {known}); a space before it sends it as text"
            self.post_message(self.Refused(why))
            return
        self.value = ""
        self.post_message(self.Run(name, argument.strip()))

    @on(Composer.Recall)
    def _recall(self, event: Composer.Recall) -> None:
        back = event.step < 0
        text = self._history.earlier(self.value) if back else self._history.later()
        if text is not None:
            self.value = text

    @on(Composer.CompletionWanted)
    def _complete(self, event: Composer.CompletionWanted) -> None:
        chosen = self.offered.selected
        if event.step or chosen is None:
            self.offered.move(event.step)
        elif chosen.text.startswith("@") and not chosen.text.endswith("/"):
            self.composer.replace_before("", chosen.length)
            self.post_message(self.Run("file", chosen.text[1:]))
        else:
            self.composer.replace_before(chosen.text, chosen.length)
