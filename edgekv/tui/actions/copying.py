"""Copying: raw text to the clipboard, by the terminal and by the system's own tool."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from edgekv.errors import EdgekvError
from edgekv.tui.actions.prompting import run_outside
from edgekv.tui.actions.registry import action
from edgekv.tui.printable import one_line
from edgekv.tui.widgets.message import MessageView, ReplyMessage

if TYPE_CHECKING:
    from edgekv.tui.screens.chat import ChatScreen

PATIENCE_S = 2.0


def _tools() -> list[list[str]]:
    """Commands that take the clipboard's text, those that have a display to talk to."""
    if sys.platform == "darwin":
        return [["pbcopy"]]
    tools = []
    if os.environ.get("WAYLAND_DISPLAY"):
        tools.append(["wl-copy"])
    if os.environ.get("DISPLAY"):
        tools += [["xclip", "-selection", "clipboard"], ["xsel", "--clipboard", "--input"]]
    return tools


def to_clipboard(screen: "ChatScreen", text: str, what: str) -> None:
    """Copy both ways, and say which was used."""
    screen.app.copy_to_clipboard(text)
    ways = ["the terminal (OSC 52)"]
    tool = next((each for each in _tools() if shutil.which(each[0])), None)
    if tool is not None:
        try:
            subprocess.run(tool, input=text.encode(), timeout=PATIENCE_S, check=True)
            ways.append(tool[0])
        except (OSError, subprocess.SubprocessError):
            pass
    screen.toast(f"copied {what}, {len(text):,} characters, by {' and '.join(ways)}")


def _view(screen: "ChatScreen") -> MessageView:
    """The selected message, or the last reply."""
    if screen.selected_view is not None:
        return screen.selected_view
    replies = [view for view in screen.transcript.views if isinstance(view, ReplyMessage)]
    if not replies:
        raise EdgekvError("there is no reply to copy yet")
    return replies[-1]


@action
def copy(screen: "ChatScreen", argument: str) -> None:
    view = _view(screen)
    to_clipboard(screen, view.source, "the message")


@action
def code(screen: "ChatScreen", argument: str) -> None:
    """The last code block; again, the one before it, and so on round."""
    views = [view for view in screen.transcript.views if isinstance(view, ReplyMessage)]
    if isinstance(screen.selected_view, ReplyMessage):
        views = [screen.selected_view]
    codes = [text for view in views for text in view.view.codes()]
    if not codes:
        raise EdgekvError("there is no code block")
    screen.copied_code = screen.copied_code % len(codes) + 1
    text = codes[-screen.copied_code]
    where = f"code block {len(codes) + 1 - screen.copied_code} of {len(codes)}"
    to_clipboard(screen, text, f"{where} ({one_line(text, 24)})")


@action
def pager(screen: "ChatScreen", argument: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "message.md"
        path.write_text(_view(screen).source, "utf-8")
        run_outside(screen, os.environ.get("PAGER") or "less", path)


@action
def mouse(screen: "ChatScreen", argument: str) -> None:
    screen.mouse_released = not screen.mouse_released
    screen.chat_app.release_mouse(screen.mouse_released)
    screen.toast(
        "the terminal selects text now; /mouse takes the mouse back"
        if screen.mouse_released
        else "the mouse is the app's again"
    )
