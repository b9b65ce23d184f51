"""What this machine has: memory, in bytes, without asking MLX."""

import os
from pathlib import Path

# macOS lets the GPU hold about three quarters of memory; a Linux desktop needs the rest too.
USABLE = 0.75


def total_memory() -> int | None:
    """Bytes of physical memory; None where the system does not say."""
    return _pages("SC_PHYS_PAGES")


def available_memory() -> int | None:
    """Bytes that could be taken without swapping; None where the system does not say."""
    try:
        text = Path("/proc/meminfo").read_text("ascii")
        fields = dict(line.split(":", 1) for line in text.splitlines())
        return int(fields["MemAvailable"].split()[0]) * 1024
    except (OSError, ValueError, KeyError, IndexError):
        return _pages("SC_AVPHYS_PAGES")


def usable_memory() -> int | None:
    """Bytes that models may take; None when total memory is unknown."""
    total = total_memory()
    return None if total is None else int(total * USABLE)


def fits(needed: float) -> bool | None:
    """Whether `needed` bytes can be held here; None when total memory is unknown."""
    usable = usable_memory()
    return None if usable is None else needed <= usable


def _pages(name: str) -> int | None:
    try:
        pages, size = os.sysconf(name), os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
    return pages * size if pages > 0 and size > 0 else None
