"""Telling a person how far a download is, on standard error."""

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

from edgekv.download.place import megabytes

Measure = Callable[[], int]
INTERVAL = 0.2  # seconds between two looks at the growing files


class Progress(Protocol):
    """Shows one download at a time."""

    def watch(self, what: str, total: int, measure: Measure) -> AbstractContextManager[None]:
        """Show `what`, of `total` bytes, while the block runs; `measure()` is bytes so far."""
        ...

    def note(self, text: str) -> None:
        """Show one line."""
        ...


class Silent:
    """Shows nothing."""

    @contextmanager
    def watch(self, what: str, total: int, measure: Measure) -> Iterator[None]:
        yield

    def note(self, text: str) -> None:
        pass


class Lines:
    """One line when a download starts; for pipes and logs."""

    @contextmanager
    def watch(self, what: str, total: int, measure: Measure) -> Iterator[None]:
        self.note(f"downloading {what} {megabytes(total)}")
        yield

    def note(self, text: str) -> None:
        print(text, file=sys.stderr, flush=True)


class Bar(Lines):
    """A bar that follows the size of the growing files; for terminals."""

    @contextmanager
    def watch(self, what: str, total: int, measure: Measure) -> Iterator[None]:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as RichProgress

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        with RichProgress(*columns, console=console, transient=True) as bar:
            task = bar.add_task(f"downloading {what}", total=total)
            with _polled(lambda: bar.update(task, completed=min(measure(), total))):
                yield


@contextmanager
def _polled(action: Callable[[], None]) -> Iterator[None]:
    done = threading.Event()

    def poll() -> None:
        while not done.wait(INTERVAL):
            action()

    thread = threading.Thread(target=poll, name="edgekv-progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def for_stderr() -> Progress:
    """A bar on a terminal, lines elsewhere."""
    return Bar() if sys.stderr.isatty() else Lines()
