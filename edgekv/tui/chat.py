"""The open conversation: its messages, and the stored session that is made when first needed."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edgekv.errors import EdgekvError
from edgekv.sessions import Message, Session, SessionLock, Store
from edgekv.tui.printable import one_line

Say = Callable[[str], None]
TITLE = 48
"""Characters of the first prompt that become the title."""

COUNTED = "counted"
"""Among a session's settings: how many messages it had, and tokens, when it was last counted."""


def tokens_of(session: Session) -> int | None:
    """Tokens of a stored conversation, None where messages came after they were counted."""
    match session.settings.get(COUNTED):
        case [session.n_messages, int(tokens)]:
            return tokens
    return None


class Chat:
    """Messages in memory, and on disk as long as the store takes them.

    Owned by the thread of the screen, but for `grow`. A store that fails is said once, to
    `complain`, and the conversation goes on in memory.
    """

    def __init__(
        self,
        store: Store | None,
        complain: Say,
        model: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.store = store if store is None or store.writable else None
        self.messages: list[Message] = []
        self.session: Session | None = None
        self.model = model
        self.settings = dict(settings or {})
        self._complain = complain
        self._lock: SessionLock | None = None
        self._removed: tuple[int, Sequence[Message]] | None = None

    @classmethod
    def open(cls, store: Store, name: str, complain: Say) -> "Chat":
        """A stored session. Raises SessionNotFound, SessionInUse, StoreUnavailable."""
        session = store.get(name)
        chat = cls(store, complain, session.model, session.settings)
        if store.writable:
            chat._lock = store.lock(session.id)
        chat.session, chat.messages = session, store.messages(session.id)
        return chat

    @property
    def title(self) -> str:
        return self.session.name if self.session else "New chat"

    @property
    def persisted(self) -> bool:
        """Whether what is said now is kept on disk."""
        return self.store is not None

    def say(self, text: str) -> Message:
        """The user's next message."""
        self._name_after(text)
        return self._append("user", text)

    def add(self, role: str, text: str, title: str) -> Message:
        """A message of an imported conversation."""
        self._name_after(title)
        return self._append(role, text)

    def begin(self, text: str) -> Message:
        """A reply begins; until `end` it is marked partial."""
        return self._append("assistant", text, partial=True)

    def grow(self, text: str) -> None:
        """Keep what there is of the last reply. May be called from another thread."""
        self._revise(text, partial=True)

    def end(self, text: str, tokens: Sequence[int], reason: str | None) -> Message:
        """The last reply has ended; without a reason it was broken off and stays partial."""
        return self._revise(text, tokens, reason, partial=reason is None)

    def cut(self, position: int) -> None:
        """Take away the messages from `position` on; `restore` brings them back.

        Those that are stored go on in a deleted copy of the session, so that none is lost.
        """
        if position >= len(self.messages):
            return
        self._removed = (position, self.messages[position:])
        del self.messages[position:]

        def write(store: Store, session: str) -> None:
            copy = store.branch(
                session, None, self._free_name(f"{self.title[:150]} before a change")
            )
            store.delete(copy.id)
            store.truncate(session, position)

        self._write(write)

    def restore(self) -> bool:
        """Undo the last `cut`, in place of what was said since; whether there was one."""
        if self._removed is None:
            return False
        position, messages = self._removed
        if position < len(self.messages):
            self.cut(position)
        else:
            self._removed = None
        for each in messages:
            self._append(each.role, each.content, each.tokens, each.finish_reason, each.partial)
        return True

    def save_draft(self, text: str) -> None:
        """Keep what was typed and not sent."""
        if text.strip() and self.session is None:
            self._create(None)
        if self.session is not None and self.session.draft != text:
            self.session = replace(self.session, draft=text)
            self._write(lambda store, session: store.set_draft(session, text))

    def rename(self, name: str) -> None:
        """Another title. Raises InvalidValue for one that is taken or unprintable."""
        if self.session is None:
            self._create(None)
        if self.session is not None and self.store is not None:
            self.session = self.store.rename(self.session.id, name.strip())

    def configure(self, model: str, settings: Mapping[str, Any]) -> None:
        """Remember the model and the settings of this conversation."""
        self.model, self.settings = model, dict(settings)
        self._write(lambda store, session: store.configure(session, model, settings))

    def count(self, tokens: int) -> None:
        """Remember how many tokens the conversation has, for the list of sessions."""
        counted = [len(self.messages), tokens]
        if self.session is not None and self.settings.get(COUNTED) != counted:
            self.configure(self.model, self.settings | {COUNTED: counted})

    def branch(self, position: int) -> "Chat":
        """A copy of the messages before `position`, open in place of this one."""
        if self.store is None or self.session is None:
            raise EdgekvError("this conversation is not stored, so it cannot be branched")
        new = self.store.branch(self.session.id, position, self._free_name(self.title))
        return Chat.open(self.store, new.id, self._complain)

    def close(self) -> None:
        """Let others have the session."""
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _append(
        self,
        role: str,
        text: str,
        tokens: Sequence[int] = (),
        reason: str | None = None,
        partial: bool = False,
    ) -> Message:
        message = Message(len(self.messages), role, text, tuple(tokens), reason, partial)
        self.messages.append(message)
        if self.session is None:
            self._create(None)
        self._write(
            lambda store, session: store.append(session, role, text, tokens, reason, partial)
        )
        return message

    def _revise(
        self,
        text: str,
        tokens: Sequence[int] = (),
        reason: str | None = None,
        partial: bool = False,
    ) -> Message:
        position = len(self.messages) - 1
        message = replace(
            self.messages[position],
            content=text,
            tokens=tuple(tokens),
            finish_reason=reason,
            partial=partial,
        )
        self.messages[position] = message
        self._write(
            lambda store, session: store.revise(session, position, text, tokens, reason, partial)
        )
        return message

    def _name_after(self, text: str) -> None:
        if self.store is None or self.messages:
            return
        title = "".join(c for c in one_line(text, TITLE) if c.isprintable()).strip() or "Chat"
        if self.session is None:
            self._create(title)
        elif self.session.name == f"chat-{self.session.id[:8]}":
            with contextlib.suppress(EdgekvError):
                self.rename(self._free_name(title))

    def _free_name(self, name: str) -> str:
        assert self.store is not None
        taken = {session.name for session in self.store.sessions()}
        numbered = (f"{name} ({n})" for n in range(2, len(taken) + 3))
        return name if name not in taken else next(n for n in numbered if n not in taken)

    def _create(self, name: str | None) -> None:
        if self.store is None:
            return
        try:
            free = None if name is None else self._free_name(name)
            self.session = self.store.create(free, self.model, self.settings)
            self._lock = self.store.lock(self.session.id)
        except EdgekvError as error:
            self._detach(error)

    def _write(self, write: Callable[[Store, str], object]) -> None:
        if self.store is None or self.session is None:
            return
        try:
            write(self.store, self.session.id)
        except EdgekvError as error:
            self._detach(error)

    def _detach(self, error: EdgekvError) -> None:
        # What follows would stand at wrong positions: from here on this is in memory alone.
        self.store = None
        self._complain(f"not kept on disk from here on (/export does): {error}")
