"""How a reply appears while it grows: plain in a pipe, Markdown on a terminal, or not at all."""

import sys
from types import TracebackType
from typing import Self

import click
from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text


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


class Rendered(Writer):
    """Markdown: the end of it live, and all of it once when the reply has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._console = Console()
        # Live cannot scroll, so what does not fit is drawn at the end only.
        self._live = Live(console=self._console, transient=True, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def reading(self, done: int, total: int) -> None:
        if done < total:
            self._live.update(Text(f"reading the prompt: {done:,} of {total:,} tokens"))

    def write(self, text: str) -> None:
        super().write(text)
        lines = self.text.splitlines()[-self._console.size.height + 2 :]
        self._live.update(Markdown("\n".join(lines)))

    def close(self) -> None:
        self._live.stop()
        if self._parts:
            self._console.print(Markdown(self.text))
