"""The package client of this installation, asked to fetch one wheel.

Going through it means that the user's index, mirror, proxy and certificates apply.
"""

import errno
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgekv.download.failure import SourceFailed

LOG = "client.log"


@dataclass(frozen=True)
class Client:
    """How to call one package client; `find` gives the start of its command, or None."""

    name: str
    find: Callable[[], list[str] | None]
    arguments: tuple[str, ...]

    def command(self, requirement: str, folder: Path) -> list[str] | None:
        start = self.find()
        return start and [*start, *self.arguments, str(folder), requirement]


def _own_pip() -> list[str] | None:
    return [sys.executable, "-m", "pip"] if importlib.util.find_spec("pip") else None


def _on_path(name: str) -> list[str] | None:
    found = shutil.which(name)
    return [found] if found else None


PIP_ARGUMENTS = (
    "download",
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache-dir",
    "--no-input",
    "--disable-pip-version-check",
    "--progress-bar=off",
    "--dest",
)

# uv has no download command; a target folder that no interpreter uses does the same.
UV_ARGUMENTS = (
    "pip",
    "install",
    "--no-deps",
    "--only-binary=:all:",
    "--no-cache",
    "--no-progress",
    f"--python={sys.executable}",
    "--target",
)

CLIENTS = (
    Client("pip", _own_pip, PIP_ARGUMENTS),
    Client("uv", lambda: _on_path("uv"), UV_ARGUMENTS),
    Client("pip", lambda: _on_path("pip3") or _on_path("pip"), PIP_ARGUMENTS),
)


def available() -> str | None:
    """The command that wheels would be fetched with, for people to read; None without one."""
    return next((" ".join(start) for client in CLIENTS if (start := client.find())), None)


def fetch(requirement: str, folder: Path) -> None:
    """Fetch the wheel of `requirement` ("name==version") into `folder`.

    Afterwards `folder` holds the wheel, or its unpacked files where the client only installs.
    Raises SourceFailed with the client's own last word, OSError when the disk is full.
    """
    commands = (client.command(requirement, folder) for client in CLIENTS)
    command = next((found for found in commands if found), None)
    if command is None:
        raise SourceFailed("no package client found; install pip or uv")
    log = folder / LOG
    code = _run(command, log, folder)
    if code == 0:
        return
    reason = _last_word(log.read_text("utf-8", "replace")) or f"exit code {code}"
    if os.strerror(errno.ENOSPC) in reason:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    raise SourceFailed(reason)


def _run(command: list[str], log: Path, folder: Path) -> int:
    # Its scratch files belong on the disk whose space was checked, where progress can see them.
    environment = os.environ | {"TMPDIR": str(folder), "NO_COLOR": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
        )
        try:
            return process.wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _last_word(output: str) -> str:
    """The line of a client's output that says what went wrong."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error:", "error "))]
    return " ".join((errors or lines or [""])[-1].split())[:300]
