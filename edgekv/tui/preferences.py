"""What the user has chosen for the app itself, kept in one small file."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from edgekv.tui.private import write_private

LARGEST = 64 << 10


@dataclass(frozen=True)
class Preferences:
    """theme: a name, None for the default. history: whether prompts are remembered."""

    theme: str | None = None
    history: bool = True
    bell: bool = False


def load_preferences(path: Path) -> Preferences:
    """What the file says; the defaults for what it does not, or cannot, say."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(LARGEST))
    except (OSError, ValueError, RecursionError):
        return Preferences()
    known = asdict(Preferences())
    kinds = {"theme": str, "history": bool, "bell": bool}
    usable = found.items() if isinstance(found, dict) else ()
    return Preferences(
        **(known | {key: value for key, value in usable if isinstance(value, kinds.get(key, ()))})
    )


def save_preferences(path: Path, preferences: Preferences) -> None:
    """Write them whole. Raises EdgekvError."""
    write_private(path, json.dumps(asdict(preferences)))
