"""Opening the store of sessions for a command."""

from collections.abc import Sequence

import click

from edgekv.sessions import Store


def open_store(read_only: bool = False) -> Store:
    """The store; what it has to say of its damage is said, now and when the command ends.

    Raises StoreUnavailable.
    """
    store = Store(read_only=read_only)
    _tell(store.notes)
    told = len(store.notes)
    context = click.get_current_context(silent=True)
    if context is not None:
        context.call_on_close(lambda: _tell(store.notes[told:]))
    return store


def _tell(notes: Sequence[str]) -> None:
    for note in notes:
        warn(note)


def warn(text: str) -> None:
    """One line on standard error."""
    click.echo(f"edgekv: {text}", err=True)
