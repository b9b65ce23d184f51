"""Store: the transcripts of all sessions, in SQLite."""

import json
import sqlite3
import time
import uuid
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from edgekv import config
from edgekv.errors import InvalidValue
from edgekv.sessions.database import Database
from edgekv.sessions.lock import SessionLock
from edgekv.sessions.records import Hit, Message, Session, SessionNotFound

MAX_NAME = 200
EXCERPT = 60
"""Characters of a search hit's excerpt on each side of what was found."""

_SESSION = """SELECT id, name, model, settings, created, updated, used, pinned, draft, parent,
    deleted, (SELECT count(*) FROM messages WHERE session = id) FROM sessions"""
_MESSAGE = "SELECT position, role, content, tokens, finish_reason, partial, created FROM messages"


class Store:
    """Sessions and their messages. Threads of a process may share one; processes have their own.

    Opening it makes the folder and the file where they are missing, or, where they cannot be
    written, reads what is there: then `writable` is False. Every method raises StoreUnavailable
    when the disk is full, read-only or gone; those that take a session's id raise
    SessionNotFound for one that is not there. What a method returns is committed.
    """

    def __init__(self, folder: Path | None = None, read_only: bool = False) -> None:
        self.folder = folder or config.paths().data
        self.db = Database(self.folder / "edgekv.db", read_only)

    @property
    def writable(self) -> bool:
        return self.db.writable

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Sessions

    def create(
        self,
        name: str | None = None,
        model: str = "",
        settings: Mapping[str, Any] | None = None,
        parent: str | None = None,
    ) -> Session:
        """A new session, named after its id unless told. Raises InvalidValue for a taken name."""
        new, now = uuid.uuid4().hex, time.time()
        name = f"chat-{new[:8]}" if name is None else name
        with self.db.transaction() as db:
            self._check_free(name)
            db.execute(
                "INSERT INTO sessions (id, name, model, settings, created, updated, used, parent)"
                " VALUES (?, ?, ?, ?, ?, ?, 0, ?)",
                (
                    new,
                    _blob(name),
                    model,
                    _blob(json.dumps(dict(settings or {}))),
                    now,
                    now,
                    parent,
                ),
            )
            _touch(db, new)
        return self.get(new)

    def get(self, name: str) -> Session:
        """The session of that name or id, a deleted one by its id alone."""
        for session in self._sessions():
            if session.id == name or (session.name == name and not session.deleted):
                return session
        raise SessionNotFound(f"no session {name!r} (see `edgekv sessions list`)")

    def sessions(self, deleted: bool = False) -> list[Session]:
        """The sessions that are there, or those that were deleted, the last used first."""
        return [session for session in self._sessions() if session.deleted == deleted]

    def last(self) -> Session | None:
        """The session used last."""
        return next(iter(self.sessions()), None)

    def _sessions(self) -> list[Session]:
        return [_session(row) for row in self.db.read(f"{_SESSION} ORDER BY used DESC")]

    def rename(self, session: str, name: str) -> Session:
        """Give another name. Raises InvalidValue for one that is taken or unprintable."""
        with self._change(session) as db:
            self._check_free(name, session)
            db.execute("UPDATE sessions SET name = ? WHERE id = ?", (_blob(name), session))
        return self.get(session)

    def configure(
        self, session: str, model: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> Session:
        """Set the model or replace the settings of a session."""
        with self._change(session) as db:
            if model is not None:
                db.execute("UPDATE sessions SET model = ? WHERE id = ?", (model, session))
            if settings is not None:
                text = _blob(json.dumps(dict(settings)))
                db.execute("UPDATE sessions SET settings = ? WHERE id = ?", (text, session))
        return self.get(session)

    def pin(self, session: str, pinned: bool = True) -> None:
        """Keep a session's KV on disk whatever the quota says, or no longer."""
        with self._change(session) as db:
            db.execute("UPDATE sessions SET pinned = ? WHERE id = ?", (pinned, session))

    def set_draft(self, session: str, text: str) -> None:
        """Remember what the user has typed and not sent; `Session.draft` gives it back."""
        with self._change(session) as db:
            db.execute("UPDATE sessions SET draft = ? WHERE id = ?", (_blob(text), session))

    def branch(self, session: str, position: int | None = None, name: str | None = None) -> Session:
        """A new session with the messages before `position` (default: all) of this one.

        Its settings and model are the same, and so is its KV on disk, which is shared. To edit
        message p, branch at p (or `truncate` at p) and append the edited one.
        """
        origin = self.get(session)
        end = origin.n_messages if position is None else position
        new = self.create(name, origin.model, origin.settings, parent=origin.id)
        with self._change(new.id) as db:
            db.execute(
                "INSERT INTO messages SELECT ?, position, role, content, tokens, finish_reason,"
                " partial, created, checksum FROM messages WHERE session = ? AND position < ?",
                (new.id, origin.id, end),
            )
            db.execute(
                "INSERT INTO holds SELECT ?, key FROM holds WHERE session = ?", (new.id, origin.id)
            )
        return self.get(new.id)

    def delete(self, session: str) -> None:
        """Put a session out of sight; `undelete` brings it back until `purge` or gc."""
        with self._change(session) as db:
            db.execute("UPDATE sessions SET deleted = 1 WHERE id = ?", (session,))

    def undelete(self, session: str) -> Session:
        """Bring a deleted session back, under another name where its own has been taken."""
        gone = self.get(session)
        with self._change(session) as db:
            taken = {other.name for other in self.sessions()}
            name = gone.name if gone.name not in taken else f"{gone.name} {gone.id[:8]}"
            db.execute(
                "UPDATE sessions SET deleted = 0, name = ? WHERE id = ?", (_blob(name), session)
            )
        return self.get(session)

    def purge(self, session: str) -> None:
        """Remove a session's text for good, its traces in the database file included."""
        with self._change(session) as db:
            db.execute("DELETE FROM sessions WHERE id = ?", (session,))
        self.db.scrub()

    def lock(self, session: str) -> SessionLock:
        """Take a session for this process until `release`. Raises SessionInUse."""
        lock = SessionLock(self.folder / "locks", session)
        lock.acquire(self.get(session))
        return lock

    # Messages

    def messages(self, session: str) -> list[Message]:
        """The transcript, in order."""
        self.get(session)
        rows = self.db.read(f"{_MESSAGE} WHERE session = ? ORDER BY position", session)
        return [_message(row) for row in rows]

    def append(
        self,
        session: str,
        role: str,
        content: str,
        tokens: Sequence[int] = (),
        finish_reason: str | None = None,
        partial: bool = False,
    ) -> Message:
        """Add a message at the end.

        A reply is appended with partial=True when its first text comes, `revise`d every second
        or so while it grows, and revised a last time with its tokens and finish_reason: a
        process that is killed leaves it marked partial.
        """
        with self._change(session) as db:
            query = "SELECT count(*) FROM messages WHERE session = ?"
            (n,) = db.execute(query, (session,)).fetchone()
            new = Message(n, role, content, tuple(tokens), finish_reason, partial, time.time())
            _put(db, session, new)
        return new

    def revise(
        self,
        session: str,
        position: int,
        content: str,
        tokens: Sequence[int] = (),
        finish_reason: str | None = None,
        partial: bool = False,
    ) -> Message:
        """Replace what a message says; its position and role stay. Raises InvalidValue."""
        with self._change(session) as db:
            row = db.execute(
                f"{_MESSAGE} WHERE session = ? AND position = ?", (session, position)
            ).fetchone()
            if row is None:
                raise InvalidValue(f"the session has no message {position}")
            new = replace(
                _message(row),
                content=content,
                tokens=tuple(tokens),
                finish_reason=finish_reason,
                partial=partial,
            )
            _put(db, session, new)
        return new

    def truncate(self, session: str, position: int) -> int:
        """Remove the messages from `position` on, for good; returns how many those were."""
        with self._change(session) as db:
            query = "DELETE FROM messages WHERE session = ? AND position >= ?"
            return db.execute(query, (session, position)).rowcount

    def search(self, text: str, limit: int = 50) -> list[Hit]:
        """Messages of sessions that are there with `text` in them, whatever its case.

        The last used session comes first, in it the newest message. A scan of the text itself:
        it finds any part of a word in any script, and no index keeps what was deleted.
        """
        wanted, hits = text.casefold(), []
        if not wanted:
            return []
        for session in self.sessions():
            for message in reversed(self.messages(session.id)):
                at = message.content.casefold().find(wanted)
                if at < 0:
                    continue
                excerpt = message.content[max(0, at - EXCERPT) : at + len(text) + EXCERPT]
                hits.append(Hit(session, message.position, message.role, excerpt))
                if len(hits) == limit:
                    return hits
        return hits

    @contextmanager
    def _change(self, session: str) -> Iterator[sqlite3.Connection]:
        """A transaction on one session, which must exist and becomes the last used."""
        with self.db.transaction() as db:
            _touch(db, session)
            yield db

    def _check_free(self, name: str, session: str | None = None) -> None:
        if not name.strip() or not name.isprintable() or len(name) > MAX_NAME:
            raise InvalidValue(
                f"a session's name must be 1 to {MAX_NAME} printable characters, got {name!r}"
            )
        if any(other.name == name and other.id != session for other in self.sessions()):
            raise InvalidValue(f"there is a session {name!r} already: choose another name")


def _touch(db: sqlite3.Connection, session: str) -> None:
    done = db.execute(
        "UPDATE sessions SET updated = ?, used = (SELECT max(used) + 1 FROM sessions) WHERE id = ?",
        (time.time(), session),
    )
    if done.rowcount == 0:
        raise SessionNotFound(f"no session {session!r} (see `edgekv sessions list`)")


def _put(db: sqlite3.Connection, session: str, message: Message) -> None:
    db.execute(
        "INSERT OR REPLACE INTO messages VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            session,
            message.position,
            message.role,
            _blob(message.content),
            array("I", message.tokens).tobytes(),
            message.finish_reason,
            message.partial,
            message.created,
            message.checksum,
        ),
    )


def _blob(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _text(blob: bytes) -> str:
    return blob.decode("utf-8", "surrogatepass")


def _message(row: tuple[Any, ...]) -> Message:
    position, role, content, tokens, finish_reason, partial, created = row
    ids = array("I", tokens)
    return Message(
        position, role, _text(content), tuple(ids), finish_reason, bool(partial), created
    )


def _session(row: tuple[Any, ...]) -> Session:
    id_, name, model, settings, created, updated, used, pinned, draft, parent, deleted, n = row
    return Session(
        id=id_,
        name=_text(name),
        model=model,
        settings=json.loads(settings),
        created=created,
        updated=updated,
        used=used,
        pinned=bool(pinned),
        draft=_text(draft),
        parent=parent,
        deleted=bool(deleted),
        n_messages=n,
    )
