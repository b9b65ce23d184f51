"""What the prompt may go on with: commands behind a slash, files behind an at sign."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from textual.content import Content
from textual.widget import Widget

from edgekv.tui.commands import matching
from edgekv.tui.printable import one_line

MOST = 6


@dataclass(frozen=True)
class Completion:
    """text replaces the last `length` characters before the cursor."""

    label: str
    about: str
    text: str
    length: int


class Completions(Widget):
    """A short list above the prompt; hidden when there is nothing to choose from."""

    DEFAULT_CSS = "Completions { height: auto; display: none; padding: 0 1; }"

    def __init__(self) -> None:
        super().__init__(id="completions")
        self._items: Sequence[Completion] = ()
        self._at = 0

    def show(self, items: Sequence[Completion]) -> None:
        """Offer these, the first one selected."""
        if not items and not self._items:
            return  # as with nearly every key: no layout of the screen for nothing
        self._items, self._at = items, 0
        self.display = bool(items)
        self.refresh(layout=True)

    def move(self, step: int) -> None:
        """Select another one."""
        if self._items:
            self._at = (self._at + step) % len(self._items)
            self.refresh()

    @property
    def selected(self) -> Completion | None:
        return self._items[self._at] if self._items else None

    def render(self) -> Content:
        first = max(0, min(self._at - MOST // 2, len(self._items) - MOST))
        shown = self._items[first : first + MOST]
        width = max((len(item.label) for item in shown), default=0)
        lines = [
            Content.assemble(
                (f"{item.label:<{width}}", "bold $accent" if i == self._at else "bold"),
                (f"  {item.about}", "" if i == self._at else "$foreground 60%"),
            ).truncate(max(1, self.size.width), ellipsis=True)
            for i, item in enumerate(shown, first)
        ]
        return Content("\n").join(lines)


def completions(before: str) -> list[Completion]:
    """What can follow the text before the cursor."""
    if before.startswith("/") and not set(before) & set(" \n"):
        return [
            Completion(
                f"/{command.name}{' ' + command.takes if command.takes else ''}",
                command.help,
                f"/{command.name}{' ' if command.takes else ''}",
                len(before),
            )
            for command in matching(before[1:])
        ]
    word = before.split()[-1] if before and not before[-1].isspace() else ""
    return _paths(word[1:]) if word.startswith("@") else []


def _paths(typed: str) -> list[Completion]:
    folder, _, start = typed.rpartition("/")
    try:
        place = Path(f"{folder}/" if "/" in typed else ".").expanduser()
        found = sorted(place.iterdir(), key=lambda path: (not path.is_dir(), path.name))
    except (OSError, RuntimeError, ValueError):
        return []
    found = [path for path in found if path.name.startswith(start) and _usable(path, start)]
    items = []
    for path in found[:50]:
        name = path.name + ("/" if path.is_dir() else "")
        text = f"@{folder + '/' if '/' in typed else ''}{name}"
        items.append(Completion(one_line(name), "", text, len(typed) + 1))
    return items


def _usable(path: Path, start: str) -> bool:
    hidden = path.name.startswith(".") and not start.startswith(".")
    return not hidden and not any(c.isspace() for c in path.name)
