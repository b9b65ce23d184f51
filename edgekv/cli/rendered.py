"""A reply as Markdown on a terminal, while it grows."""

from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markdown import Markdown
from rich.text import Text

from edgekv.cli.show import Writer


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
