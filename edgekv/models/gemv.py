"""The product of a weight and one vector, on the threads that MLX's own products run on.

numpy has an OpenBLAS of its own, and threads of both look for work in a loop for a while after each
product. Where a reply is written while a prompt is read, two cores then serve three threads:
2,000 tokens took 93 s to read beside a stream, and 51 where one library computes both.
"""

import ctypes
from collections.abc import Callable

import numpy as np

from edgekv import blas
from edgekv.metal.host import Floats

ROW_MAJOR, AS_IT_IS = 101, 111


def by_vector(weight: Floats) -> Callable[[Floats], Floats]:
    """What takes a vector x (inputs,) to weight @ x, for a weight (outputs, inputs) that stays."""
    library = blas.library()
    if library is None or not weight.flags.c_contiguous:
        return weight.__matmul__
    rows, columns = weight.shape
    gemv = ctypes.CFUNCTYPE(None, *_ARGUMENTS)(("scipy_cblas_sgemv", library))
    matrix = weight.ctypes.data

    def product(x: Floats) -> Floats:
        assert x.shape == (columns,) and x.dtype == np.float32 and x.flags.c_contiguous
        out = np.empty(rows, np.float32)
        gemv(
            *(ROW_MAJOR, AS_IT_IS, rows, columns, 1.0, matrix, columns),
            *(x.ctypes.data, 1, 0.0, out.ctypes.data, 1),
        )
        return out

    return product


_INT, _FLOAT, _POINTER = ctypes.c_int, ctypes.c_float, ctypes.c_void_p
_ARGUMENTS = (_INT,) * 4 + (_FLOAT, _POINTER, _INT, _POINTER, _INT, _FLOAT, _POINTER, _INT)
"""Of cblas_sgemv: order, transposition, rows, columns, alpha, A and its row length, x, beta, y."""
