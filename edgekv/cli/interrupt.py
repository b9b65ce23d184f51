"""Ctrl-C as a request to stop: the first time orderly, the second at once."""

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupting(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` when the user interrupts the block. On the main thread alone."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        stop()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
