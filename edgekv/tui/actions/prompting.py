"""The prompt: files in it, an editor for it, and the memory of those before."""

import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from edgekv.errors import EdgekvError, InvalidValue
from edgekv.tui.actions.registry import action
from edgekv.tui.figures import size, thousands
from edgekv.tui.printable import one_line, typed

if TYPE_CHECKING:
    from edgekv.tui.screens.chat import ChatScreen


@action
async def file(screen: "ChatScreen", argument: str) -> None:
    if not argument:
        raise InvalidValue("/file needs a path")
    path = Path(argument).expanduser()
    text = read_text(path)
    fence = "`" * max(3, 1 + _longest_run(text))
    model = screen.chat_app.loaded
    tokens = f", {thousands(model.count(text))} tokens" if model else ""
    mark = f"[file {one_line(path.name, 60)}: {size(len(text.encode()))}{tokens}]"
    screen.composer.add_block(mark, f"{path.name}:\n{fence}\n{text}\n{fence}\n")
    screen.composer.focus()


def read_text(path: Path) -> str:
    """A text file for the prompt. Raises InvalidValue for one that is binary, long or not there."""
    from edgekv.conversation import MAX_PROMPT  # brings tokenizers, which the first paint awaits

    try:
        with path.open("rb") as source:
            data = source.read(4 * MAX_PROMPT + 1)
    except OSError as error:
        raise InvalidValue(f"cannot read {path}: {error.strerror or error}") from None
    if b"\0" in data:
        raise InvalidValue(f"{path} is binary: only text can be sent")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidValue(f"{path} is not UTF-8 text: only text can be sent") from None
    if len(text) > MAX_PROMPT:
        raise InvalidValue(f"{path} has more than {MAX_PROMPT:,} characters: send a part of it")
    return typed(text)


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


@action
def editor(screen: "ChatScreen", argument: str) -> None:
    command = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "prompt.md"
        path.write_text(screen.prompt.value, "utf-8")
        run_outside(screen, command, path)
        screen.prompt.value = read_text(path).removesuffix("\n")
    screen.composer.focus()


def run_outside(screen: "ChatScreen", command: str, path: Path) -> None:
    """Give the terminal to another program until it ends. Raises EdgekvError."""
    try:
        with screen.app.suspend():
            done = subprocess.run([*shlex.split(command), str(path)], check=False)
    except (OSError, ValueError) as error:
        raise EdgekvError(f"cannot run {command}: {error}") from None
    if done.returncode:
        raise EdgekvError(f"{command} ended with exit code {done.returncode}")


@action
def history(screen: "ChatScreen", argument: str) -> None:
    if argument not in ("on", "off"):
        raise InvalidValue("/history takes on or off")
    screen.chat_app.keep_prompts(argument == "on")
    kept = "prompts are remembered" if argument == "on" else "prompts are forgotten and not kept"
    screen.toast(kept)
