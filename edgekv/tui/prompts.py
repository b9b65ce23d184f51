"""Prompts sent before, kept in a private file, one JSON string a line."""

import json
from pathlib import Path

from edgekv.tui.private import refusal, write_private

MOST = 1000
LONGEST = 20_000
"""Prompts kept, and characters of one: a pasted book is not something to recall."""


class PromptHistory:
    """Newest last; in memory alone until `keep`. Damage costs the damaged lines alone."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._prompts: list[str] = []
        self._at = 0
        self._typed = ""

    def keep(self, path: Path) -> None:
        """Go on from the prompts in a file, and write there from now on."""
        self._path, self._prompts = path, _read(path)
        self._at = len(self._prompts)

    def add(self, prompt: str) -> None:
        """Remember a prompt that was sent. Raises EdgekvError."""
        self._at = len(self._prompts)
        if len(prompt) > LONGEST or prompt in self._prompts[-1:]:
            return
        self._prompts = [*self._prompts, prompt][-MOST:]
        self._at = len(self._prompts)
        if self._path is not None:
            lines = "".join(json.dumps(each) + "\n" for each in self._prompts)
            write_private(self._path, lines)

    def earlier(self, typed: str) -> str | None:
        """The prompt before; `typed` comes back when going forth to the end."""
        if self._at == 0:
            return None
        if self._at == len(self._prompts):
            self._typed = typed
        self._at -= 1
        return self._prompts[self._at]

    def later(self) -> str | None:
        """The prompt after, at the end what was typed before going back."""
        if self._at >= len(self._prompts):
            return None
        self._at += 1
        return self._prompts[self._at] if self._at < len(self._prompts) else self._typed

    def forget(self) -> None:
        """Keep nothing from now on, and remove what was kept. Raises EdgekvError."""
        if self._path is not None:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                raise refusal(self._path, error) from None
        self._path, self._prompts, self._at = None, [], 0


def _read(path: Path) -> list[str]:
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [text for line in lines[-MOST:] if isinstance(text := _parsed(line), str)]


def _parsed(line: str) -> object:
    try:
        return json.loads(line)
    except ValueError:
        return None
