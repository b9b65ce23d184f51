"""Products of matrices in numpy's memory, on the threads that MLX's own products run on.

numpy has an OpenBLAS of its own, whose threads would turn for the same cores (see models/gemv.py).
"""

import ctypes
from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray

from edgekv import blas

Floats = NDArray[np.float32]

_INT, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
_ARGUMENTS = (_INT,) * 6 + (_FLOAT, *(_POINTER, _INT) * 2, _FLOAT, _POINTER, _INT)
"""Of cblas_sgemm: order, two transpositions, m, n, k, alpha, A and B with row lengths, beta, C."""
_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED = 101, 111, 112


def multiply_into(out: Floats, a: Floats, b: Floats) -> None:
    """out = a @ b, for fp32 matrices of which `b` may be the transpose of one; rows unbroken."""
    library = blas.library()
    if library is None:
        np.matmul(a, b, out=out)
        return
    turned = b.strides[1] != b.itemsize
    stored = b.T if turned else b
    assert a.shape == (len(out), len(b)) and b.shape[1] == out.shape[1]
    assert all(x.dtype == np.float32 and x.strides[1] == x.itemsize for x in (out, a, stored))
    _sgemm(library)(
        *(_ROW_MAJOR, _AS_IT_IS, _TRANSPOSED if turned else _AS_IT_IS, *out.shape, len(b), 1.0),
        *(*_place(a), *_place(stored), 0.0, *_place(out)),
    )


def _place(x: Floats) -> tuple[int, int]:
    """Where a matrix begins, and the numbers from one row to the next (any, of a single row)."""
    return x.ctypes.data, max(x.strides[0] // x.itemsize, x.shape[1])


@cache
def _sgemm(library: ctypes.CDLL) -> Callable[..., None]:
    return ctypes.CFUNCTYPE(None, *_ARGUMENTS)(("scipy_cblas_sgemm", library))
