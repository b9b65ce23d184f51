"""Recording: a turn of a stored session written down while it happens."""

import time
from collections.abc import Callable, Sequence

from edgekv.sessions.records import SessionNotFound, StoreUnavailable
from edgekv.sessions.store import Store

SAVE_S = 1.0
"""A reply under way is saved this often: a kill loses no more of it."""


class Recording:
    """One user message and the reply to it. A store that fails ends it, with one warning.

    warn: takes one line for the user. Nothing here raises StoreUnavailable, for a conversation
    must go on when its disk is full.
    """

    def __init__(self, store: Store, session: str, warn: Callable[[str], None]) -> None:
        self._store = store
        self._session = session
        self._warn = warn
        self._failed = False
        self._text = ""
        self._position: int | None = None
        self._saved = 0.0

    def add(self, role: str, content: str, tokens: Sequence[int] = ()) -> None:
        """Append a whole message: the system's, or the user's before the reply."""
        self._try(lambda: self._store.append(self._session, role, content, tokens))

    def write(self, text: str) -> None:
        """More of the reply; what is there so far is saved every second, marked partial."""
        self._text += text
        if time.monotonic() - self._saved >= SAVE_S:
            self._save((), None, partial=True)

    def finish(self, tokens: Sequence[int], finish_reason: str) -> None:
        """The reply has ended, and why."""
        self._save(tokens, finish_reason, partial=False)

    def _save(self, tokens: Sequence[int], finish_reason: str | None, partial: bool) -> None:
        self._saved = time.monotonic()
        self._try(lambda: self._put(tokens, finish_reason, partial))

    def _put(self, tokens: Sequence[int], finish_reason: str | None, partial: bool) -> None:
        said = (self._text, tokens, finish_reason, partial)
        if self._position is None:
            self._position = self._store.append(self._session, "assistant", *said).position
        else:
            self._store.revise(self._session, self._position, *said)

    def _try(self, write: Callable[[], object]) -> None:
        if self._failed:
            return
        try:
            write()
        except (StoreUnavailable, SessionNotFound) as fault:
            self._failed = True
            self._warn(f"this conversation is not being saved: {fault}")
