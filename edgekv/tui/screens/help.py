"""Keys and commands, from the same table that makes them work."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.screen import ModalScreen

from edgekv.tui.markdown.view import MarkdownView


class HelpScreen(ModalScreen[None]):
    """Scrolls with the arrows; any of its keys closes it."""

    BINDINGS = [Binding("escape,f1,q,question_mark", "dismiss(None)", "Close")]

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text

    def compose(self) -> ComposeResult:
        with VerticalScroll(classes="page"):
            yield MarkdownView(self._text)

    def on_mount(self) -> None:
        self.query_one(VerticalScroll).focus()
