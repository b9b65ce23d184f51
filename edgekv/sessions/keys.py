"""Where the key of an encrypted store lies: in a file and in the database, the same text."""

import zlib
from pathlib import Path

from edgekv.sessions.database import Database
from edgekv.sessions.seal import Clear, Seal, Sealed, StoreLocked, make, unlock


def seal(folder: Path, db: Database) -> Seal:
    """How the store's text is kept. Raises StoreLocked where it cannot be read."""
    texts = [blob for (blob,) in db.read("SELECT value FROM facts WHERE name = 'key'")]
    path = folder / "key"
    if path.exists():
        texts.append(path.read_bytes())
    if not texts:
        return Clear()
    for text in texts:
        checksum, _, body = text.partition(b"\n")
        if checksum == _sum(body):
            return unlock(body.decode())
    raise StoreLocked(f"the key of the stored sessions is damaged, in {db.path} and in {path}")


def create(keyring: bool) -> tuple[Sealed, bytes]:
    """A new key, and the text to keep of it; nothing is written yet."""
    made, text = make(keyring)
    body = text.encode()
    return made, _sum(body) + b"\n" + body


def _sum(body: bytes) -> bytes:
    return b"%08x" % zlib.crc32(body)
