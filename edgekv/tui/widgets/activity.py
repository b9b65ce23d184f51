"""The line that says what the app is doing, so that a wait is never a mystery."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget

from edgekv.tui.figures import thousands

STALL = 3.0
"""Seconds without a sign of life from which the line says so."""
INTERVAL = 0.25
Clock = Callable[[], float]


@dataclass
class Activity:
    """What is under way: `what` in a word, a count of `total` where known, and since when."""

    what: str
    done: int = 0
    total: int = 0
    unit: str = "tokens"
    hint: str = "Esc stops"


class ActivityLine(Widget):
    """Says what is under way, redrawn four times a second, or else what can be done."""

    DEFAULT_CSS = "ActivityLine { height: 1; width: 1fr; color: $text-muted; }"

    def __init__(self, hints: Sequence[str] = (), clock: Clock = time.monotonic) -> None:
        super().__init__(id="activity")
        self._hints = hints
        self._clock = clock
        self._activity: Activity | None = None
        self._began = self._seen = self._first = 0.0
        self._timer: Timer | None = None

    @property
    def activity(self) -> Activity | None:
        return self._activity

    def show(self, activity: Activity | None) -> None:
        """Something new is under way, or nothing."""
        now = self._clock()
        if activity is not None and (
            self._activity is None or self._activity.what != activity.what
        ):
            self._began = self._first = now
        if activity != self._activity:
            self._seen = now
        self._activity = activity
        self._tick(activity is not None)
        self.refresh()

    def _tick(self, on: bool) -> None:
        if on and self._timer is None:
            self._timer = self.set_interval(INTERVAL, self.refresh)
        elif not on and self._timer is not None:
            self._timer.stop()
            self._timer = None

    def render(self) -> Content:
        words = self._hints if self._activity is None else self._words(self._activity)
        parts = [part for part in words if part]
        line = Content(" · ".join(parts))
        while line.cell_length > self.size.width and len(parts) > 1:
            parts.pop()
            line = Content(" · ".join(parts))
        return line.truncate(max(1, self.size.width), ellipsis=True)

    def _words(self, now: Activity) -> list[str]:
        elapsed = self._clock() - self._began
        silent = self._clock() - self._seen
        speed = f"{now.done / elapsed:.1f}/s" if now.done and elapsed > 0.2 else ""
        return [
            now.what,
            _progress(now),
            f"nothing for {silent:.0f} s" if silent > STALL else "",
            speed,
            now.hint,
            f"{elapsed:.0f} s" if elapsed >= 1 else "",
        ]


def _progress(now: Activity) -> str:
    if now.total:
        share = min(100, 100 * now.done // now.total)
        return f"{share}% of {thousands(now.total)} {now.unit}"
    return f"{thousands(now.done)} {now.unit}" if now.done else ""
