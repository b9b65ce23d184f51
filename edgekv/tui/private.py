"""Small files of the user's own."""

from pathlib import Path

from edgekv.errors import EdgekvError
from edgekv.files import private_folder, write_whole


def write_private(path: Path, text: str) -> None:
    """Write a file whole, for its owner alone. Raises EdgekvError."""
    try:
        private_folder(path.parent)
        write_whole(path, text.encode())
    except OSError as error:
        raise refusal(path, error) from None


def refusal(path: Path, error: OSError) -> EdgekvError:
    """What the system refused, in one line."""
    return EdgekvError(f"cannot write {path}: {error.strerror or error}")
