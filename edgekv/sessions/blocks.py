"""BlockFiles: closed blocks and tails on disk, one file each, under one quota."""

import shutil
import sqlite3
from array import array
from collections.abc import Iterable, Sequence
from pathlib import Path

from edgekv.files import private_folder, sweep_temporary, write_whole
from edgekv.sessions.entry import Entry, Refused, decode, encode
from edgekv.sessions.lock import locked_sessions
from edgekv.sessions.records import StoreUnavailable
from edgekv.sessions.store import Store

QUOTA = 4_000_000_000
SHARE_OF_DISK = 10
"""The quota is at most one part in so many of what the disk has free."""

LOG = 5_000_000
"""Bytes always counted for the database's log, which grows to 1,000 pages, and for what it adds to
the database before the next look."""

TAILS_KEPT = 8
"""Tails of a session: so many of its last turns can be gone back to without recomputing any."""

MAX_DAMAGED = 8
"""Files set aside at the most, to be looked at."""

_IN_SQL = 500
"""Values in one statement, below SQLite's limit."""


class BlockFiles:
    """The files of a store's blocks and their index. Threads may share one.

    A file that is not what the index promises is set aside. The quota counts the database, the
    transcripts' copies, the files and what was set aside; it is kept at every write, and `enforce`
    keeps it at start.
    """

    def __init__(self, store: Store, quota: int | None = None) -> None:
        self._store = store
        self._db = store.db
        self._seal = store.seal
        self.folder = store.folder / "blocks"
        self._aside = store.folder / "damaged"
        self.quota = self._default_quota() if quota is None else quota

    @property
    def writable(self) -> bool:
        return self._db.writable

    def _default_quota(self) -> int:
        free = shutil.disk_usage(self._store.folder).free
        return min(QUOTA, (free + self.nbytes) // SHARE_OF_DISK)

    @property
    def nbytes(self) -> int:
        """Bytes on disk of all that the quota counts."""
        (entries,) = self._db.read("SELECT coalesce(sum(nbytes), 0) FROM entries")[0]
        copies = self._store.folder.glob("transcripts/*")
        beside = [self._db.path, *copies, *self._aside.glob("*")]
        return LOG + int(entries) + sum(path.stat().st_size for path in beside if path.exists())

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"

    def known(self, keys: Sequence[str]) -> set[str]:
        """Those of the keys that are on disk."""
        found: set[str] = set()
        for part in _parts(keys):
            query = f"SELECT key FROM entries WHERE key IN ({_marks(part)})"
            found.update(key for (key,) in self._db.read(query, *part))
        return found

    def tails(self, base: str) -> list[tuple[str, tuple[int, ...]]]:
        """(key, fp16 tokens) of every tail behind those blocks."""
        query = "SELECT key, suffix FROM entries WHERE kind = 'tail' AND base = ?"
        rows = self._db.read(query, base)
        return [(key, tuple(array("I", self._seal.open(suffix)))) for key, suffix in rows]

    def held(self, session: str) -> list[str]:
        """The keys that a session holds, the least recently used first."""
        query = "SELECT key FROM holds JOIN entries USING (key) WHERE session = ? ORDER BY used"
        return [key for (key,) in self._db.read(query, session)]

    def load(self, key: str) -> Entry | None:
        """An entry from its file; None where the file has gone.

        Raises Refused, with the file set aside, where it is not sound, or not of that key.
        """
        try:
            entry = decode(self._seal.open(self.path(key).read_bytes()))
            if entry.key != key:
                raise Refused("it is another file's content")
        except FileNotFoundError:
            self._forget(key)
            return None
        except (OSError, Refused, ValueError) as fault:
            reason = fault.strerror if isinstance(fault, OSError) else str(fault)
            raise self.refuse(key, reason) from fault
        return entry

    def refuse(self, key: str, reason: str | None) -> Refused:
        """Set a file aside, and say why."""
        self._set_aside(key)
        return Refused(f"{key[:12]}: {reason}")

    def _set_aside(self, key: str) -> None:
        if not self.writable:
            return
        try:
            private_folder(self._aside)
            self.path(key).replace(self._aside / f"{key}.safetensors")
            old = sorted(self._aside.glob("*"), key=lambda path: path.stat().st_mtime)
            for path in old[:-MAX_DAMAGED]:
                path.unlink(missing_ok=True)
        except OSError:
            # Where nothing can be moved the index alone can forget it, or not even that.
            pass
        self._forget(key)

    def _forget(self, key: str) -> None:
        if self.writable:
            with self._db.transaction() as db:
                db.execute("DELETE FROM entries WHERE key = ?", (key,))

    def adopt(self, key: str) -> bool:
        """Put a sound file back into the index where a session holds it; whether that was so."""
        try:
            entry = self.load(key)
        except Refused:
            return False
        if entry is None or not self._db.read("SELECT 1 FROM holds WHERE key = ?", key):
            return False
        with self._db.transaction() as db:
            self._add(db, entry, self.path(key).stat().st_size)
        return True

    def put(self, session: str, entries: Sequence[Entry]) -> None:
        """Write entries for a session. Raises OSError or StoreUnavailable when that fails.

        Raises StoreUnavailable too where the quota has no room that could be made.
        """
        new = [e for e in entries if e.key not in self.known([e.key])]
        contents = [self._seal.seal(encode(entry)) for entry in new]
        self.make_room(sum(map(len, contents)), session)
        for entry, content in zip(new, contents, strict=True):
            private_folder(self.path(entry.key).parent)
            write_whole(self.path(entry.key), content)
        with self._db.transaction() as db:
            for entry, content in zip(new, contents, strict=True):
                self._add(db, entry, len(content))
            _hold(db, session, [entry.key for entry in entries])

    def _add(self, db: sqlite3.Connection, entry: Entry, nbytes: int) -> None:
        tokens = array("I", entry.tokens if entry.kind == "tail" else ()).tobytes()
        row = (entry.key, entry.kind, entry.base, self._seal.seal(tokens), nbytes)
        db.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, 0)", row)

    def use(self, session: str, keys: Sequence[str]) -> None:
        """Say that a session stands on those entries now: they are the last to be evicted."""
        with self._db.transaction() as db:
            _hold(db, session, [key for key in keys if key in self.known(keys)])
            stale = db.execute(
                "SELECT key FROM holds JOIN entries USING (key) WHERE session = ?"
                " AND kind = 'tail' ORDER BY used DESC LIMIT -1 OFFSET ?",
                (session, TAILS_KEPT),
            ).fetchall()
            db.executemany(
                "DELETE FROM holds WHERE session = ? AND key = ?",
                [(session, key) for (key,) in stale],
            )
        self.collect()

    def collect(self) -> int:
        """Remove the entries that no session holds; returns their bytes."""
        rows = self._db.read(
            "SELECT key, nbytes FROM entries WHERE key NOT IN (SELECT key FROM holds)"
        )
        return self._remove(rows)

    def enforce(self) -> int:
        """Bring the store under its quota and sweep temporary files; returns bytes removed."""
        sweep_temporary(self._store.folder)
        before = self.nbytes
        self._evict(0, None)
        return before - self.nbytes

    def make_room(self, nbytes: int, session: str | None) -> None:
        """Evict until so many more bytes fit. Raises StoreUnavailable where they cannot."""
        if not self._evict(nbytes, session):
            raise StoreUnavailable(
                f"the {self.quota:,} bytes for stored sessions are full of pinned ones and of "
                "those in use"
            )

    def _evict(self, incoming: int, session: str | None) -> bool:
        """Remove, least recently used first, until so much more fits; whether that could be done.

        What pinned sessions and sessions in use hold stays; of its own, the session that writes
        gives up the oldest.
        """
        excess = self.nbytes + incoming - self.quota
        if excess <= 0:
            return True
        kept = locked_sessions(self._store.folder / "locks")
        kept |= {one.id for one in self._store.sessions() if one.pinned}
        kept.discard(session or "")
        own = {key for (key,) in self._db.read("SELECT key FROM holds WHERE session = ?", session)}
        held: set[str] = set()
        for one in kept:
            rows = self._db.read("SELECT key FROM holds WHERE session = ?", one)
            held.update(key for (key,) in rows)
        # Some room to spare: the index grows by a removal before it shrinks.
        chosen, target = [], excess + self.quota // 50
        rows = self._db.read("SELECT key, nbytes FROM entries ORDER BY used")
        free = [row for row in rows if row[0] not in held]
        for row in sorted(free, key=lambda row: row[0] in own):
            if target <= 0:
                break
            chosen.append(row)
            target -= row[1]
        return self._remove(chosen) >= excess

    def _remove(self, rows: Sequence[tuple[str, int]]) -> int:
        if not rows:
            return 0
        # The index first: a file without a row is an orphan, a row without a file a false hope.
        with self._db.transaction() as db:
            db.executemany("DELETE FROM entries WHERE key = ?", [(key,) for key, _ in rows])
            db.executemany("DELETE FROM holds WHERE key = ?", [(key,) for key, _ in rows])
        for key, _ in rows:
            self.path(key).unlink(missing_ok=True)
        return sum(nbytes for _, nbytes in rows)


def _hold(db: sqlite3.Connection, session: str, keys: Iterable[str]) -> None:
    """A session stands on entries, in this order, the last being the last used."""
    (used,) = db.execute("SELECT coalesce(max(used), 0) FROM entries").fetchone()
    for key in keys:
        used += 1
        db.execute("UPDATE entries SET used = ? WHERE key = ?", (used, key))
        db.execute("INSERT OR IGNORE INTO holds VALUES (?, ?)", (session, key))


def _parts(keys: Sequence[str]) -> list[Sequence[str]]:
    return [keys[at : at + _IN_SQL] for at in range(0, len(keys), _IN_SQL)]


def _marks(values: Sequence[str]) -> str:
    return ", ".join("?" * len(values))
