"""Window, bits, sinks and pinning, with what a change does before it is made."""

from collections.abc import Callable
from dataclasses import replace

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Checkbox, Input, Select, Static

from edgekv.config import KV_BITS
from edgekv.errors import EdgekvError, InvalidValue
from edgekv.tui.preview import Preview
from edgekv.tui.settings import Settings

Look = Callable[[Settings], Preview]


class MemoryScreen(ModalScreen[Settings | None]):
    """Gives the settings to apply; None for no change. look: what settings would do."""

    BINDINGS = [
        Binding("escape", "dismiss(None)", "Cancel"),
        Binding("ctrl+s", "apply", "Apply", priority=True),
    ]

    def __init__(self, settings: Settings, window: int, look: Look) -> None:
        super().__init__()
        self._settings = settings
        self._window = window
        self._look = look

    def compose(self) -> ComposeResult:
        c = self._settings.config
        bits = [(f"{each} bits", each) for each in KV_BITS]
        with VerticalScroll(classes="page"):
            yield Static("Memory of this conversation", classes="heading", markup=False)
            with Horizontal(classes="field"):
                yield Static("Window, in tokens", markup=False)
                yield Input(
                    str(c.window or self._window), type="integer", compact=True, id="window"
                )
            with Horizontal(classes="field"):
                yield Static("Sinks, in tokens", markup=False)
                yield Input(str(c.n_sink), type="integer", compact=True, id="n_sink")
            with Horizontal(classes="field"):
                yield Static("Keys", markup=False)
                yield Select(bits, value=c.k_bits, allow_blank=False, compact=True, id="k_bits")
            with Horizontal(classes="field"):
                yield Static("Values", markup=False)
                yield Select(bits, value=c.v_bits, allow_blank=False, compact=True, id="v_bits")
            yield Checkbox(
                "Pin the system message", self._settings.pin_system, compact=True, id="pin"
            )
            yield Static("", id="preview", markup=False)
            yield Static(
                "Ctrl+S or Enter: apply · Tab: next field · Esc: cancel",
                classes="hint",
                markup=False,
            )

    def on_mount(self) -> None:
        self.query_one("#window", Input).focus()
        self._show()

    @on(Input.Changed)
    @on(Select.Changed)
    @on(Checkbox.Changed)
    def _show(self) -> None:
        try:
            found = self._look(self._chosen())
        except EdgekvError as error:
            self.query_one("#preview", Static).update(Content.styled(str(error), "$text-error"))
            return
        self.query_one("#preview", Static).update(_table(found))

    @on(Input.Submitted)
    def _enter(self) -> None:
        self.action_apply()

    def action_apply(self) -> None:
        try:
            chosen = self._chosen()
            self._look(chosen)
        except EdgekvError:
            self._show()
            return
        self.dismiss(chosen)

    def _chosen(self) -> Settings:
        """The settings in the fields. Raises InvalidValue."""
        window = self._number("window")
        wanted = None if window == self._window and self._settings.config.window is None else window
        changed = self._settings.changed(
            window=wanted,
            n_sink=self._number("n_sink"),
            k_bits=self.query_one("#k_bits", Select).value,
            v_bits=self.query_one("#v_bits", Select).value,
        )
        # A window that was typed is what counts, and no longer the budget it came from.
        budget = changed.budget if wanted is None else None
        return replace(changed, pin_system=self.query_one("#pin", Checkbox).value, budget=budget)

    def _number(self, name: str) -> int:
        text = self.query_one(f"#{name}", Input).value
        try:
            return int(text)
        except ValueError:
            raise InvalidValue(f"{name}: expected a whole number, got {text!r}") from None


def _table(found: Preview) -> Content:
    width = max(len(what) for what, _, _ in found.rows)
    lines = []
    for what, now, then in found.rows:
        style = "" if now == then else "bold $text-accent"
        change = now if now == then else f"{now} → {then}"
        lines.append(Content.assemble((f"{what:<{width}}  ", "$foreground 60%"), (change, style)))
    lines += [Content("")] + [Content(f"• {note}") for note in found.notes]
    return Content("\n").join(lines)
