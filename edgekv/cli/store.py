"""Opening the store of sessions for a command."""

import click

from edgekv.sessions import Store


def open_store(read_only: bool = False) -> Store:
    """The store, with what it has to say of its damage said. Raises StoreUnavailable."""
    store = Store(read_only=read_only)
    for note in store.notes:
        warn(note)
    return store


def warn(text: str) -> None:
    """One line on standard error."""
    click.echo(f"edgekv: {text}", err=True)
