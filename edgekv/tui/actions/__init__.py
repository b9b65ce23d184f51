"""What the commands do: one function a command, of the command's name, found in ACTIONS."""

from edgekv.tui.actions import conversation, copying, memory, prompting, replying, session
from edgekv.tui.actions.registry import ACTIONS

__all__ = ["ACTIONS", "conversation", "copying", "memory", "prompting", "replying", "session"]
