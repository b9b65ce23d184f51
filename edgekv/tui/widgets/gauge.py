"""The line that says how full the cache is, and turns colour before anything is forgotten."""

from collections.abc import Sequence

from textual.content import Content
from textual.widget import Widget

from edgekv.tui.figures import size, thousands
from edgekv.tui.occupancy import Occupancy

BAR = 8
STYLES = {"room": "$text-success", "nearly full": "bold $text-warning", "rolling": "$text-accent"}
SEPARATOR = " · "


class Gauge(Widget):
    """Shows an Occupancy; what matters least goes first where the line is short."""

    DEFAULT_CSS = "Gauge { height: 1; width: 1fr; }"

    def __init__(self) -> None:
        super().__init__(id="gauge")
        self._occupancy: Occupancy | None = None

    def show(self, occupancy: Occupancy | None) -> None:
        """The state to draw; None before a model is loaded."""
        if occupancy != self._occupancy:
            self._occupancy = occupancy
            for state in STYLES:
                self.set_class(occupancy is not None and occupancy.state == state, _name(state))
            self.refresh()

    def render(self) -> Content:
        if self._occupancy is None:
            return Content.styled("KV: no model yet", "$foreground 60%")
        return _fitted(_parts(self._occupancy), self.size.width)


def _name(state: str) -> str:
    return "-" + state.replace(" ", "-")


def _parts(now: Occupancy) -> list[tuple[int, Content]]:
    """(importance, text), in the order of the line; 0 is never dropped."""
    policy, style = now.policy, STYLES[now.state]
    filled = round(BAR * now.kept / policy.window)
    bar = Content.styled("▰" * filled + "▱" * (BAR - filled) + " ", style)
    word = {"rolling": "rolling", "nearly full": "nearly full"}.get(now.state, "")
    parts = [
        (0, Content.styled(f"KV {thousands(now.kept)}/{thousands(policy.window)}", style)),
        (2, Content(f"sinks {now.sinks}")),
        (4, Content(f"pinned {thousands(now.pinned)}")),
        (1, Content.styled(f"evicted {thousands(now.evicted)}", style if now.evicted else "")),
        (3, Content(f"{size(now.used_nbytes)} of {size(policy.nbytes)}")),
        (5, Content(now.bits)),
    ]
    if word:
        parts.insert(1, (1, Content.styled(word, style)))
    return [(6, bar), *parts]


def _fitted(parts: Sequence[tuple[int, Content]], width: int) -> Content:
    kept = list(parts)
    while (line := _joined(kept)).cell_length > width and len(kept) > 1:
        kept.remove(max(kept, key=lambda part: part[0]))
    return line.truncate(width, ellipsis=True)


def _joined(parts: Sequence[tuple[int, Content]]) -> Content:
    separator = Content.styled(SEPARATOR, "$foreground 40%")
    if parts[0][0] == 6:  # the bar stands against the first figure
        return parts[0][1] + separator.join(text for _, text in parts[1:])
    return separator.join(text for _, text in parts)
