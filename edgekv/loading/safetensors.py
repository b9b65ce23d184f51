"""Check a safetensors file against its own header before MLX reads it.

Source of the format: the safetensors README: 8 bytes little-endian length, a JSON object of
`name: {dtype, shape, data_offsets}`, then the data. `mx.load` is lazy, so that without this a
truncated file would fail in the middle of a computation.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeGuard

import mlx.core as mx

from edgekv.errors import DamagedFile, UnsupportedModel

MAX_HEADER = 100 << 20
MAX_DIMS = 8
ITEM_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
}


def _damaged(path: Path, what: str) -> DamagedFile:
    return DamagedFile(f"{path}: {what}; the file is damaged, download it again")


def _header(path: Path) -> tuple[dict[str, Any], int]:
    """The header and the number of bytes of data after it."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or not 2 <= length <= min(MAX_HEADER, size - 8):
                raise _damaged(path, f"has {size} bytes and a header of {length}")
            header = json.loads(file.read(length))
    except OSError as fault:
        raise DamagedFile(f"{path}: cannot be read ({fault.strerror}); check it") from fault
    except (ValueError, RecursionError) as fault:
        raise _damaged(path, "its header is not JSON") from fault
    if not isinstance(header, dict):
        raise _damaged(path, "its header is not an object")
    return header, size - 8 - length


def _naturals(value: object, count: int) -> TypeGuard[list[int]]:
    return (
        isinstance(value, list)
        and len(value) <= count
        and all(type(n) is int and 0 <= n < 1 << 48 for n in value)
    )


def _check_tensor(path: Path, name: str, info: object, data_bytes: int) -> None:
    shape = info.get("shape") if isinstance(info, Mapping) else None
    if not isinstance(info, Mapping) or not _naturals(shape, MAX_DIMS):
        raise _damaged(path, f"tensor {name[:80]!r} has no shape")
    if info.get("dtype") not in ITEM_BYTES:
        raise UnsupportedModel(
            f"{path}: tensor {name[:80]!r} is of type {str(info.get('dtype'))[:16]!r}; "
            f"supported: {', '.join(ITEM_BYTES)}"
        )
    need = ITEM_BYTES[info["dtype"]]
    for length in shape:
        need *= length
    offsets = info.get("data_offsets")
    if not _naturals(offsets, 2) or len(offsets) != 2 or offsets[1] - offsets[0] != need:
        raise _damaged(path, f"tensor {name[:80]!r} needs {need} bytes at {offsets}")
    if offsets[1] > data_bytes:
        raise _damaged(path, f"ends inside tensor {name[:80]!r}")


def load_safetensors(path: Path) -> dict[str, mx.array]:
    """The arrays of a file, lazy: they belong to the calling thread until evaluated.

    Raises DamagedFile, or UnsupportedModel for a dtype MLX has not.
    """
    header, data_bytes = _header(path)
    for name, info in header.items():
        if name != "__metadata__":
            _check_tensor(path, name, info, data_bytes)
    try:
        arrays = mx.load(str(path), format="safetensors")
    except (RuntimeError, ValueError) as fault:
        raise _damaged(path, f"MLX cannot read it ({str(fault).splitlines()[0]})") from fault
    assert isinstance(arrays, dict)
    return arrays
