"""How far a long measurement is, on standard error."""

import sys
import time

import click

ON_TERMINAL, IN_LOG = 0.2, 10.0
"""Seconds between two reports."""


class Meter:
    """A line that is replaced on a terminal; lines now and then elsewhere."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._terminal = sys.stderr.isatty()
        self._interval = ON_TERMINAL if self._terminal else IN_LOG
        self._start = self._shown = time.monotonic()
        self._first: int | None = None

    def told(self, done: int, total: int) -> None:
        """So much is done, of so much; the speed is that since the first call."""
        now = time.monotonic()
        if self._first is None:
            self._start, self._first = now, done
        if now - self._shown < self._interval and done < total:
            return
        self._shown = now
        line = f"{self._what}: {done:,} of {total:,}{self._left(done, total, now)}"
        if self._terminal:
            click.echo(f"\r\x1b[K{line}", nl=done >= total, err=True)
        else:
            click.echo(line, err=True)

    def _left(self, done: int, total: int, now: float) -> str:
        assert self._first is not None
        if done >= total or done == self._first:
            return ""
        seconds = (total - done) * (now - self._start) / (done - self._first)
        return f", {seconds:,.0f} s left"
