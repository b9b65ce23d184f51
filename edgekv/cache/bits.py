"""Bits by layer, in a file: TOML or JSON with `k_bits` and `v_bits`, one number or one a layer."""

import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from edgekv.cache.policy import BITS, CachePolicy
from edgekv.errors import EdgekvError, InvalidValue

MAX_FILE = 64 * 1024
"""Bytes of such a file at the most."""

KEYS = ("k_bits", "v_bits")

LayerBits = tuple[int, int]
"""Bits of the keys and of the values of one layer."""


def read_bits(path: Path, n_layers: int) -> list[LayerBits]:
    """The bits of each layer. Raises InvalidValue for another kind of file, or model."""
    table = _parse(path)
    for key in table:
        if key not in KEYS:
            raise InvalidValue(f"{path}: unknown key {key!r}; known are k_bits and v_bits")
    keys, values = (_numbers(table.get(key), n_layers, f"{path}: {key}") for key in KEYS)
    return list(zip(keys, values, strict=True))


def _parse(path: Path) -> dict[str, Any]:
    parse: Callable[[str], Any] = json.loads if path.suffix.lower() == ".json" else tomllib.loads
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise InvalidValue(f"{path}: more than {MAX_FILE:,} bytes is no file of bits")
        table = parse(data.decode("utf-8"))
    except OSError as error:
        raise InvalidValue(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidValue(f"{path}: cannot be read as bits by layer: {error}") from None
    if not isinstance(table, dict):
        raise InvalidValue(f"{path}: expected a table with k_bits and v_bits, got {table!r:.40}")
    return table


def _numbers(value: object, n_layers: int, origin: str) -> list[int]:
    numbers: list[Any] = value if isinstance(value, list) else [value] * n_layers
    if len(numbers) != n_layers:
        raise InvalidValue(
            f"{origin}: has {len(numbers)} numbers, but the model has {n_layers} layers"
        )
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or number not in BITS:
            raise InvalidValue(f"{origin}: expected one of 2, 3, 4, 8, 16, got {number!r}")
    return numbers


def write_bits(path: Path, bits: Sequence[LayerBits], comment: str) -> None:
    """Write the bits of each layer as TOML. Raises EdgekvError where that cannot be done."""
    lines = [*(f"# {line}" for line in comment.splitlines())]
    lines += [
        f"{key} = {list(side)}" for key, side in zip(KEYS, zip(*bits, strict=True), strict=True)
    ]
    try:
        path.write_text("\n".join(lines) + "\n", "utf-8")
    except OSError as error:
        raise EdgekvError(f"cannot write {path}: {error.strerror or error}") from None


def with_bits(policy: CachePolicy, bits: Sequence[LayerBits]) -> CachePolicy:
    """The policy with other bits in each layer."""
    layers = zip(policy.layers, bits, strict=True)
    return replace(
        policy, layers=tuple(replace(layer, k_bits=k, v_bits=v) for layer, (k, v) in layers)
    )
