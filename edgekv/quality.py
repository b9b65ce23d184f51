"""What `edgekv eval kld` has found for a model, kept so that the chat can show it."""

import json
from collections.abc import Mapping
from pathlib import Path

from edgekv import config
from edgekv.files import private_folder, write_whole

Bits = tuple[int, int]
LARGEST = 1 << 20


def record_kld(model: str, bits: Bits, mean: float) -> None:
    """Keep a mean KL divergence to fp16, in nats, of (key bits, value bits). Raises OSError."""
    path = _path()
    found = _read(path)
    found.setdefault(model, {})["{},{}".format(*bits)] = mean
    private_folder(path.parent)
    write_whole(path, json.dumps(found, indent=1).encode())


def measured_kld(model: str) -> Mapping[Bits, float]:
    """What was measured for a model, by (key bits, value bits); empty where nothing was."""
    known = _read(_path()).get(model, {})
    pairs = ((tuple(map(int, bits.split(","))), mean) for bits, mean in known.items())
    return {(pair[0], pair[1]): mean for pair, mean in pairs}


def _path() -> Path:
    return config.paths().data / "quality.json"


def _read(path: Path) -> dict[str, dict[str, float]]:
    """The file's figures; what is damaged or not of this form is as if not measured."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(LARGEST))
        return {
            str(model): {bits: float(mean) for bits, mean in rows.items() if _is_pair(bits)}
            for model, rows in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return {}


def _is_pair(bits: str) -> bool:
    parts = bits.split(",")
    return len(parts) == 2 and all(part.isdecimal() for part in parts)
