"""What a model writes, taken apart as it comes: thought, answer, and calls of tools."""

from collections.abc import Iterator
from dataclasses import dataclass

from edgekv.server.tools import ToolCall, ToolUse, parse_call

THINK, THOUGHT = "<think>", "</think>"


@dataclass(frozen=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True)
class Reasoning:
    """Text of the model's thought."""

    text: str


Part = Content | Reasoning | ToolCall


def held(text: str, mark: str) -> int:
    """Length of the longest end of text that may be the beginning of a mark."""
    longest = min(len(mark) - 1, len(text))
    return next((n for n in range(longest, 0, -1) if mark.startswith(text[-n:])), 0)


class Splitter:
    """Whole parts out of pieces of text: what may still become a mark is held back.

    thinks: the model may begin with a thought; thinking: the prompt has opened it already.
    """

    def __init__(self, tools: ToolUse | None, thinks: bool, thinking: bool) -> None:
        self._tools = tools
        self._held = ""
        self._state = self._answering
        if thinks:
            self._state = self._thinking if thinking else self._beginning
        self._ended = False
        self._started = False

    @property
    def undecided(self) -> bool:
        """Whether the reply may still turn out to begin with a thought."""
        return self._state == self._beginning

    @property
    def thinking(self) -> bool:
        return self._state == self._thinking

    def add(self, text: str) -> list[Part]:
        """Take new text; returns the parts it completes."""
        self._held += text
        return list(self._run())

    def finish(self) -> list[Part]:
        """The parts in what was held back."""
        self._ended = True
        return list(self._run())

    def _run(self) -> Iterator[Part]:
        while True:
            state, before = self._state, self._held
            yield from state()
            if self._state == state and self._held == before:
                return

    def _beginning(self) -> Iterator[Part]:
        text = self._held.lstrip()
        if text.startswith(THINK):
            self._held = text[len(THINK) :]
            self._state = self._thinking
        elif self._ended or not THINK.startswith(text):
            self._state = self._answering
        yield from ()

    def _thinking(self) -> Iterator[Part]:
        thought, mark, rest = self._held.partition(THOUGHT)
        if mark:
            self._held, self._state = rest.lstrip("\n"), self._skipping
        else:
            thought, self._held = self._safe(THOUGHT)
        if not self._started:
            thought = thought.lstrip("\n")
            self._started = bool(thought)
        if thought:
            yield Reasoning(thought)

    def _skipping(self) -> Iterator[Part]:
        """Behind a thought or a call, whose newlines belong to neither."""
        self._held = self._held.lstrip("\n")
        if self._held or self._ended:
            self._state = self._answering
        yield from ()

    def _answering(self) -> Iterator[Part]:
        if self._tools is None:
            text, self._held = self._held, ""
        elif not self._tools.syntax.opens:
            self._state = self._maybe_call
            return
        else:
            opens = self._tools.syntax.opens
            text, mark, rest = self._held.partition(opens)
            if mark:
                self._held, self._state = rest, self._calling
                text = text.rstrip("\n")
            else:
                text, self._held = self._safe(opens)
        if text:
            yield Content(text)

    def _calling(self) -> Iterator[Part]:
        assert self._tools is not None
        syntax = self._tools.syntax
        body, mark, rest = self._held.partition(syntax.closes)
        if not mark and not self._ended:
            return
        # A model that ends behind the object without the mark has made its call all the same.
        call = self._call(body)
        self._held, self._state = rest, self._answering if call is None else self._skipping
        yield call or Content(f"{syntax.opens}{body}{mark}")

    def _maybe_call(self) -> Iterator[Part]:
        """A family without marks: a reply that begins with an object is one, or all of it text."""
        text = self._held.lstrip()
        if text and not text.startswith("{"):
            text, self._held = self._held, ""
            self._state = self._plain
            yield Content(text)
        elif self._ended and self._held:
            body, self._held = self._held, ""
            yield from [call] if (call := self._call(body)) else [Content(body)]

    def _plain(self) -> Iterator[Part]:
        text, self._held = self._held, ""
        if text:
            yield Content(text)

    def _call(self, body: str) -> ToolCall | None:
        assert self._tools is not None
        return parse_call(body, self._tools.syntax, [tool.name for tool in self._tools.tools])

    def _safe(self, mark: str) -> tuple[str, str]:
        """What may be shown, and what must be held back."""
        keep = 0 if self._ended else held(self._held, mark)
        cut = len(self._held) - keep
        return self._held[:cut], self._held[cut:]
