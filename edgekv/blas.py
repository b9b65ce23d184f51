"""A fast BLAS for MLX on Linux.

MLX's CPU wheel for Linux calls the reference BLAS it is linked to: a 256×576×1536 product takes
118 ms here, 1.6 ms through OpenBLAS. The call goes through one slot of libmlx.so's procedure
linkage table, so `install` writes the address of OpenBLAS's `cblas_sgemm` (of the wheel
scipy-openblas32, same interface) into that slot, checks a product, and puts the old address back
if it is wrong. EDGEKV_BLAS=reference leaves everything as it is; macOS has Accelerate already.
"""

import ctypes
import mmap
import os
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SYMBOL = b"cblas_sgemm"

# ELF machine -> relocation type of a jump slot (x86-64, aarch64).
JUMP_SLOTS = {62: 7, 183: 1026}
PT_LOAD, PT_DYNAMIC = 1, 2
DT_PLTRELSZ, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_JMPREL = 2, 5, 6, 10, 23

_lock = threading.Lock()
_installed: "Blas | None" = None
_library: ctypes.CDLL | None = None


@dataclass(frozen=True)
class Blas:
    """The BLAS in use ("Accelerate", "OpenBLAS 0.3.x" or "reference"), why, and its threads."""

    name: str
    reason: str
    threads: int | None = None


class _Unsuitable(Exception):
    """Why the slot is better left alone."""


def install() -> Blas:
    """Give MLX the fastest BLAS there is. Idempotent, thread-safe, never raises.

    Call it after `import mlx.core` and before the first product, on the thread that uses MLX.
    """
    global _installed
    with _lock:
        if _installed is None:
            chosen = _choose()
            # Asked too early: the next call may still do better.
            if sys.platform == "linux" and "mlx.core" not in sys.modules:
                return chosen
            _installed = chosen
        return _installed


def library() -> ctypes.CDLL | None:
    """The OpenBLAS that `install` gave MLX, for products of our own; None where it gave none."""
    return _library


def _choose() -> Blas:
    if sys.platform == "darwin":
        return Blas("Accelerate", "part of macOS")
    if os.environ.get("EDGEKV_BLAS") == "reference":
        return Blas("reference", "asked for by EDGEKV_BLAS")
    try:
        return _preloaded() or _switch()
    except _Unsuitable as reason:
        return Blas("reference", str(reason))
    # A slow product is no reason to stop: whatever goes wrong here is told, not raised.
    except Exception as error:
        return Blas("reference", f"OpenBLAS could not be used: {type(error).__name__}: {error}")


def _preloaded() -> Blas | None:
    """The OpenBLAS that the user put before every other library, if any."""
    everything = ctypes.CDLL(None)
    if not hasattr(everything, "cblas_sgemm"):
        return None
    if not hasattr(everything, "openblas_get_config"):
        raise _Unsuitable("another BLAS is preloaded")
    name, threads = _describe(everything, "openblas_")
    return Blas(name, "preloaded", threads)


def _switch() -> Blas:
    global _library
    if "mlx.core" not in sys.modules:
        raise _Unsuitable("MLX is not loaded")
    slot = _find_slot(_mlx_library())
    opened = _open_blas()
    _limit_threads(opened)
    pointer = ctypes.c_void_p.from_address(slot)
    before = pointer.value
    pointer.value = ctypes.cast(opened.scipy_cblas_sgemm, ctypes.c_void_p).value
    try:
        right = _product_is_right()
    except BaseException:
        pointer.value = before
        raise
    if not right:
        pointer.value = before
        raise _Unsuitable("OpenBLAS gave a wrong product")
    name, threads = _describe(opened, "scipy_openblas_")
    _library = opened
    return Blas(name, "scipy-openblas32", threads)


def _mlx_library() -> Path:
    import mlx

    folder = next(iter(mlx.__path__))
    path = Path(folder) / "lib" / "libmlx.so"
    if not path.is_file():
        raise _Unsuitable(f"no {path}")
    return path


def _open_blas() -> ctypes.CDLL:
    import scipy_openblas32

    folder, stem = scipy_openblas32.get_lib_dir(), scipy_openblas32.get_library()
    return ctypes.CDLL(str(Path(folder) / f"lib{stem}.so"))


def _describe(library: ctypes.CDLL, prefix: str) -> tuple[str, int]:
    config = getattr(library, f"{prefix}get_config")
    config.restype = ctypes.c_char_p
    words = config().decode("ascii", "replace").split()
    return " ".join(words[:2]), int(getattr(library, f"{prefix}get_num_threads")())


def given_threads() -> bool:
    """Whether the user has set how many threads there are."""
    return bool(os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS"))


def _limit_threads(library: ctypes.CDLL) -> None:
    if given_threads():
        return
    library.scipy_openblas_set_num_threads(ctypes.c_int(usable_cores()))


def usable_cores() -> int:
    """Physical cores this process may run on, at least one."""
    processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
    if processors is None:
        return os.cpu_count() or 1
    return max(1, len({_siblings(number) for number in processors}))


def _siblings(processor: int) -> str:
    """The hardware threads of one core, as the kernel lists them; unique where it does not."""
    path = Path(f"/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list")
    try:
        return path.read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return f"cpu{processor}"


def _product_is_right() -> bool:
    """Compare products with sums that no BLAS takes part in."""
    import mlx.core as mx

    with mx.stream(mx.cpu):
        a = mx.sin(mx.arange(37 * 65)).reshape(37, 65)
        b = mx.cos(mx.arange(65 * 29)).reshape(65, 29)
        right = (a[:, :, None] * b[None]).sum(axis=1)
        turned = mx.contiguous(b.T).T
        return all(mx.allclose(a @ c, right, rtol=1e-4, atol=1e-4).item() for c in (b, turned))


def _find_slot(path: Path) -> int:
    """The address, in this process, of the pointer through which `path` calls SYMBOL."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        elf = Elf(data)
        offset, first = elf.jump_slot(SYMBOL), elf.first_address
    mappings = list(_mappings())
    starts = [start for start, _, _, name in mappings if name == os.path.realpath(path)]
    if not starts:
        raise _Unsuitable(f"{path} is not loaded")
    slot = min(starts) - first + offset
    if not any(
        start <= slot and slot + 8 <= end and "w" in mode for start, end, mode, _ in mappings
    ):
        raise _Unsuitable("MLX's call table is read-only")
    return slot


def _mappings() -> Iterator[tuple[int, int, str, str]]:
    """Start, end, permissions and file of each mapping of this process."""
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        span, mode, *rest = line.split(maxsplit=5)
        start, end = (int(part, 16) for part in span.split("-"))
        yield start, end, mode, rest[3] if len(rest) == 4 else ""


class Elf:
    """The part of a 64-bit little-endian shared library that its loader reads.

    Anything malformed raises ValueError or struct.error.
    """

    def __init__(self, data: "bytes | mmap.mmap") -> None:
        self.data = data
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF file")
        (self.machine,) = struct.unpack_from("<H", data, 18)
        if self.machine not in JUMP_SLOTS:
            raise _Unsuitable(f"ELF machine {self.machine} is not known")

    @cached_property
    def segments(self) -> list[tuple[int, int, int, int]]:
        """Type, file offset, address and size in the file of each program header."""
        (table,) = struct.unpack_from("<Q", self.data, 32)
        size, number = struct.unpack_from("<HH", self.data, 54)
        headers = (
            struct.unpack_from("<IIQQQQ", self.data, table + i * size) for i in range(number)
        )
        return [(kind, offset, at, length) for kind, _, offset, at, _, length in headers]

    @property
    def first_address(self) -> int:
        """The page on which the first loaded segment starts."""
        return min(at for kind, _, at, _ in self.segments if kind == PT_LOAD) & -mmap.PAGESIZE

    def jump_slot(self, symbol: bytes) -> int:
        """The address, before loading, of the slot of an imported function."""
        entries, symbols, names = (
            self.table(DT_JMPREL),
            self.table(DT_SYMTAB),
            self.table(DT_STRTAB),
        )
        for at in range(entries, entries + self.dynamic[DT_PLTRELSZ], 24):
            slot, info = struct.unpack_from("<QQ", self.data, at)
            (name,) = struct.unpack_from("<I", self.data, symbols + (info >> 32) * 24)
            wanted = info & 0xFFFFFFFF == JUMP_SLOTS[self.machine]
            if wanted and name < self.dynamic[DT_STRSZ] and self.text(names + name) == symbol:
                return int(slot)
        raise _Unsuitable(f"MLX does not import {symbol.decode()}")

    @cached_property
    def dynamic(self) -> dict[int, int]:
        """The dynamic section: tag to value."""
        spans = [(offset, size) for kind, offset, _, size in self.segments if kind == PT_DYNAMIC]
        if not spans:
            raise ValueError("no dynamic section")
        offset, size = spans[0]
        return dict(
            struct.unpack_from("<qQ", self.data, offset + i) for i in range(0, size - 15, 16)
        )

    def table(self, tag: int) -> int:
        """File offset of a table that the dynamic section gives the address of."""
        if tag not in self.dynamic:
            raise ValueError(f"no dynamic entry {tag}")
        address = self.dynamic[tag]
        for kind, offset, at, size in self.segments:
            if kind == PT_LOAD and at <= address < at + size:
                return address - at + offset
        raise ValueError(f"address {address:#x} is in no segment")

    def text(self, at: int) -> bytes:
        """The name at a file offset, up to its NUL; at most 64 bytes are looked at."""
        return bytes(self.data[at : at + 64]).split(b"\0", 1)[0]
