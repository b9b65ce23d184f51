"""Private files that are whole or absent: temporary name, fsync, rename."""

import os
import stat
import time
from pathlib import Path

TEMPORARY = ".tmp"
STALE_S = 3600.0
"""A temporary file this old belongs to no write under way."""


def private_folder(path: Path) -> Path:
    """A folder that only its owner may enter, made where it is missing, with those above it."""
    if not path.is_dir():
        # The mode that mkdir is given is that of the last folder alone.
        if not path.parent.exists():
            private_folder(path.parent)
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def tighten(path: Path) -> None:
    """Close a folder of ours to others, which an earlier version or another tool left open."""
    facts = path.stat()
    if facts.st_mode & 0o077 and facts.st_uid == os.getuid():
        path.chmod(0o700)


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds all of it or none. Raises OSError."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        with open(temporary, "wb", opener=private) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def private(path: str, flags: int) -> int:
    """An `opener` for `open`: a file for its owner alone, also where it replaces another."""
    handle = os.open(path, flags, 0o600)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        os.fchmod(handle, 0o600)
    return handle


def sync_folder(folder: Path) -> None:
    """Make a rename in a folder survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sweep_temporary(folder: Path) -> int:
    """Remove what writes cut short have left behind; returns how many files."""
    n = 0
    for path in folder.rglob(f"*{TEMPORARY}"):
        if _is_stale(path):
            path.unlink(missing_ok=True)
            n += 1
    return n


def _is_stale(path: Path) -> bool:
    """Whether the writing process is gone, or has long forgotten the file."""
    pid = path.name.removesuffix(TEMPORARY).rpartition(".")[2]
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, ValueError):
        return True
    except PermissionError:
        pass
    try:
        return abs(time.time() - path.stat().st_mtime) > STALE_S
    except FileNotFoundError:
        return False
