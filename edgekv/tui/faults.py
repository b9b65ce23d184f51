"""Faults as the app shows them."""

import os

from edgekv.errors import EdgekvError


def in_a_line(error: Exception) -> str:
    """What went wrong, for the banner. With EDGEKV_DEBUG what is not a user's fault is raised."""
    if isinstance(error, EdgekvError):
        return str(error)
    if os.environ.get("EDGEKV_DEBUG"):
        raise error
    return f"unexpected {type(error).__name__}: {error}"
