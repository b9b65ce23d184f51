"""Entry: a closed block or an fp16 tail, and its form in a file.

A file is a safetensors file (8 bytes of length, a JSON header, the data) whose header a reader
can predict but for the checksums, so that a flipped bit anywhere is noticed. Nothing in a file
is believed: what it says must be what the reader knows already.
"""

import json
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

FORMAT = 1
MAX_HEADER = 1 << 20
_TYPES = {"uint32": "U32", "float16": "F16"}
_DTYPES = {code: np.dtype(name) for name, code in _TYPES.items()}

_KEY = re.compile("[0-9a-f]{40}")

Arrays = Mapping[str, NDArray[Any]]
Kind = Literal["block", "tail"]


class Refused(Exception):
    """A file that is not what its name promises; the message says in what."""


@dataclass(frozen=True)
class Entry:
    """What is kept of a sequence under one key.

    A block: its 64 tokens, the first one's behind the sinks, and the key of the blocks before.
    A tail: the fp16 tokens behind the blocks that `base` stands for, and the slots they had.
    """

    key: str
    kind: Kind
    base: str
    tokens: tuple[int, ...]
    arrays: Arrays
    slots: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self.arrays.values())


def encode(entry: Entry) -> bytes:
    """The bytes of an entry's file."""
    arrays = {name: np.ascontiguousarray(entry.arrays[name]) for name in sorted(entry.arrays)}
    parts = [array.tobytes() for array in arrays.values()]
    sums = tuple(zlib.crc32(part) for part in parts)
    header = _header(entry, arrays, sums)
    return b"".join([len(header).to_bytes(8, "little"), header, *parts])


def decode(content: bytes) -> Entry:
    """The entry in a file's bytes. Raises Refused where they are not sound."""
    length = int.from_bytes(content[:8], "little")
    if not 2 <= length <= min(MAX_HEADER, len(content) - 8):
        raise Refused("it is cut short, or no safetensors file")
    start = 8 + length
    try:
        table = json.loads(content[8:start])
        meta = table.pop("__metadata__")
        version = meta["format"]
        if version != str(FORMAT):
            raise Refused(f"it has format {version!r}, this edgekv reads {FORMAT}")
        tokens, slots = (_integers(meta[name]) for name in ("tokens", "slots"))
        arrays = {name: _array(content, start, facts) for name, facts in table.items()}
        entry = Entry(meta["key"], meta["kind"], meta["base"], tokens, arrays, slots)
        actual = tuple(zlib.crc32(array.data) for array in arrays.values())
        if not (_KEY.fullmatch(entry.key) and _KEY.fullmatch(entry.base)):
            raise ValueError("a key that is no hash")
        same = _header(entry, arrays, actual) == content[8:start]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise Refused("its header is damaged, or it is cut short") from error
    if not same:
        raise Refused("its checksum is wrong")
    if start + entry.nbytes != len(content):
        raise Refused("its size is wrong")
    return entry


def _header(entry: Entry, arrays: Arrays, sums: tuple[int, ...]) -> bytes:
    """The header with the checksums of the data in it, and behind them its own without any."""
    own = zlib.crc32(_table(entry, arrays, ""))
    header = _table(entry, arrays, _numbers((*sums, own)))
    return header + b" " * (-len(header) % 8)


def _table(entry: Entry, arrays: Arrays, sums: str) -> bytes:
    table: dict[str, Any] = {
        "__metadata__": {
            "format": str(FORMAT),
            "kind": entry.kind,
            "key": entry.key,
            "base": entry.base,
            "tokens": _numbers(entry.tokens),
            "slots": _numbers(entry.slots),
            "crc32": sums,
        }
    }
    at = 0
    for name, array in arrays.items():
        offsets = [at, at + array.nbytes]
        at += array.nbytes
        dtype = _TYPES[array.dtype.name]
        table[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": offsets}
    return json.dumps(table, separators=(",", ":")).encode()


def _numbers(values: tuple[int, ...]) -> str:
    return " ".join(map(str, values))


def _integers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def _array(content: bytes, start: int, facts: dict[str, Any]) -> NDArray[Any]:
    """One tensor as a view of the file's bytes. Raises ValueError where it is not there."""
    dtype, (first, last) = _DTYPES[facts["dtype"]], facts["data_offsets"]
    if not 0 <= first <= last <= len(content) - start:
        raise ValueError("a tensor outside the file")
    data = np.frombuffer(content, dtype, (last - first) // dtype.itemsize, start + first)
    return data.reshape(facts["shape"])
