"""The product of a weight and a few rows on the host, at the cost of reading the weight once.

OpenBLAS copies a matrix into an order of its own before it multiplies it by another, which for a
few rows costs twice the product itself: 16.5 ms of one core for twenty weights of 1536 x 576 and
four rows, where one row takes 6.0. Its kernel for small products reads the weight as it is: in
pieces it takes 8.4 (OpenBLAS 0.3.31, AVX-512, time of one core). That kernel keeps to one core,
so half of a large weight goes to a second thread.
"""

import numpy as np

from edgekv.metal.beside import beside
from edgekv.metal.host import Floats

SMALL = 1_000_000
"""Multiplications up to which OpenBLAS takes its kernel for small products."""

WORTH_SPLITTING = 500_000
"""Numbers of a weight from which half of it is worth waking a thread for."""


def product(weight: Floats, x: Floats) -> Floats:
    """x @ weight.T for a weight (outputs, inputs) and rows x (n, inputs)."""
    columns = np.ascontiguousarray(x.T)
    out = np.empty((len(weight), len(x)), np.float32)
    step = max(1, SMALL // x.size)

    def fill(first: int, last: int) -> None:
        for at in range(first, last, step):
            piece = slice(at, min(at + step, last))
            np.matmul(weight[piece], columns, out=out[piece])

    if weight.size < WORTH_SPLITTING:
        fill(0, len(weight))
    else:
        half = beside.submit(fill, len(weight) // 2, len(weight))
        fill(0, len(weight) // 2)
        half.result()
    return out.T
