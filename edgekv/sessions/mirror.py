"""A second copy of each transcript, for when the database is damaged.

SQLite notices a damaged page at best, not a flipped bit in a text, and a damaged log loses
transactions. A copy is named by its session and by the count that orders sessions, so that a
look at the folder tells whether the database lacks something. It holds the newest messages; those
before them are in parts, which are written once: a turn must not cost more the longer its session
is.
"""

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from edgekv.files import private_folder, write_whole
from edgekv.sessions.records import Message, Session
from edgekv.sessions.seal import Seal

FORMAT = 1

PART = 32
"""Messages of a part."""

Transcript = tuple[Session, list[Message]]


class _Part(NamedTuple):
    """A part, named by the count at which it was written, and what it says."""

    used: int
    digest: str


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
        """Replace the copy of a session; parts that say the same stay."""
        private_folder(self._folder)
        there, parts, kept = self._parts(session.id), [], set()
        full = len(messages) // PART
        for n in range(full):
            body = _encode([vars(one) for one in messages[n * PART : (n + 1) * PART]])
            part = _Part(session.used, hashlib.blake2b(body, digest_size=16).hexdigest())
            if n < len(there) and there[n].digest == part.digest:
                part = there[n]
            else:
                self._put(self._part(session.id, n, part), body)
            parts.append(part)
            kept.add(self._part(session.id, n, part))
        head = self._folder / f"{session.id}.{session.used}.json"
        newest = to_document(session, messages[full * PART :])
        self._put(head, _encode({"parts": parts, "newest": newest}))
        for path in self._folder.glob(f"{session.id}.*"):
            if path != head and path not in kept:
                path.unlink(missing_ok=True)

    def read(self, session: str) -> Transcript | None:
        """The newest copy of a session that is whole."""
        for path in self._heads(session):
            copy, lost = self._read(session, path)
            if copy is not None and not lost:
                return copy
        return None

    def salvage(self, session: str) -> tuple[Transcript | None, int]:
        """The copy of a session that lacks least, and how many messages that is."""
        found = [self._read(session, path) for path in self._heads(session)]
        sound = [(copy, lost) for copy, lost in found if copy is not None]
        return min(sound, key=lambda one: one[1], default=(None, 0))

    def _read(self, session: str, path: Path) -> tuple[Transcript | None, int]:
        """A copy, and how many of its messages are in parts that are damaged."""
        said: list[Any] = []
        lost = 0
        try:
            head = self._get(path)
            for n, part in enumerate(head["parts"]):
                try:
                    said += self._get(self._part(session, n, _Part(*part)))
                except (OSError, ValueError):
                    lost += PART
            document = head["newest"]
            said += document["messages"]
            facts = document["session"] | {"n_messages": len(said)}
            return from_document(document | {"session": facts, "messages": said}), lost
        except (OSError, ValueError, KeyError, TypeError):
            return None, 0

    def remove(self, session: str) -> None:
        for path in self._folder.glob(f"{session}.*"):
            path.unlink(missing_ok=True)

    def _parts(self, session: str) -> list[_Part]:
        """The parts of the newest copy, up to the first that is not there."""
        found: list[_Part] = []
        try:
            for path in self._heads(session)[:1]:
                for n, (used, digest) in enumerate(self._get(path)["parts"]):
                    found.append(_Part(int(used), digest))
                    self._part(session, n, found[-1]).stat()
        except (OSError, ValueError, KeyError, TypeError):
            return found[:-1]
        return found

    def _heads(self, session: str) -> list[Path]:
        return sorted(self._folder.glob(f"{session}.*.json"), key=_used, reverse=True)

    def _part(self, session: str, n: int, part: _Part) -> Path:
        return self._folder / f"{session}.{int(part.used)}.{n}.part"

    def _put(self, path: Path, body: bytes) -> None:
        sealed = self._seal.seal(body)
        write_whole(path, b"%08x\n%b" % (zlib.crc32(sealed), sealed))

    def _get(self, path: Path) -> Any:  # noqa: ANN401 - JSON
        checksum, _, body = path.read_bytes().partition(b"\n")
        if int(checksum, 16) != zlib.crc32(body):
            raise ValueError(f"{path}: damaged")
        return json.loads(self._seal.open(body))


def _encode(value: object) -> bytes:
    return json.dumps(value).encode()


def _used(path: Path) -> int:
    used = path.stem.partition(".")[2]
    return int(used) if used.isdigit() else -1


def to_document(session: Session, messages: Sequence[Message]) -> dict[str, Any]:
    """A transcript as JSON values."""
    facts = vars(replace(session, settings=dict(session.settings)))
    return {"format": FORMAT, "session": facts, "messages": [vars(one) for one in messages]}


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
