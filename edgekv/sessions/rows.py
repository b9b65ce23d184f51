"""Rows of the database to records and back, sealed and with a checksum over what is stored."""

import json
import sqlite3
import zlib
from array import array
from typing import Any

from edgekv.sessions.records import Message, Session
from edgekv.sessions.seal import Seal

SESSION = (
    "id, name, model, settings, created, updated, used, pinned, draft, parent, deleted, "
    "n_messages, checksum"
)
MESSAGE = "position, role, content, tokens, finish_reason, partial, created, checksum"


class Rows:
    """How records are stored: text and token ids through a seal."""

    def __init__(self, seal: Seal) -> None:
        self._seal = seal

    def blob(self, text: str) -> bytes:
        """Any text, lone surrogates included, as it is stored."""
        return self._seal.seal(text.encode("utf-8", "surrogatepass"))

    def text(self, blob: bytes) -> str:
        return self._seal.open(blob).decode("utf-8", "surrogatepass")

    def put_session(self, db: sqlite3.Connection, one: Session) -> None:
        row: tuple[object, ...] = (
            one.id,
            self.blob(one.name),
            one.model,
            self.blob(json.dumps(dict(one.settings))),
            one.created,
            one.updated,
            one.used,
            int(one.pinned),
            self.blob(one.draft),
            one.parent,
            int(one.deleted),
            one.n_messages,
        )
        # Not REPLACE, which would delete the row first, and with it all that refers to it.
        columns = SESSION.split(", ")
        updates = ", ".join(f"{column} = excluded.{column}" for column in columns[1:])
        db.execute(
            f"INSERT INTO sessions ({SESSION}) VALUES ({', '.join('?' * len(columns))})"
            f" ON CONFLICT (id) DO UPDATE SET {updates}",
            (*row, _sum(row)),
        )

    def session(self, row: tuple[Any, ...]) -> Session | None:
        """A session from its columns; None where they are not what was written."""
        *stored, checksum = row
        if _sum(tuple(stored)) != checksum:
            return None
        id_, name, model, settings, created, updated, used, *rest = stored
        pinned, draft, parent, deleted, n_messages = rest
        return Session(
            id=id_,
            name=self.text(name),
            model=model,
            settings=json.loads(self.text(settings)),
            created=created,
            updated=updated,
            used=used,
            pinned=bool(pinned),
            draft=self.text(draft),
            parent=parent,
            deleted=bool(deleted),
            n_messages=n_messages,
        )

    def put_message(self, db: sqlite3.Connection, session: str, one: Message) -> None:
        row = (
            one.position,
            one.role,
            self.blob(one.content),
            self._seal.seal(array("I", one.tokens).tobytes()),
            one.finish_reason,
            int(one.partial),
            one.created,
        )
        db.execute(
            f"INSERT OR REPLACE INTO messages (session, {MESSAGE}) VALUES (?,?,?,?,?,?,?,?,?)",
            (session, *row, _sum(row)),
        )

    def message(self, row: tuple[Any, ...]) -> Message | None:
        """A message from its columns; None where they are not what was written."""
        *stored, checksum = row
        if _sum(tuple(stored)) != checksum:
            return None
        position, role, content, tokens, finish_reason, partial, created = stored
        ids = tuple(array("I", self._seal.open(tokens)))
        text = self.text(content)
        return Message(position, role, text, ids, finish_reason, bool(partial), created)


def _sum(row: tuple[object, ...]) -> int:
    """CRC-32 over all columns as they are stored."""
    return zlib.crc32(repr(row).encode("utf-8", "backslashreplace"))
