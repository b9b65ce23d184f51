"""Writer: a thread that brings blocks to disk while the model goes on."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.entry import Entry
from edgekv.sessions.records import StoreUnavailable

MAX_QUEUED = 64
"""Entries waiting for the disk at the most: a prefill that is faster than the disk goes on, and
what found no room is written at the end of the turn."""


@dataclass(frozen=True)
class _Job:
    session: str
    entries: Sequence[Entry]
    keys: Sequence[str] = ()


class Writer:
    """Writes in the background; a disk that refuses is reported once, and never an error.

    notify: called from the writer's thread with one line when something was not persisted.
    """

    def __init__(self, files: BlockFiles, notify: Callable[[str], None]) -> None:
        self._files = files
        self._notify = notify
        self._told = False
        self._jobs: queue.Queue[_Job | None] = queue.Queue(MAX_QUEUED)
        self._thread = threading.Thread(target=self._run, name="edgekv-writer", daemon=False)
        self._thread.start()

    def offer(self, session: str, entry: Entry) -> bool:
        """Write a block soon, if there is room in the queue; returns whether there was."""
        try:
            self._jobs.put_nowait(_Job(session, [entry]))
        except queue.Full:
            return False
        return True

    def end_turn(self, session: str, entries: Sequence[Entry], keys: Sequence[str]) -> None:
        """Write what a session needs to go on from here: `keys` are all that it stands on."""
        self._jobs.put(_Job(session, entries, keys))

    def flush(self) -> None:
        """Wait until everything queued so far is written, or was refused."""
        self._jobs.join()

    def close(self) -> None:
        """Write what is queued, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        self._try(self._files.enforce)
        while (job := self._jobs.get()) is not None:
            self._try(partial(self._write, job))
            self._jobs.task_done()

    def _try(self, write: Callable[[], object]) -> None:
        try:
            write()
        except (OSError, StoreUnavailable) as fault:
            reason = fault.strerror if isinstance(fault, OSError) else str(fault)
            if not self._told:
                self._notify(f"KV is not persisted: {reason}")
            self._told = True

    def _write(self, job: _Job) -> None:
        if job.entries:
            self._files.put(job.session, job.entries)
        if job.keys:
            self._files.use(job.session, job.keys)
