"""Packed weights as fp32 numbers: what the CPU backend computes with, where memory allows it.

numpy does it on two threads in half the time of MLX's operation, which is 0.3 s of a start with
the default model (mlx 0.32.4, numpy 2.4, two cores).
"""

from itertools import accumulate

import mlx.core as mx

from edgekv.metal.beside import beside
from edgekv.metal.host import Arrays, Floats, view
from edgekv.metal.host_packed import numbers

AT_ONCE = 1 << 16
"""Numbers that are worked together: what a core's cache holds."""


TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one input: laid one behind another, one product computes them (see models/cpu.py)."""


def expand(weights: dict[str, mx.array], modes: dict[str, tuple[int, int]]) -> dict[str, mx.array]:
    """All weights of a model, dense; modes: (group_size, bits) of each packed module."""
    dense = {k: v for k, v in weights.items() if k.rpartition(".")[0] not in modes}
    for module in modes:
        bias = weights.get(f"{module}.bias")
        if bias is not None:
            dense[f"{module}.bias"] = bias
    room = _room(
        {name: _shape(weights[f"{name}.weight"], bits) for name, (_, bits) in modes.items()}
    )
    # A third thread, MLX's, goes ahead of both: new memory takes longer to come than to be filled.
    mx.async_eval(room)
    for module, array in room.items():
        _fill(view(array), _matrix(weights, module))
        dense[f"{module}.weight"] = array
    return dense


def _shape(packed: mx.array, bits: int) -> tuple[int, int]:
    rows, words = packed.shape
    return rows, words * 32 // bits


def _room(shapes: dict[str, tuple[int, int]]) -> dict[str, mx.array]:
    """Zeros for the weights of modules; those that are computed together are parts of one array."""
    room: dict[str, mx.array] = {}
    for names in _runs(shapes):
        rows = [shapes[name][0] for name in names]
        whole = mx.zeros((sum(rows), shapes[names[0]][1]), mx.float32)
        room |= zip(names, mx.split(whole, list(accumulate(rows[:-1]))), strict=True)
    return room


def _runs(shapes: dict[str, tuple[int, int]]) -> list[list[str]]:
    """Modules by what is computed together, in the order of TOGETHER."""
    runs: dict[tuple[str, tuple[str, ...], int], list[tuple[int, str]]] = {}
    for module, (_, columns) in shapes.items():
        parent, _, kind = module.rpartition(".")
        kinds = next((group for group in TOGETHER if kind in group), (kind,))
        runs.setdefault((parent, kinds, columns), []).append((kinds.index(kind), module))
    return [[module for _, module in sorted(run)] for run in runs.values()]


def _matrix(weights: dict[str, mx.array], module: str) -> Arrays:
    constants = (weights[f"{module}.{part}"].astype(mx.float32) for part in ("scales", "biases"))
    return view(weights[f"{module}.weight"]), *map(view, constants)


def _fill(out: Floats, matrix: Arrays) -> None:
    half = len(out) // 2
    rest = beside.submit(_fill_rows, out, matrix, half, len(out))
    _fill_rows(out, matrix, 0, half)
    rest.result()


def _fill_rows(out: Floats, matrix: Arrays, first: int, last: int) -> None:
    columns = out.shape[1]
    step = max(1, AT_ONCE // columns)
    for start in range(first, last, step):
        rows = slice(start, min(start + step, last))
        out[rows] = numbers(tuple(part[rows] for part in matrix), columns)
