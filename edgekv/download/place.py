"""Putting a file in place: room for it, one writer at a time, never half of it.

Downloads happen in `<folder>/.partial`, which exists only while its lock is held: whoever gets
the lock and finds one removes it as the remains of a process that died.
"""

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edgekv.errors import EdgekvError
from edgekv.files import private_folder

CHUNK = 1 << 20
PARTIAL = ".partial"

# What a user can do about an error number, beside reading its text.
REMEDIES = {
    errno.ENOSPC: "free some space or set EDGEKV_HOME to another disk",
    errno.EDQUOT: "free some space or set EDGEKV_HOME to another disk",
    errno.EACCES: "allow writing there or set EDGEKV_HOME to another folder",
    errno.EPERM: "allow writing there or set EDGEKV_HOME to another folder",
    errno.EROFS: "set EDGEKV_HOME to a folder that can be written",
    errno.ENOTDIR: "set EDGEKV_HOME to a folder that can be written",
    errno.EEXIST: "set EDGEKV_HOME to a folder that can be written",
}


def megabytes(size: int) -> str:
    """Bytes as a user reads them: "98 MB", "1.8 GB" (decimal units)."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{max(size / 1e6, 0):.0f} MB"


def refusal(folder: Path, error: OSError) -> EdgekvError:
    """The one-line fault for a folder that cannot be written."""
    remedy = REMEDIES.get(error.errno or 0, "set EDGEKV_HOME to another folder")
    return EdgekvError(f"cannot write in {folder}: {error.strerror or error}: {remedy}")


@contextmanager
def workspace(folder: Path, waiting: Callable[[], None]) -> Iterator[Path]:
    """Hold the lock of `folder` and yield an empty scratch folder inside it.

    `waiting` is called once if another process holds the lock. The scratch folder is removed
    on the way out, whatever happens. Raises EdgekvError when nothing can be written there.
    """
    from filelock import FileLock, Timeout

    partial = folder / PARTIAL
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        private_folder(folder.parent)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            waiting()
            lock.acquire()
        shutil.rmtree(partial, ignore_errors=True)
        private_folder(partial)
    except OSError as error:
        lock.release()
        raise refusal(folder, error) from None
    try:
        yield partial
    except OSError as error:
        raise refusal(folder, error) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        _remove_if_empty(folder)
        lock.release()


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:
        return


def require_space(folder: Path, needed: int, what: str) -> None:
    """Raise EdgekvError unless `needed` bytes are free on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise EdgekvError(
            f"{what} needs {megabytes(needed)} free in {folder}, which has {megabytes(free)}: "
            f"{REMEDIES[errno.ENOSPC]}"
        )


def copy_hashed(source: BinaryIO, target: Path, limit: int) -> tuple[str, int]:
    """Copy a stream to `target`, synced; return its SHA-256 and length in bytes.

    Stops one chunk past `limit`, so that a file that lies about its size cannot fill the disk.
    """
    digest, length = hashlib.sha256(), 0
    with target.open("wb") as file:
        while length <= limit and (chunk := source.read(CHUNK)):
            digest.update(chunk)
            length += len(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest(), length


def put(partial: Path, final: Path) -> Path:
    """Rename a finished, synced file to its place, durably."""
    partial.replace(final)
    folder = os.open(final.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    return final


def size_on_disk(path: Path) -> int:
    """Bytes of the files at or below `path`; links are not followed. 0 when it is missing."""
    if path.is_file():
        return path.stat().st_size
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += (Path(folder) / name).lstat().st_size
            except OSError:  # removed by its owner meanwhile
                continue
    return total
