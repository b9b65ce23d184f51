"""Small questions: a line of text, or yes and no."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static


class AskText(ModalScreen[str | None]):
    """One line of text; Escape gives None."""

    BINDINGS = [Binding("escape,ctrl+c", "dismiss(None)", "Cancel", priority=True)]

    def __init__(self, question: str, value: str = "") -> None:
        super().__init__()
        self._question = question
        self._value = value

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False)
            yield Input(self._value)
            yield Static("Enter: ok · Esc: cancel", markup=False, classes="hint")

    def on_mount(self) -> None:
        self.query_one(Input).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        self.dismiss(event.value)


class Confirm(ModalScreen[bool]):
    """Yes (y, Enter) or no (n, Escape)."""

    BINDINGS = [
        Binding("y,enter,ctrl+c", "dismiss(True)", "Yes"),
        Binding("n,escape", "dismiss(False)", "No"),
    ]

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical(classes="dialog"):
            yield Static(self._question, markup=False)
            yield Static("y or Enter: yes · n or Esc: no", markup=False, classes="hint")
