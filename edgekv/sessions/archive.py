"""A session outside the store: as Markdown to read, as an archive that goes on elsewhere.

An archive is a ZIP file, not compressed: `session.json` with the transcript, and the blocks as
they are on disk. Where the model is another, or its files are, the transcript alone is of use,
and KV is computed again.
"""

import json
import zipfile
import zlib
from pathlib import Path

from edgekv.errors import DamagedFile, EdgekvError, InvalidValue
from edgekv.files import private
from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.entry import Refused, decode, encode
from edgekv.sessions.mirror import Transcript, from_document, to_document
from edgekv.sessions.records import Session
from edgekv.sessions.store import Store

MAX_TEXT = 1 << 30
MAX_BLOCK = 1 << 30
"""Bytes of one part of an archive at the most, before anything of it is read."""

# RuntimeError: a password is wanted, or an unknown compression.
_BROKEN = (zipfile.BadZipFile, zlib.error, RuntimeError, EOFError)

_TITLES = {"system": "System", "user": "You", "assistant": "Reply"}


def to_markdown(store: Store, session: Session) -> str:
    """The transcript for people, with the facts of the session in front."""
    facts = {"session": session.name, "model": session.model, **session.settings}
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in facts.items()), "---"]
    for message in store.messages(session.id):
        cut = " (cut off)" if message.partial else ""
        lines += ["", f"## {_TITLES.get(message.role, message.role)}{cut}", "", message.content]
    return "\n".join(lines) + "\n"


def to_archive(store: Store, files: BlockFiles, session: Session, path: Path) -> int:
    """Write a session's archive; returns how many blocks it carries. Raises EdgekvError."""
    document = to_document(session, store.messages(session.id))
    keys = files.held(session.id)
    try:
        with open(path, "wb", opener=private) as file, zipfile.ZipFile(file, "w") as archive:
            archive.writestr("session.json", json.dumps(document))
            n = sum(_add(archive, files, key) for key in keys)
    except OSError as fault:
        raise EdgekvError(f"{path}: cannot be written: {fault.strerror}") from fault
    return n


def _add(archive: zipfile.ZipFile, files: BlockFiles, key: str) -> bool:
    try:
        entry = files.load(key)
    except Refused:
        return False
    if entry is not None:
        archive.writestr(f"blocks/{key}.safetensors", encode(entry))
    return entry is not None


def from_archive(store: Store, files: BlockFiles, path: Path, name: str | None = None) -> Session:
    """Bring an archive in as a new session. Raises DamagedFile, InvalidValue, EdgekvError.

    name: instead of the one in the archive, for which a free one is made up if it is taken.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            session, messages = _transcript(archive, path)
            name = name or _free(session.name, store)
            new = store.create(name, session.model, session.settings, messages=messages)
            _bring_blocks(files, archive, new.id)
    except _BROKEN as fault:
        raise _no_archive(path, fault) from fault
    except OSError as fault:
        raise InvalidValue(f"{path}: cannot be read: {fault.strerror}") from fault
    return store.get(new.id)


def _transcript(archive: zipfile.ZipFile, path: Path) -> Transcript:
    try:
        if archive.getinfo("session.json").file_size > MAX_TEXT:
            raise ValueError(f"a transcript of over {MAX_TEXT:,} bytes")
        return from_document(json.loads(archive.read("session.json")))
    except (KeyError, TypeError, ValueError, RecursionError) as fault:
        raise _no_archive(path, fault) from fault


def _no_archive(path: Path, fault: Exception) -> DamagedFile:
    return DamagedFile(
        f"{path}: not a whole archive of a session ({fault}): write it again where it came from "
        "(edgekv sessions export NAME PATH), and copy all of it"
    )


def _free(name: str, store: Store) -> str:
    taken = {session.name for session in store.sessions()}
    names = (name, f"{name} (imported)", *(f"{name} (imported {n})" for n in range(2, 10**6)))
    return next(one for one in names if one not in taken)


def _bring_blocks(files: BlockFiles, archive: zipfile.ZipFile, session: str) -> None:
    """Take the blocks that are sound and that the quota has room for."""
    for info in archive.infolist():
        if not info.filename.startswith("blocks/") or info.file_size > MAX_BLOCK:
            continue
        try:
            files.put(session, [decode(archive.read(info))])
        except (Refused, *_BROKEN):
            continue
