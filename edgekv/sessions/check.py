"""Upkeep of the store: looking at every file, mending the index, clearing what is left over."""

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from edgekv.files import sweep_temporary
from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.entry import Refused
from edgekv.sessions.lock import SessionLock
from edgekv.sessions.records import SessionNotFound
from edgekv.sessions.store import Store

SECOND_LOOK_S = 1.0
"""A file is written just before its row: what has none after this is nobody's."""


@dataclass
class Findings:
    """What `verify` saw and did.

    damaged: what was wrong with each file that was set aside, or message that is not whole.
    missing: rows without a file, removed. adopted: files without a row that a session holds, put
    back into the index. orphans: other files without a row, removed.
    """

    files: int = 0
    bytes: int = 0
    messages: int = 0
    damaged: list[str] = field(default_factory=list)
    missing: int = 0
    adopted: int = 0
    orphans: int = 0


def verify(store: Store, files: BlockFiles) -> Findings:
    """Read every file and every message, set aside what is damaged, and mend the index."""
    found = Findings()
    (state,) = store.db.read("PRAGMA integrity_check")[0]
    if state != "ok":
        found.damaged.append(f"{store.db.path.name}: {' '.join(str(state).split())[:200]}")
    for session in store.sessions() + store.sessions(deleted=True):
        found.messages += session.n_messages
    found.damaged += store.damaged()
    loose = {path.stem for path in files.folder.glob("*/*.safetensors")}
    rows = store.db.read("SELECT key FROM entries")
    for (key,) in rows:
        _check(files, key, found)
    loose -= {key for (key,) in rows}
    if loose:
        time.sleep(SECOND_LOOK_S)
        for key in loose - files.known(sorted(loose)):
            _settle(files, key, found)
    return found


def _check(files: BlockFiles, key: str, found: Findings) -> None:
    try:
        entry = files.load(key)
    except Refused as fault:
        found.damaged.append(str(fault))
        return
    if entry is None:
        found.missing += 1
        return
    found.files += 1
    found.bytes += entry.nbytes


def _settle(files: BlockFiles, key: str, found: Findings) -> None:
    """A file without a row: put back into the index where a session holds it, else removed."""
    if files.adopt(key):
        found.adopted += 1
    else:
        files.path(key).unlink(missing_ok=True)
        found.orphans += 1


def gc(store: Store, files: BlockFiles) -> dict[str, int]:
    """Remove for good what was deleted or left over, and bring the store under its quota.

    Returns how many sessions and temporary files went, and the bytes that became free.
    """
    before = files.nbytes
    gone = store.sessions(deleted=True)
    for session in gone:
        # One that was a branch of another went with it.
        with suppress(SessionNotFound):
            store.purge(session.id)
    _remove_locks(store.folder / "locks", {one.id for one in store.sessions()})
    shutil.rmtree(store.folder / "damaged", ignore_errors=True)
    swept = sweep_temporary(store.folder)
    files.collect()
    files.enforce()
    return {"sessions": len(gone), "temporary": swept, "bytes": before - files.nbytes}


def _remove_locks(folder: Path, wanted: set[str]) -> None:
    for path in folder.glob("*.lock"):
        lock = SessionLock(folder, path.stem)
        if path.stem not in wanted and lock.try_acquire():
            path.unlink(missing_ok=True)
            lock.release()
