"""The Metal kernels: their sources, each built once.

MLX generates a kernel's signature from the arrays it is called with, and its outputs are always
fresh buffers: a kernel never writes into the cache.
"""

from collections.abc import Callable
from functools import cache
from importlib.resources import files
from typing import NamedTuple, cast

import mlx.core as mx

Kernel = Callable[..., list[mx.array]]

LANES = 32
"""Threads of a simdgroup, on every Apple GPU."""

THREADGROUP_BYTES = 32 * 1024
REGISTERS = 128
"""32-bit registers of one thread; more would be spilled to memory."""

PACKED = ("k_codes", "k_scale", "k_zero", "v_codes", "v_scale", "v_zero")


class Source(NamedTuple):
    """A kernel's headers, inputs and outputs; its body is in <name>.metal."""

    headers: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    contiguous: bool = True
    """Whether MLX should copy inputs that do not lie row by row."""


SOURCES = {
    "decode": Source(
        ("packed.h", "decode.h"),
        ("q", "table", "frequencies", "factor", *PACKED, "hot"),
        ("out",),
    ),
    "merge": Source(("packed.h", "decode.h"), ("partials",), ("out",)),
    "close": Source(("packed.h",), ("keys", "values"), PACKED, contiguous=False),
}


@cache
def build(name: str) -> Kernel:
    """A kernel by its name, with the arguments that mx.fast.metal_kernel documents."""
    source = SOURCES[name]
    folder = files(__package__)
    kernel = mx.fast.metal_kernel(
        name=f"edgekv_{name}",
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        source=folder.joinpath(f"{name}.metal").read_text("utf-8"),
        header="".join(folder.joinpath(header).read_text("utf-8") for header in source.headers),
        ensure_row_contiguous=source.contiguous,
    )
    return cast(Kernel, kernel)
