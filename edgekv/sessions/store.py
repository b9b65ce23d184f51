"""Store: the transcripts of all sessions, in SQLite with a copy of each beside it."""

import shutil
import sqlite3
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from edgekv import config
from edgekv.errors import InvalidValue
from edgekv.files import write_whole
from edgekv.sessions import keys, rows
from edgekv.sessions.database import Database, open_or_recover
from edgekv.sessions.lock import SessionLock, locked_sessions
from edgekv.sessions.mirror import Mirror, Transcript
from edgekv.sessions.records import (
    Message,
    Session,
    SessionInUse,
    SessionNotFound,
    StoreUnavailable,
    check_name,
)
from edgekv.sessions.rows import Rows
from edgekv.sessions.seal import Seal

_SESSIONS = f"SELECT {rows.SESSION} FROM sessions"
_SEALING = "sealing"
"""A fact that is there until all that was in the clear has been sealed or removed."""

_COUNT = "SELECT count(*) FROM messages WHERE session = ?"


class Store:
    """Sessions and their messages. Threads of a process may share one; processes have their own.

    Opening it makes the folder and the file where they are missing, or, where they cannot be
    written, reads what is there: then `writable` is False. What is damaged is restored from the
    copies; `notes` says so, a line each. Every method raises StoreUnavailable when the disk is
    full, read-only or gone; those that take a session's id raise SessionNotFound for one that is
    not there. What a method returns is committed. Raises StoreLocked for an encrypted store whose
    key is not at hand.
    """

    def __init__(self, folder: Path | None = None, read_only: bool = False) -> None:
        self.folder = folder or config.paths().data
        self.db: Database
        self.db, self.notes = open_or_recover(self.folder / "edgekv.db", read_only)
        try:
            self._use(keys.seal(self.folder, self.db))
            self._finish_sealing()
            self._catch_up()
        except BaseException:
            self.db.close()
            raise

    @property
    def writable(self) -> bool:
        return self.db.writable

    def close(self) -> None:
        self.db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def create(
        self,
        name: str | None = None,
        model: str = "",
        settings: Mapping[str, Any] | None = None,
        parent: str | None = None,
        messages: Sequence[Message] = (),
    ) -> Session:
        """A new session, named after its id unless told. Raises InvalidValue for a taken name."""
        new, now = uuid.uuid4().hex, time.time()
        name = f"chat-{new[:8]}" if name is None else name
        with self.db.transaction() as db:
            self._check_free(name)
            used = _next_use(db)
            one = Session(new, name, model, settings or {}, now, now, used, parent=parent)
            one = replace(one, n_messages=len(messages))
            self._rows.put_session(db, one)
            for message in messages:
                self._rows.put_message(db, new, message)
        self._copy(new)
        return self.get(new)

    def get(self, name: str) -> Session:
        """The session of that name or id, a deleted one by its id alone."""
        for session in self._sessions():
            if session.id == name or (session.name == name and not session.deleted):
                return session
        raise _not_found(name)

    def sessions(self, deleted: bool = False) -> list[Session]:
        """The sessions that are there, or those that were deleted, the last used first."""
        return [session for session in self._sessions() if session.deleted == deleted]

    def last(self) -> Session | None:
        """The session used last."""
        return next(iter(self.sessions()), None)

    def rename(self, session: str, name: str) -> Session:
        """Give another name. Raises InvalidValue for one that is taken or unprintable."""
        with self._change(session, name=name):
            self._check_free(name, session)
        return self.get(session)

    def configure(
        self, session: str, model: str | None = None, settings: Mapping[str, Any] | None = None
    ) -> Session:
        """Set the model or replace the settings of a session."""
        given: dict[str, Any] = {"model": model, "settings": settings}
        self._set(session, **{k: v for k, v in given.items() if v is not None})
        return self.get(session)

    def pin(self, session: str, pinned: bool = True) -> None:
        """Keep a session's KV on disk whatever the quota says, or no longer."""
        self._set(session, pinned=pinned)

    def set_draft(self, session: str, text: str) -> None:
        """Remember what the user has typed and not sent; `Session.draft` gives it back."""
        self._set(session, copy=False, draft=text)

    def branch(self, session: str, position: int | None = None, name: str | None = None) -> Session:
        """A new session with the messages before `position` (default: all) of this one.

        Its settings and model are the same. All of it shares the KV on disk; one that is cut
        holds none until its next turn, which finds what is there. To edit message p, branch at p
        (or `truncate` at p) and append the edited one. Raises InvalidValue for a position outside.
        """
        origin, said = self.get(session), self.messages(session)
        if position is not None and not 0 <= position <= len(said):
            raise InvalidValue(f"expected a position of 0 to {len(said)}, got {position}")
        new = self.create(name, origin.model, origin.settings, origin.id, said[:position])
        if new.n_messages == len(said):
            query = "INSERT INTO holds SELECT ?, key FROM holds WHERE session = ?"
            with self.db.transaction() as db:
                db.execute(query, (new.id, origin.id))
        return new

    def delete(self, session: str) -> None:
        """Put a session out of sight; `undelete` brings it back until `purge` or gc."""
        self._set(session, deleted=True)

    def undelete(self, session: str) -> Session:
        """Bring a deleted session back, under another name where its own has been taken."""
        gone = self.get(session)
        taken = {other.name for other in self.sessions()}
        name = gone.name if gone.name not in taken else f"{gone.name} {gone.id[:8]}"
        self._set(session, deleted=False, name=name)
        return self.get(session)

    def purge(self, session: str) -> None:
        """Remove a session's text for good, its traces in the database file included.

        So are the branches of it that are out of sight, which hold what was taken back.
        """
        hidden = [one.id for one in self.sessions(deleted=True) if one.parent == session]
        for one in (session, *hidden):
            # The copy first: one that was left behind would bring the session back.
            self._mirror.remove(one)
            with self.db.transaction() as db:
                self._one(db, one)
                db.execute("DELETE FROM sessions WHERE id = ?", (one,))
        self.db.scrub()

    def lock(self, session: str) -> SessionLock:
        """Take a session for this process until `release`. Raises SessionInUse."""
        lock = SessionLock(self.folder / "locks", session)
        lock.acquire(self.get(session))
        return lock

    def kv_bytes(self) -> dict[str, int]:
        """Bytes of KV on disk that each session holds; shared blocks count for each."""
        query = "SELECT session, sum(nbytes) FROM holds JOIN entries USING (key) GROUP BY session"
        return dict(self.db.read(query))

    # Messages

    def messages(self, session: str) -> list[Message]:
        """The transcript, in order."""
        n = self.get(session).n_messages
        query = f"SELECT {rows.MESSAGE} FROM messages WHERE session = ? ORDER BY position"
        found = [self._rows.message(row) for row in self.db.read(query, session)]
        whole = [one for one in found if one is not None]
        if len(found) == len(whole) == n and all(i == m.position for i, m in enumerate(whole)):
            return whole
        copy = self._restore(session)
        return whole if copy is None else copy[1]

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
        with self._change(session, copy=not partial) as db:
            (n,) = db.execute(_COUNT, (session,)).fetchone()
            new = Message(n, role, content, tuple(tokens), finish_reason, partial, time.time())
            self._rows.put_message(db, session, new)
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
        said = self.messages(session)
        if not 0 <= position < len(said):
            raise InvalidValue(f"the session has no message {position}")
        new = replace(
            said[position],
            content=content,
            tokens=tuple(tokens),
            finish_reason=finish_reason,
            partial=partial,
        )
        with self._change(session, copy=not partial) as db:
            self._rows.put_message(db, session, new)
        return new

    def truncate(self, session: str, position: int) -> int:
        """Remove the messages from `position` on, for good; returns how many those were."""
        with self._change(session) as db:
            query = "DELETE FROM messages WHERE session = ? AND position >= ?"
            return db.execute(query, (session, position)).rowcount

    def encrypt(self, keyring: bool = False) -> None:
        """Seal all text and KV from now on, under a passphrase or a key in the system's keyring.

        KV that was stored in the clear is removed, to be computed again. Raises StoreLocked,
        SessionInUse, or InvalidValue for a store that is encrypted already.
        """
        if self.seal.secret:
            raise InvalidValue("the stored sessions are encrypted already")
        if locked_sessions(self.folder / "locks"):
            raise SessionInUse("a session is open in another edgekv: close it first")
        everything = [(one, self.messages(one.id)) for one in self._sessions()]
        seal, key = keys.create(keyring)
        sealed = Rows(seal)
        # The key with all that it seals, or neither: a process that is killed leaves no mixture.
        with self.db.transaction() as db:
            db.execute("DELETE FROM entries")
            db.execute("DELETE FROM holds")
            for transcript in everything:
                _put(db, sealed, transcript)
            facts = [("key", key), (_SEALING, b"")]
            db.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts)
        self._use(seal)
        self._finish_sealing()

    def _use(self, seal: Seal) -> None:
        self.seal, self._rows = seal, Rows(seal)
        self._mirror = Mirror(self.folder / "transcripts", seal)

    def _finish_sealing(self) -> None:
        """Seal the copies, and remove what else there is in the clear."""
        found = dict(self.db.read("SELECT name, value FROM facts"))
        if _SEALING not in found or not self.writable:
            return
        write_whole(self.folder / "key", found["key"])
        for one in self._sessions():
            self._mirror.remove(one.id)
            self._copy(one.id)
        shutil.rmtree(self.folder / "blocks", ignore_errors=True)
        shutil.rmtree(self.folder / "damaged", ignore_errors=True)
        self.db.scrub()
        with self.db.transaction() as db:
            db.execute("DELETE FROM facts WHERE name = ?", (_SEALING,))

    # Rows and copies

    def damaged(self) -> Iterable[str]:
        """Restore every session, message and copy that is not what was written; what those were."""
        before = len(self.notes)
        for session in self._sessions():
            self.messages(session.id)
            if self.writable and self._mirror.read(session.id) is None:
                self.notes.append(f"the copy of session {session.name!r} was damaged: made again")
                self._mirror.remove(session.id)
                self._copy(session.id)
        return self.notes[before:]

    def _sessions(self) -> list[Session]:
        found = []
        for row in self.db.read(_SESSIONS):
            one = self._rows.session(row)
            if one is None:
                copy = self._restore(str(row[0]))
                one = None if copy is None else copy[0]
            if one is not None:
                found.append(one)
        return sorted(found, key=lambda one: one.used, reverse=True)

    @contextmanager
    def _change(
        self,
        session: str,
        copy: bool = True,
        **fields: Any,  # noqa: ANN401 - those of Session
    ) -> Iterator[sqlite3.Connection]:
        """A transaction on one session, which must exist and becomes the last used."""
        if self.get(session).n_messages != self.db.read(_COUNT, session)[0][0]:
            self._restore(session)
        with self.db.transaction() as db:
            one = self._one(db, session)
            yield db
            (n,) = db.execute(_COUNT, (session,)).fetchone()
            fields |= {"updated": time.time(), "used": _next_use(db), "n_messages": n}
            self._rows.put_session(db, replace(one, **fields))
        if copy:
            self._copy(session)

    def _set(self, session: str, **changed: Any) -> None:  # noqa: ANN401 - as `_change` takes
        with self._change(session, **changed):
            pass

    def _one(self, db: sqlite3.Connection, session: str) -> Session:
        row = db.execute(f"{_SESSIONS} WHERE id = ?", (session,)).fetchone()
        one = None if row is None else self._rows.session(row)
        if one is None:
            raise _not_found(session)
        return one

    def _check_free(self, name: str, session: str | None = None) -> None:
        check_name(name)
        if any(other.name == name and other.id != session for other in self.sessions()):
            raise InvalidValue(f"there is a session {name!r} already: choose another name")

    def _copy(self, session: str) -> None:
        try:
            self._mirror.write(self.get(session), self.messages(session))
        except OSError as fault:
            raise StoreUnavailable(f"sessions in {self.folder}: {fault.strerror}") from fault

    def _catch_up(self) -> None:
        """Restore what the database lacks: a damaged one, or a damaged log of it."""
        copies = self._mirror.versions()
        there = dict(self.db.read("SELECT id, used FROM sessions"))
        lacking = [session for session, used in copies.items() if there.get(session, -1) < used]
        # All of them at once: none is damaged, their index is gone.
        gone = bool(lacking) and not there
        n = sum(self._restore(session, told=not gone) is not None for session in lacking)
        if gone:
            cause = "" if self.notes else f"the index {self.db.path} was missing: "
            self.notes.append(f"{cause}{n} of {len(lacking)} sessions restored from their copies")

    def _restore(self, session: str, told: bool = True) -> Transcript | None:
        """Put a session back as its copy has it, if there is one."""
        copy, lost = self._mirror.salvage(session)
        if copy is None:
            self.notes.append(f"session {session[:8]} is damaged, and so is its copy")
            return None
        if self.writable:
            with self.db.transaction() as db:
                _put(db, self._rows, copy)
        if lost or told:
            some = f"all but {lost} messages " if lost else ""
            self.notes.append(f"session {copy[0].name!r} was damaged: {some}restored from its copy")
        return copy


def _put(db: sqlite3.Connection, rows: Rows, transcript: Transcript) -> None:
    session, messages = transcript
    rows.put_session(db, session)
    db.execute("DELETE FROM messages WHERE session = ?", (session.id,))
    for message in messages:
        rows.put_message(db, session.id, message)


def _next_use(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(used), 0) + 1 FROM sessions").fetchone()[0])


def _not_found(name: str) -> SessionNotFound:
    return SessionNotFound(f"no session {name!r} (see `edgekv sessions list`)")
