"""A second copy of each transcript, a file a session, for when the database is damaged.

SQLite notices a damaged page at best, not a flipped bit in a text, and a damaged log loses
transactions. A copy is named by its session and by the count that orders sessions, so that a
look at the folder tells whether the database lacks something.
"""

import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from edgekv.files import private_folder, write_whole
from edgekv.sessions.records import Message, Session
from edgekv.sessions.seal import Seal

FORMAT = 1

Transcript = tuple[Session, list[Message]]


class Mirror:
    """The copies in a folder. Writing raises OSError; reading what is damaged gives None."""

    def __init__(self, folder: Path, seal: Seal) -> None:
        self._folder = folder
        self._seal = seal

    def versions(self) -> dict[str, int]:
        """Session ids to the newest count that there is a copy of."""
        found: dict[str, int] = {}
        for path in self._folder.glob("*.json"):
            session, _, used = path.stem.partition(".")
            if used.isdigit():
                found[session] = max(found.get(session, 0), int(used))
        return found

    def write(self, session: Session, messages: Sequence[Message]) -> None:
        """Replace the copy of a session."""
        body = self._seal.seal(json.dumps(to_document(session, messages)).encode())
        old = self._paths(session.id)
        new = private_folder(self._folder) / f"{session.id}.{session.used}.json"
        write_whole(new, b"%08x\n%b" % (zlib.crc32(body), body))
        for path in old:
            if path != new:
                path.unlink(missing_ok=True)

    def read(self, session: str) -> Transcript | None:
        """The newest copy of a session that is whole."""
        for path in sorted(self._paths(session), key=_used, reverse=True):
            try:
                checksum, _, body = path.read_bytes().partition(b"\n")
                if int(checksum, 16) != zlib.crc32(body):
                    continue
                return from_document(json.loads(self._seal.open(body)))
            except (OSError, ValueError, KeyError, TypeError):
                continue
        return None

    def remove(self, session: str) -> None:
        for path in self._paths(session):
            path.unlink(missing_ok=True)

    def _paths(self, session: str) -> list[Path]:
        return list(self._folder.glob(f"{session}.*.json"))


def _used(path: Path) -> int:
    used = path.stem.partition(".")[2]
    return int(used) if used.isdigit() else -1


def to_document(session: Session, messages: Sequence[Message]) -> dict[str, Any]:
    """A transcript as JSON values."""
    facts = asdict(replace(session, settings=dict(session.settings)))
    return {"format": FORMAT, "session": facts, "messages": [asdict(one) for one in messages]}


def from_document(document: dict[str, Any]) -> Transcript:
    """A transcript from JSON values. Raises ValueError, KeyError or TypeError for others."""
    if document["format"] != FORMAT:
        raise ValueError(f"format {document['format']!r}, this edgekv reads {FORMAT}")
    session = Session(**document["session"])
    messages = [Message(**{**one, "tokens": tuple(one["tokens"])}) for one in document["messages"]]
    texts = [session.id, session.name, session.model, session.draft]
    texts += [text for one in messages for text in (one.role, one.content, one.finish_reason or "")]
    numbers = [token for one in messages for token in one.tokens]
    if not all(isinstance(text, str) for text in texts) or not isinstance(session.settings, dict):
        raise TypeError("a text that is none")
    if not all(isinstance(number, int) and 0 <= number < 2**32 for number in numbers):
        raise TypeError("a token id that is none")
    ordered = [replace(one, position=n) for n, one in enumerate(messages)]
    return session, ordered
