"""The switch to OpenBLAS is right, can be refused, and is taken back when it is wrong."""

import ctypes
import os
import struct
import subprocess
import sys

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv import blas

linux = pytest.mark.skipif(sys.platform != "linux", reason="the switch is for Linux alone")


def ask(code, **env):
    source = f"from edgekv import blas\n{code}\nprint(blas.install().name)"
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, env=os.environ | env
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@linux
def test_openblas_is_installed_once_and_products_stay_right():
    first = blas.install()
    assert first.name.startswith("OpenBLAS 0.") and first.threads >= 1
    assert blas.install() is first
    random = np.random.default_rng(1)
    for rows, inner, columns in [(1, 64, 64), (2, 7, 3), (256, 576, 1536), (65, 1, 65)]:
        a = random.standard_normal((rows, inner), dtype=np.float32)
        b = random.standard_normal((inner, columns), dtype=np.float32)
        product = np.array(mx.matmul(mx.array(a), mx.array(b), stream=mx.cpu))
        np.testing.assert_allclose(product, a @ b, rtol=1e-4, atol=1e-4)


@linux
def test_escape_hatch():
    assert ask("import mlx.core", EDGEKV_BLAS="reference") == "reference"


@linux
def test_asked_before_mlx_is_loaded_then_after():
    assert ask("first = blas.install()") == "reference"
    assert ask("blas.install(); import mlx.core").startswith("OpenBLAS")


@linux
def test_thread_count_of_the_user_is_kept():
    code = "import mlx.core\nassert blas.install().threads == 1, blas.install()"
    assert ask(code, OPENBLAS_NUM_THREADS="1").startswith("OpenBLAS")


@linux
@pytest.mark.parametrize("outcome", [False, ZeroDivisionError("no")])
def test_wrong_product_puts_the_old_pointer_back(monkeypatch, outcome):
    def check():
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    slot = ctypes.c_void_p.from_address(blas._find_slot(blas._mlx_library()))
    before = slot.value
    monkeypatch.setattr(blas, "_product_is_right", check)
    chosen = blas._choose()
    assert chosen.name == "reference" and slot.value == before


@linux
def test_read_only_table_is_left_alone(monkeypatch):
    mappings = [(a, b, mode.replace("w", "-"), name) for a, b, mode, name in blas._mappings()]
    monkeypatch.setattr(blas, "_mappings", lambda: iter(mappings))
    assert blas._choose() == blas.Blas("reference", "MLX's call table is read-only")


@linux
def test_missing_openblas_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy_openblas32", None)
    assert "scipy_openblas32" in blas._choose().reason


def test_macos_is_left_alone(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert blas._choose().name == "Accelerate"


BAD = (ValueError, struct.error, OverflowError, blas._Unsuitable)


@linux
@given(st.integers(0, 200_000))
def test_truncated_library_is_refused(length):
    data = blas._mlx_library().read_bytes()[:length]
    with pytest.raises(BAD):
        blas.Elf(data).jump_slot(blas.SYMBOL)


@linux
@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), min_size=1, max_size=8))
def test_damaged_headers_never_raise_anything_else(changes):
    data = bytearray(blas._mlx_library().read_bytes()[:700])
    for at, value in changes:
        data[min(at, 699)] = value
    with pytest.raises(BAD):
        elf = blas.Elf(bytes(data))
        assert elf.first_address >= 0
        elf.jump_slot(blas.SYMBOL)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data):
    with pytest.raises(BAD):
        blas.Elf(b"\x7fELF\x02\x01" + data).jump_slot(blas.SYMBOL)


def test_usable_cores():
    assert 1 <= blas.usable_cores() <= (os.cpu_count() or 1)
