"""The SQLite file of the store: opening, format versions, and transactions."""

import os
import shutil
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock

from edgekv.files import private_folder, tighten
from edgekv.sessions.records import StoreUnavailable

BUSY_S = 10.0

# fullfsync: on macOS a plain fsync leaves the data in the drive's cache.
_PRAGMAS = ("journal_mode=WAL", "foreign_keys=ON", "secure_delete=ON", "fullfsync=ON")

# Each entry takes the database one format version on. The version is kept twice, as `user_version`
# and as a fact, for a flipped bit in one place must not look like a newer edgekv's store.
MIGRATIONS = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY, name BLOB NOT NULL, model TEXT NOT NULL, settings BLOB NOT NULL,
        created REAL NOT NULL, updated REAL NOT NULL, used INTEGER NOT NULL,
        pinned INTEGER NOT NULL, draft BLOB NOT NULL, parent TEXT, deleted INTEGER NOT NULL,
        n_messages INTEGER NOT NULL,
        checksum INTEGER NOT NULL);
    CREATE TABLE messages (
        session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE, position INTEGER NOT NULL,
        role TEXT NOT NULL, content BLOB NOT NULL, tokens BLOB NOT NULL, finish_reason TEXT,
        partial INTEGER NOT NULL, created REAL NOT NULL, checksum INTEGER NOT NULL,
        PRIMARY KEY (session, position));
    CREATE TABLE entries (
        key TEXT PRIMARY KEY, kind TEXT NOT NULL, base TEXT NOT NULL, suffix BLOB NOT NULL,
        nbytes INTEGER NOT NULL, used INTEGER NOT NULL);
    CREATE INDEX entries_by_base ON entries (base) WHERE kind = 'tail';
    CREATE INDEX entries_by_use ON entries (used);
    CREATE TABLE holds (
        session TEXT NOT NULL REFERENCES sessions ON DELETE CASCADE, key TEXT NOT NULL,
        PRIMARY KEY (session, key)) WITHOUT ROWID;
    CREATE INDEX holds_by_key ON holds (key);
    CREATE TABLE digests (
        path TEXT PRIMARY KEY, stamp TEXT NOT NULL, digest TEXT NOT NULL);
    CREATE TABLE facts (name TEXT PRIMARY KEY, value BLOB NOT NULL);
    """,
)


class DatabaseDamaged(StoreUnavailable):
    """The file is no sound database."""


class Database:
    """A connection that threads of one process may share; one transaction at a time."""

    def __init__(self, path: Path, read_only: bool = False) -> None:
        self.path = path
        self.writable = not read_only
        self._lock = threading.RLock()
        try:
            self._db = self._connect()
        except (OSError, sqlite3.OperationalError) as error:
            raise self.unavailable(error) from error
        except sqlite3.DatabaseError as error:
            raise DatabaseDamaged(f"{self.path}: {error}") from error

    def _connect(self) -> sqlite3.Connection:
        if self.writable:
            try:
                return self._connect_to_write()
            except (OSError, sqlite3.OperationalError):
                if not self.path.is_file():
                    raise
                self.writable = False
        # A reader of a WAL database makes two files beside it and leaves them there. Without a
        # log there is no writer, and where nobody may write there is none either.
        log = self.path.with_name(f"{self.path.name}-wal")
        alone = not log.exists() or not os.access(self.path.parent, os.W_OK)
        sealed = "&immutable=1" if alone else ""
        db = _open(f"{self.path.as_uri()}?mode=ro{sealed}")
        _check(db)
        _check_version(db)
        return db

    def _connect_to_write(self) -> sqlite3.Connection:
        tighten(private_folder(self.path.parent))
        # SQLite gives the files beside it the mode of the database.
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))
        db = _open(self.path.as_uri())
        for pragma in _PRAGMAS:
            db.execute(f"PRAGMA {pragma}").fetchall()
        _check(db)
        _migrate(db)
        return db

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """All of the writes in the block, or none. Raises StoreUnavailable."""
        with self._lock:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                yield self._db
                self._db.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise self.unavailable(error) from error
            except BaseException:
                self._roll_back()
                raise

    def _roll_back(self) -> None:
        if self._db.in_transaction:
            self._db.execute("ROLLBACK")

    def read(self, query: str, *values: object) -> list[tuple]:  # type: ignore[type-arg]
        """All rows of a query. Raises StoreUnavailable."""
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self.unavailable(error) from error

    def empty_log(self) -> None:
        """Move the log into the database, as far as other processes are not reading it."""
        self.read("PRAGMA wal_checkpoint(TRUNCATE)")

    def scrub(self) -> None:
        """Leave no trace of deleted rows in the files."""
        self.read("VACUUM")
        self.empty_log()

    def unavailable(self, error: Exception) -> StoreUnavailable:
        """What went wrong, in one line."""
        if isinstance(error, OSError):
            return StoreUnavailable(
                f"sessions in {self.path.parent}: {error.strerror}: give the folder back its "
                "permissions, or set EDGEKV_HOME to one that can be written"
            )
        return StoreUnavailable(f"sessions in {self.path}: {error}")

    def close(self) -> None:
        with self._lock:
            self._db.close()


def open_or_recover(path: Path, read_only: bool) -> tuple[Database, list[str]]:
    """The database, and what had to be said about opening it.

    A damaged one is set aside for an empty one: transcripts have copies, and KV is computed
    again.
    """
    try:
        return Database(path, read_only), []
    except DatabaseDamaged as fault:
        if read_only:
            raise
        with FileLock(path.with_name("recover.lock"), mode=0o600):
            return _recover(path, fault)


def _recover(path: Path, fault: DatabaseDamaged) -> tuple[Database, list[str]]:
    try:
        # Another process may have been faster.
        return Database(path), []
    except DatabaseDamaged:
        aside = private_folder(path.parent / "damaged")
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.replace(aside / part.name)
        shutil.rmtree(path.parent / "blocks", ignore_errors=True)
        return Database(path), [f"{fault}: set aside, sessions are restored from their copies"]


def _check(db: sqlite3.Connection) -> None:
    """Raises DatabaseError for damage to the structure: 17 ms at most in one of 4 MB."""
    (state,) = db.execute("PRAGMA integrity_check(1)").fetchone()
    if state != "ok":
        raise sqlite3.DatabaseError(" ".join(str(state).split())[:200])


def _open(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(
        uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
    )


def _check_version(db: sqlite3.Connection) -> int:
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    facts = db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'facts'").fetchone()
    query = "SELECT value FROM facts WHERE name = 'format'"
    row = db.execute(query).fetchone() if facts else (b"0",)
    if row is None or row[0] != b"%d" % version:
        raise sqlite3.DatabaseError("its format version is damaged")
    if version > len(MIGRATIONS):
        raise StoreUnavailable(
            f"the stored sessions have format {version}, this edgekv knows up to "
            f"{len(MIGRATIONS)}: upgrade edgekv"
        )
    return version


def _migrate(db: sqlite3.Connection) -> None:
    if _check_version(db) == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        # Another process may have been faster.
        version = _check_version(db)
        for number, script in enumerate(MIGRATIONS[version:], version + 1):
            for statement in script.split(";"):
                db.execute(statement)
            db.execute(f"PRAGMA user_version={number}")
            kept = (b"%d" % number,)
            db.execute("INSERT OR REPLACE INTO facts VALUES ('format', ?)", kept)
        db.execute("COMMIT")
    except BaseException:
        db.execute("ROLLBACK")
        raise
