"""The register of what commands do."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from edgekv.tui.screens.chat import ChatScreen

Action = Callable[["ChatScreen", str], Awaitable[None] | None]
ACTIONS: dict[str, Action] = {}


def action(function: Action) -> Action:
    """Register a function as what the command of its name does (`import_` is `import`)."""
    ACTIONS[function.__name__.rstrip("_")] = function
    return function
