"""The fingerprint of a model: a digest of the files that its answers depend on."""

import hashlib
from pathlib import Path

from edgekv.sessions.records import StoreUnavailable
from edgekv.sessions.store import Store

SUFFIXES = {".gguf", ".safetensors", ".json", ".jinja", ".model", ".txt"}
"""Weights, configuration, tokenizer and chat template; a folder's other files say nothing."""


def fingerprint(path: Path, store: Store) -> str:
    """Digest of a model file, or of a folder's files by name.

    A file is read in full once, and again when its size, times or inode have changed: the
    change time cannot be set, so a file replaced by another of the same size is noticed. The key of
    an encrypted store goes in, so that the names of its blocks tell nothing of their tokens.
    """
    files = [path] if path.is_file() else sorted(f for f in path.iterdir() if f.suffix in SUFFIXES)
    state = hashlib.sha256(store.seal.secret.encode())
    for file in files:
        name = "" if file == path else file.name
        state.update(f"{name}\0{_digest(file, store)}\0".encode())
    return state.hexdigest()


def _digest(file: Path, store: Store) -> str:
    file = file.resolve()
    facts = file.stat()
    stamp = f"{facts.st_size} {facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}"
    rows = store.db.read("SELECT stamp, digest FROM digests WHERE path = ?", str(file))
    if rows and rows[0][0] == stamp:
        return str(rows[0][1])
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, "sha256").hexdigest()
    if store.writable:
        try:
            with store.db.transaction() as db:
                row = (str(file), stamp, digest)
                db.execute("INSERT OR REPLACE INTO digests VALUES (?, ?, ?)", row)
        except StoreUnavailable:
            # A full disk costs the reading again, next time.
            pass
    return digest
