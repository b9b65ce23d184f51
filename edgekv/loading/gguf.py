"""Read a GGUF file: header, metadata and tensor table, the data left memory-mapped.

Source of the format: the GGUF specification, `docs/gguf.md` of ggml-org/ggml, versions 2 and 3,
little-endian. Every length, count and offset is checked against the file before it is used.
"""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import DamagedFile, ModelNotFound, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_PAIRS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ARRAY = 1 << 23
MAX_STRING = 1 << 24
MAX_KEY = 1 << 16
MAX_DIMS = 4
MAX_ALIGNMENT = 1 << 20

_FLOAT32, _STRING, _ARRAY = 6, 8, 9
_SCALARS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


class TensorType(NamedTuple):
    """A ggml tensor type: `block` elements of a row are stored in `nbytes` bytes."""

    name: str
    block: int
    nbytes: int


TENSOR_TYPES = {
    0: TensorType("F32", 1, 4),
    1: TensorType("F16", 1, 2),
    2: TensorType("Q4_0", 32, 18),
    3: TensorType("Q4_1", 32, 20),
    6: TensorType("Q5_0", 32, 22),
    7: TensorType("Q5_1", 32, 24),
    8: TensorType("Q8_0", 32, 34),
    10: TensorType("Q2_K", 256, 84),
    11: TensorType("Q3_K", 256, 110),
    12: TensorType("Q4_K", 256, 144),
    13: TensorType("Q5_K", 256, 176),
    14: TensorType("Q6_K", 256, 210),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    20: TensorType("IQ4_NL", 32, 18),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    23: TensorType("IQ4_XS", 256, 136),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    30: TensorType("BF16", 1, 2),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    39: TensorType("MXFP4", 32, 17),
}


class Tensor(NamedTuple):
    """One tensor: shape in row-major order (GGUF lists it reversed), raw rows of bytes."""

    name: str
    shape: tuple[int, ...]
    type: TensorType
    data: NDArray[np.uint8]

    def rows(self) -> NDArray[np.uint8]:
        """The bytes as `(rows, bytes of a row)`; a vector is one row."""
        return self.data.reshape(-1, self.shape[-1] // self.type.block * self.type.nbytes)


@dataclass(frozen=True)
class GGUF:
    """An open file. Metadata arrays of numbers are numpy arrays, those of strings lists."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, Tensor]


class _Cursor:
    """Reads forward through the mapped bytes and refuses to pass their end."""

    def __init__(self, path: Path, data: NDArray[np.uint8]) -> None:
        self.path = path
        self.view = memoryview(data.data)
        self.size = len(data)
        self.at = 0

    def damaged(self, what: str) -> DamagedFile:
        return DamagedFile(f"{self.path}: {what}; the file is damaged, download it again")

    def take(self, count: int, what: str) -> int:
        """Move `count` bytes on and return where they begin."""
        begin, self.at = self.at, self.at + count
        if self.at > self.size:
            raise self.damaged(f"ends inside {what} (at byte {self.size})")
        return begin

    def u32(self, what: str) -> int:
        return int(struct.unpack_from("<I", self.view, self.take(4, what))[0])

    def u64(self, what: str, most: int) -> int:
        value = int(struct.unpack_from("<Q", self.view, self.take(8, what))[0])
        if value > most:
            raise self.damaged(f"{what} is {value}, more than {most}")
        return value

    def string(self, what: str, most: int = MAX_STRING) -> str:
        length = self.u64(f"length of {what}", most)
        begin = self.take(length, what)
        return str(self.view[begin : begin + length], "utf-8", "replace")

    def strings(self, count: int, what: str) -> list[str]:
        """`count` strings; the hot loop of start-up, so nothing is called per string."""
        raw, at, size = self.view, self.at, self.size
        length_at = struct.Struct("<Q").unpack_from
        found = []
        for _ in range(count):
            if at + 8 > size:
                raise self.damaged(f"ends inside {what}")
            (length,) = length_at(raw, at)
            begin, at = at + 8, at + 8 + length
            if at > size or length > MAX_STRING:
                raise self.damaged(f"ends inside {what}")
            found.append(str(raw[begin:at], "utf-8", "replace"))
        self.at = at
        return found

    def numbers(self, kind: int, count: int, what: str) -> NDArray[Any]:
        dtype = np.dtype(_SCALARS[kind])
        begin = self.take(count * dtype.itemsize, what)
        return np.frombuffer(self.view, dtype, count, begin).copy()

    def array(self, what: str) -> list[str] | NDArray[Any]:
        kind = self.u32(what)
        count = self.u64(f"length of {what}", MAX_ARRAY)
        if kind == _STRING:
            return self.strings(count, what)
        if kind not in _SCALARS:
            raise self.damaged(f"{what} is an array of the unknown type {kind}")
        return self.numbers(kind, count, what)

    def value(self, kind: int, what: str) -> object:
        readers: dict[int, Callable[[str], object]] = {_STRING: self.string, _ARRAY: self.array}
        if kind in readers:
            return readers[kind](what)
        if kind not in _SCALARS:
            raise self.damaged(f"{what} has the unknown type {kind}")
        scalar = self.numbers(kind, 1, what)[0]
        # The shortest decimal that is this float: 1e-05, as it was before it was stored.
        return float(str(scalar)) if kind == _FLOAT32 else scalar.item()


def _header(cursor: _Cursor) -> tuple[int, int]:
    """The numbers of tensors and of metadata pairs."""
    magic = bytes(cursor.view[: cursor.take(4, "the header") + 4])
    if magic != MAGIC:
        raise DamagedFile(
            f"{cursor.path}: begins with {magic!r}, not {MAGIC!r}; "
            "give a .gguf file or a model's folder"
        )
    version = cursor.u32("the version")
    if version not in VERSIONS:
        endian = "big-endian" if version & 0xFFFF == 0 else f"version {version} of"
        raise UnsupportedModel(
            f"{cursor.path}: {endian} GGUF; use a little-endian file of version 2 or 3"
        )
    tensors = cursor.u64("the number of tensors", MAX_TENSORS)
    return tensors, cursor.u64("the number of metadata pairs", MAX_PAIRS)


def _metadata(cursor: _Cursor, pairs: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for _ in range(pairs):
        key = cursor.string("a metadata key", MAX_KEY)
        if key in metadata:
            raise cursor.damaged(f"has the metadata key {key!r} twice")
        metadata[key] = cursor.value(cursor.u32(f"the type of {key!r}"), f"{key!r}")
    return metadata


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value % 8:
        raise cursor.damaged(f"general.alignment is {value!r}, not a multiple of 8")
    return value


def _shape(cursor: _Cursor, name: str) -> tuple[int, ...]:
    dims = cursor.u32(f"the shape of {name!r}")
    if not 1 <= dims <= MAX_DIMS:
        raise cursor.damaged(f"tensor {name!r} has {dims} dimensions, not 1 to {MAX_DIMS}")
    shape = tuple(cursor.u64(f"a dimension of {name!r}", 1 << 40) for _ in range(dims))[::-1]
    if not all(shape):
        raise cursor.damaged(f"tensor {name!r} has the shape {shape}")
    return shape


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], TensorType, int]:
    name = cursor.string("a tensor name", MAX_KEY)
    shape = _shape(cursor, name)
    number = cursor.u32(f"the type of {name!r}")
    if number not in TENSOR_TYPES:
        raise UnsupportedModel(
            f"{cursor.path}: tensor {name!r} is of the unknown type {number}; "
            "use a file quantized as Q4_1, Q8_0 or Q4_K"
        )
    kind = TENSOR_TYPES[number]
    if shape[-1] % kind.block:
        raise cursor.damaged(f"tensor {name!r}: {kind.name} cannot hold rows of {shape[-1]}")
    return name, shape, kind, cursor.u64(f"the offset of {name!r}", cursor.size)


def _tensors(
    cursor: _Cursor, data: NDArray[np.uint8], count: int, alignment: int
) -> dict[str, Tensor]:
    infos = [_tensor_info(cursor) for _ in range(count)]
    start = -(-cursor.at // alignment) * alignment
    tensors: dict[str, Tensor] = {}
    for name, shape, kind, offset in infos:
        elements = 1
        for length in shape:
            elements *= length
        begin = start + offset
        end = begin + elements // kind.block * kind.nbytes
        if offset % alignment or end > cursor.size:
            raise cursor.damaged(
                f"tensor {name!r} lies at bytes {begin} to {end} of {cursor.size}, "
                f"aligned to {alignment}"
            )
        if name in tensors:
            raise cursor.damaged(f"has the tensor {name!r} twice")
        tensors[name] = Tensor(name, shape, kind, data[begin:end])
    return tensors


def map_file(path: Path) -> NDArray[np.uint8]:
    """The bytes of a file, memory-mapped and read-only."""
    try:
        if path.stat().st_size == 0:
            raise DamagedFile(f"{path}: is empty; download it again")
        return np.memmap(path, np.uint8, mode="r")
    except FileNotFoundError as fault:
        raise ModelNotFound(f"{path}: no such file; check the path") from fault
    except OSError as fault:
        raise DamagedFile(f"{path}: cannot be read ({fault.strerror}); check it") from fault


def read_gguf(path: Path) -> GGUF:
    """Open `path`; reads the header, touches no tensor data.

    Raises ModelNotFound, DamagedFile (truncated, malformed) or UnsupportedModel (version, split
    file, tensor type), each naming the file.
    """
    data = map_file(path)
    cursor = _Cursor(path, data)
    count, pairs = _header(cursor)
    metadata = _metadata(cursor, pairs)
    parts = metadata.get("split.count", 1)
    if parts not in (0, 1):
        raise UnsupportedModel(
            f"{path}: is one of {parts} parts; join them with `llama-gguf-split --merge`"
        )
    return GGUF(path, metadata, _tensors(cursor, data, count, _alignment(cursor, metadata)))
