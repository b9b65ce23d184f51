"""A fault or a question, said in the app until it is dismissed: never a traceback."""

from textual.content import Content
from textual.widgets import Static

from edgekv.tui.printable import one_line

LONGEST = 600


class Banner(Static):
    """One message above the prompt; hidden when there is none."""

    DEFAULT_CSS = """
    Banner { display: none; width: 1fr; height: auto; padding: 0 1; }
    Banner.-shown { display: block; }
    Banner.-fault { background: $error 20%; color: $text-error; }
    Banner.-offer { background: $accent 20%; }
    """

    def __init__(self) -> None:
        super().__init__("", id="banner", markup=False)
        self.text = ""

    def fault(self, text: str) -> None:
        """Something went wrong."""
        self._show(text, "-fault")

    def offer(self, text: str) -> None:
        """Something can be done."""
        self._show(text, "-offer")

    def dismiss(self) -> bool:
        """Hide it; whether there was one."""
        shown = bool(self.text)
        self.text = ""
        self.remove_class("-shown", "-fault", "-offer")
        return shown

    def _show(self, text: str, kind: str) -> None:
        self.dismiss()
        self.text = one_line(text, LONGEST)
        self.update(Content(self.text))
        self.add_class("-shown", kind)
