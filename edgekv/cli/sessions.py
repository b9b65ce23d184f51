"""`edgekv sessions`: stored conversations and their KV."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from edgekv.cli.confirm import confirm, yes_option
from edgekv.cli.output import amount, write_facts, write_json, write_table
from edgekv.cli.store import open_store
from edgekv.errors import EdgekvError, ExitCode, InvalidValue
from edgekv.files import private
from edgekv.sessions import Session, Store, StoreUnavailable

if TYPE_CHECKING:
    from edgekv.sessions.blocks import BlockFiles

as_json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group()
def sessions() -> None:
    """Stored conversations and their KV."""


@sessions.command("list")
@click.option("--deleted", is_flag=True, help="Those that were deleted and not yet collected.")
@as_json_option
def list_(deleted: bool, as_json: bool) -> None:
    """The sessions, the last used first."""
    with open_store() as store:
        sizes = store.kv_bytes()
        rows = [_facts(one, sizes.get(one.id, 0)) for one in store.sessions(deleted)]
    if as_json:
        write_json(rows)
    else:
        write_table(
            ("NAME", "MODEL", "MESSAGES", "KV", "UPDATED", ""),
            [_row(row) for row in rows],
        )


def _facts(session: Session, kv_bytes: int) -> dict[str, Any]:
    shown = ("id", "name", "model", "created", "updated", "pinned", "parent", "n_messages")
    return {key: getattr(session, key) for key in shown} | {"kv_bytes": kv_bytes}


def _row(facts: dict[str, Any]) -> tuple[str, ...]:
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(facts["updated"]))
    pinned = "pinned" if facts["pinned"] else ""
    messages, size = str(facts["n_messages"]), amount(facts["kv_bytes"])
    return facts["name"], facts["model"], messages, size, when, pinned


@sessions.command()
@click.argument("name")
@as_json_option
def show(name: str, as_json: bool) -> None:
    """The transcript of a session."""
    with open_store() as store:
        session = store.get(name)
        messages = store.messages(session.id)
        facts = _facts(session, store.kv_bytes().get(session.id, 0))
    if as_json:
        said = [asdict(message) for message in messages]
        write_json(facts | {"settings": dict(session.settings), "messages": said})
        return
    for message in messages:
        click.echo(f"{message.role}{' (cut off)' if message.partial else ''}: {message.content}")


@sessions.command()
@click.argument("names", nargs=-1, required=True)
@yes_option
@as_json_option
def rm(names: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Remove sessions for good: all text, what /undo took back too, and KV that no other uses."""
    with open_store() as store:
        files = _files(store)
        found = {session.id: session for session in map(store.get, names)}
        if not yes:
            listed = ", ".join(session.name for session in found.values())
            confirm(f"Remove {listed} for good?", listed, "removing")
        for session in found.values():
            lock = store.lock(session.id)
            try:
                store.purge(session.id)
            finally:
                lock.release()
        freed = files.collect()
    _say(as_json, {"removed": list(names), "bytes": freed}, f"removed; {amount(freed)} of KV freed")


@sessions.command()
@click.argument("name")
@click.argument("new", required=False)
@click.option(
    "--at", "position", type=int, metavar="N", help="Keep the first N messages (default: all)."
)
@as_json_option
def branch(name: str, new: str | None, position: int | None, as_json: bool) -> None:
    """Go on from a session, or from its first messages, in a session of its own."""
    with open_store() as store:
        origin = store.get(name)
        if position is not None and not 1 <= position <= origin.n_messages:
            expected = f"1 to {origin.n_messages}" if origin.n_messages else "a session of messages"
            raise InvalidValue(f"--at: expected {expected}, got {position}")
        _say_new(as_json, store, store.branch(origin.id, position, new))


@sessions.command()
@click.argument("name")
@click.option("--off", is_flag=True, help="Let it be evicted again.")
def pin(name: str, off: bool) -> None:
    """Keep a session's KV on disk whatever the quota says."""
    with open_store() as store:
        store.pin(store.get(name).id, not off)


@sessions.command()
@click.argument("name")
@click.argument("path", type=Path, required=False)
@yes_option
@as_json_option
def export(name: str, path: Path | None, yes: bool, as_json: bool) -> None:
    """Write a session as Markdown (to PATH ending in .md, or standard output) or, for any other
    PATH, as an archive with its KV that goes on elsewhere."""
    from edgekv.sessions.archive import to_archive, to_markdown

    with open_store() as store:
        session = store.get(name)
        if path is not None and path.exists() and not yes:
            confirm(f"Replace {path}?", f"{path} exists", "replacing it")
        facts = {"session": session.name, "path": None if path is None else str(path)}
        n, text = 0, None
        if path is None or path.suffix == ".md":
            text = to_markdown(store, session)
        else:
            n = to_archive(store, _files(store), session, path)
    if path is not None and text is not None:
        _write(path, text)
    if as_json:
        shown = {"markdown": text} if path is None else {}
        write_json(facts | {"messages": session.n_messages, "blocks": n} | shown)
    elif path is None:
        click.echo(text, nl=False)
    else:
        click.echo(f"{path}: {session.n_messages} messages, {n} blocks", err=True)


def _write(path: Path, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8", opener=private) as file:
            file.write(text)
    except OSError as fault:
        raise EdgekvError(f"{path}: cannot be written: {fault.strerror}") from fault


@sessions.command("import")
@click.argument("path", type=Path)
@click.option("--name", metavar="NAME", help="Instead of the name in the archive.")
@as_json_option
def import_(path: Path, name: str | None, as_json: bool) -> None:
    """Bring an archive in as a new session."""
    from edgekv.sessions.archive import from_archive

    with open_store() as store:
        _say_new(as_json, store, from_archive(store, _files(store), path, name))


@sessions.command()
@click.option("--keyring", is_flag=True, help="Keep the key in the system's keyring.")
def encrypt(keyring: bool) -> None:
    """Encrypt all text and KV from now on, under a passphrase (asked for, or EDGEKV_PASSPHRASE).

    Model names, times and sizes stay readable. There is no way to read the sessions without the
    passphrase or the keyring.
    """
    with open_store() as store:
        store.encrypt(keyring)


@sessions.command()
@as_json_option
def verify(as_json: bool) -> int:
    """Read every file, set aside what is damaged, and mend the index."""
    from edgekv.sessions.check import verify as check

    with open_store() as store:
        opening = list(store.notes)
        found = check(store, _files(store))
        found.damaged = opening + found.damaged
        # They are said below.
        store.notes.clear()
    if as_json:
        write_json(asdict(found))
    else:
        for one in found.damaged:
            click.echo(f"damaged: {one}")
        write_facts([(k, v) for k, v in asdict(found).items() if k != "damaged"])
    return ExitCode.FAILURE if found.damaged else ExitCode.OK


@sessions.command()
@as_json_option
def gc(as_json: bool) -> None:
    """Remove for good what was deleted or left over, and keep the quota."""
    from edgekv.sessions.check import gc as collect

    with open_store() as store:
        done = collect(store, _files(store))
    _say(as_json, done, f"{done['sessions']} sessions removed, {amount(done['bytes'])} freed")


def _files(store: Store) -> "BlockFiles":
    from edgekv.sessions.blocks import BlockFiles

    if not store.writable:
        raise StoreUnavailable(f"{store.folder} cannot be written: give it back its permissions")
    return BlockFiles(store)


def _say(as_json: bool, facts: dict[str, Any], text: str) -> None:
    if as_json:
        write_json(facts)
    else:
        click.echo(text)


def _say_new(as_json: bool, store: Store, session: Session) -> None:
    _say(as_json, _facts(session, store.kv_bytes().get(session.id, 0)), session.name)
