"""How a reply appears while it grows: as it comes, or not at all (cli/rendered.py: as Markdown)."""

import sys
from types import TracebackType
from typing import Self

import click


class Writer:
    """Collects the text of a reply; kinds of it also show it. Use as a context manager."""

    def __init__(self) -> None:
        self._parts: list[str] = []

    @property
    def text(self) -> str:
        return "".join(self._parts)

    def write(self, text: str) -> None:
        self._parts.append(text)

    def reading(self, done: int, total: int) -> None:
        """So many tokens of the prompt are read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """The reply has ended, whole or not."""


class Silent(Writer):
    """Shows nothing: the caller prints the text with the rest of what it knows."""


class Plain(Writer):
    """Text as it comes, and a newline at the end where it lacks one."""

    def write(self, text: str) -> None:
        super().write(text)
        click.echo(text, nl=False)
        sys.stdout.flush()

    def close(self) -> None:
        if self._parts and not self._parts[-1].endswith("\n"):
            click.echo()
