"""How many threads a product gets: no more than the cores that other programs leave.

OpenBLAS's threads wait for each other by turning. Where others have one of two cores, each product
of two threads waits for the scheduler: 1 to 2 tokens a second were written so, and 8 to 11 by one.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

from edgekv import blas

PERIOD_S = 0.5
"""Between two looks at the machine: the counters move 100 times a second."""

SLACK = 0.3
"""Of a core, that others may take from a thread before it is given up: less is only noise."""

STAT = Path("/proc/stat")
_IDLE = {"idle", "iowait", "steal"}
_FIELDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")


class Threads:
    """The number of threads of the BLAS that MLX was given; owned by the thread that computes.

    set_number: what takes it, None where there is nothing to set or the user has set it.
    """

    def __init__(
        self,
        set_number: Callable[[int], object] | None,
        most: int,
        n_processors: int,
        read: Callable[[], float],
    ) -> None:
        self._set, self._most, self._n_processors = set_number, most, n_processors
        self._read = read
        self.number = most
        self._at, self._others = time.monotonic(), 0.0 if set_number is None else read()

    def adapt(self) -> None:
        """Look, if the last look was a while ago, and take what the others left since then."""
        now = time.monotonic()
        if self._set is None or now - self._at < PERIOD_S:
            return
        others = self._read()
        taken, self._at, self._others = (others - self._others) / (now - self._at), now, others
        number = max(1, min(self._most, int(self._n_processors - taken + SLACK)))
        if number != self.number:
            self._set(number)
            self.number = number


def make_threads() -> Threads:
    """Of the BLAS that `blas.install` has given MLX."""
    library, most = blas.library(), blas.usable_cores()
    given = blas.given_threads()
    adapts = library is not None and not given and most > 1 and STAT.exists()
    set_number = library.scipy_openblas_set_num_threads if library and adapts else None
    return Threads(set_number, most, os.cpu_count() or most, used_by_others)


def used_by_others() -> float:
    """Seconds of processors that other programs have used."""
    with STAT.open("rb") as file:
        counts = file.readline().split()[1:]
    ticks = sum(
        int(count) for name, count in zip(_FIELDS, counts, strict=False) if name not in _IDLE
    )
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()
