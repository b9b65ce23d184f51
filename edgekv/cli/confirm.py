"""Asking before something is lost for good."""

import sys

import click

from edgekv.errors import InvalidValue

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, subject: str, loss: str) -> None:
    """Go on if the user says yes. Raises InvalidValue where there is no terminal to ask on.

    subject, loss: what is at stake, and what -y would allow: "notes", "removing".
    """
    if not sys.stdin.isatty():
        raise InvalidValue(f"{subject}: {loss} needs -y where nobody can be asked")
    click.confirm(question, abort=True, err=True)
