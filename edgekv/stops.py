"""Stop strings, matched on text: across token boundaries, and never let out even in part."""

from collections.abc import Sequence

from edgekv.errors import InvalidValue

MAX_STOPS = 16
MAX_STOP_LENGTH = 1024


class StopFilter:
    """Lets text through until one of the stop strings appears in it.

    Text that could be the beginning of a stop string is held back until it is known not to be.
    Raises InvalidValue for an empty stop string, one of over 1,024 characters, or over 16.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if len(stops) > MAX_STOPS:
            raise InvalidValue(f"at most {MAX_STOPS} stop strings are allowed, got {len(stops)}")
        for stop in stops:
            if not 0 < len(stop) <= MAX_STOP_LENGTH:
                raise InvalidValue(
                    f"a stop string must have 1 to {MAX_STOP_LENGTH} characters, got {len(stop)}"
                )
        self._stops = tuple(stops)
        self._held = ""
        self.stopped_by: str | None = None

    @property
    def stopped(self) -> bool:
        return self.stopped_by is not None

    def add(self, text: str) -> str:
        """Take new text; returns what may be shown. After a match nothing more is."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [(at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            at, self.stopped_by = min(found)
            self._held = ""
            return text[:at]
        shown = len(text) - self._overlap(text)
        self._held = text[shown:]
        return text[:shown]

    def finish(self) -> str:
        """What was held back and now cannot become a stop string any more."""
        held, self._held = self._held, ""
        return held

    def _overlap(self, text: str) -> int:
        """Length of the longest end of text that begins a stop string."""
        longest = max(map(len, self._stops), default=1) - 1
        for n in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-n:]) for stop in self._stops):
                return n
        return 0
