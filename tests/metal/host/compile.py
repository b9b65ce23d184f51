"""Translated kernels compiled by clang, under AddressSanitizer and UndefinedBehaviorSanitizer."""

import hashlib
import os
import shutil
import subprocess
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from tests.metal.host.translate import Kernel, program

HERE = Path(__file__).parent
FLAGS = (
    *("-std=c++20", "-O1", f"-I{HERE}", "-Wno-unused-command-line-argument"),
    *("-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    # A fake stack for each fiber, made anew in every threadgroup, took a third of the time.
    "-fsanitize-address-use-after-return=never",
    # bfloat16's conversions are in clang's own runtime, not in that of every gcc.
    *("--rtlib=compiler-rt", "--unwindlib=libgcc"),
)
KEPT_S = 14 * 24 * 3600


@cache
def compiler() -> str:
    """clang 16 or newer: the first that has the 16-bit types of Metal."""
    names = [os.environ.get("EDGEKV_CLANG"), *(f"clang++-{v}" for v in range(22, 15, -1))]
    found = next(filter(None, (shutil.which(name) for name in [*names, "clang++"] if name)), None)
    assert found, "tests of the Metal kernels need clang 16 or newer: apt-get install clang-19"
    return found


def build(kernels: list[Kernel]) -> Path:
    """The program of these kernels, from the cache where it was compiled before."""
    return _made(program(kernels), "-include-pch", str(_headers()))


@cache
def _headers() -> Path:
    """Everything but the kernels themselves, compiled ahead: half of a small program's time."""
    text = "".join(path.read_text() for path in sorted(HERE.glob("*.h")))
    return _made(
        '#include "runner.h"\n' + "".join(f"// {line}\n" for line in text.splitlines()),
        # By content: a checkout gives headers new times.
        *("-fpch-instantiate-templates", "-Xclang", "-fno-pch-timestamp", "-x", "c++-header"),
    )


def _made(text: str, *options: str) -> Path:
    """What clang makes of a source text, kept under a name made of all that went into it."""
    command = [compiler(), *FLAGS, *options]
    key = hashlib.sha256(repr((command, text)).encode()).hexdigest()[:24]
    folder = Path.home() / ".cache" / "edgekv-tests" / "kernels"
    path, source = folder / key, folder / f"{key}.cpp"
    if path.exists():
        path.touch()
        source.touch()
        return path
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f"{key}.{os.getpid()}"
    source.write_text(text)
    done = subprocess.run([*command, source, "-o", fresh], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:4000]
    fresh.rename(path)
    for old in folder.iterdir():
        # A file of another build that goes on beside this one may be renamed at any time.
        with suppress(FileNotFoundError):
            if old.stat().st_mtime < time.time() - KEPT_S:
                old.unlink()
    return path
