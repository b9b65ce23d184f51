"""The one place where a model's configuration is checked, whatever file it came from.

Keys are those of Hugging Face's `config.json`. After `checked` every number that later code
multiplies, allocates or loops by is of its type and in a sane range.
"""

import json
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from edgekv.errors import DamagedFile, UnsupportedModel

MAX_JSON_BYTES = 16 << 20
MAX_FACTORS = 1 << 16


class Bounds(NamedTuple):
    """An integer's or a float's range, both ends allowed."""

    kind: type[int] | type[float]
    least: float
    most: float


NUMBERS = {
    "hidden_size": Bounds(int, 1, 1 << 20),
    "intermediate_size": Bounds(int, 1, 1 << 22),
    "num_hidden_layers": Bounds(int, 1, 4096),
    "num_attention_heads": Bounds(int, 1, 4096),
    "num_key_value_heads": Bounds(int, 1, 4096),
    "head_dim": Bounds(int, 1, 4096),
    "vocab_size": Bounds(int, 1, 1 << 24),
    "max_position_embeddings": Bounds(int, 1, 1 << 30),
    "sliding_window": Bounds(int, 1, 1 << 30),
    "bos_token_id": Bounds(int, 0, 1 << 24),
    "rms_norm_eps": Bounds(float, 0.0, 1.0),
    "rope_theta": Bounds(float, 1e-3, 1e15),
}

# Keys each model type must have. A type that is not here is passed on unchecked, so that
# edgekv.models refuses it by its name and not for a key it spells differently.
REQUIRED = dict.fromkeys(
    ("llama", "mistral", "qwen2", "qwen3"),
    (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "vocab_size",
        "max_position_embeddings",
    ),
)
DEFAULTS: Mapping[str, Any] = {
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
}

BITS = (2, 3, 4, 5, 6, 8)
GROUP_SIZES = (16, 32, 64, 128)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of at most 16 MiB. Raises DamagedFile."""
    try:
        if path.stat().st_size > MAX_JSON_BYTES:
            raise DamagedFile(f"{path}: is larger than {MAX_JSON_BYTES} bytes; it is not a config")
        value = json.loads(path.read_bytes())
    except OSError as fault:
        raise DamagedFile(f"{path}: cannot be read ({fault.strerror}); check it") from fault
    except (ValueError, RecursionError) as fault:
        raise DamagedFile(f"{path}: is not JSON ({fault}); download it again") from fault
    if not isinstance(value, dict):
        raise DamagedFile(f"{path}: holds a {type(value).__name__}, not an object")
    return value


def _number(key: str, value: object, who: Path) -> int | float:
    kind, least, most = NUMBERS[key]
    number = value if type(value) in (int, float) and isinstance(value, (int, float)) else least - 1
    if not least <= number <= most or number != kind(number):
        raise DamagedFile(f"{who}: {key} is {value!r}, not {kind.__name__} in {least} to {most}")
    return kind(number)


def _numbers(config: dict[str, Any], who: Path) -> None:
    """Check every known number; a null is the same as an absent key."""
    if config.get("use_sliding_window") is False:
        config.pop("sliding_window", None)
    for key in NUMBERS.keys() & config.keys():
        if config[key] is None:
            del config[key]
        else:
            config[key] = _number(key, config[key], who)


def token_ids(value: object, who: Path, key: str = "eos_token_id") -> list[int]:
    """An id, a list of ids or null, as a sorted list."""
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if len(ids) > 1024 or not all(type(i) is int and 0 <= i < 1 << 24 for i in ids):
        raise DamagedFile(f"{who}: {key} is {str(value)[:80]}, not token ids")
    return sorted(set(ids))


def _rope(config: dict[str, Any], who: Path) -> None:
    """Newer files keep both rope keys in `rope_parameters`; bring them to the older form."""
    parameters = config.pop("rope_parameters", None)
    if isinstance(parameters, dict) and "rope_theta" in parameters:
        scaling = {k: v for k, v in parameters.items() if k != "rope_theta"}
        config.setdefault("rope_theta", parameters["rope_theta"])
        if scaling.get("rope_type", "default") != "default":
            config.setdefault("rope_scaling", scaling)
    scaling = config.get("rope_scaling") or {}
    if not scaling:
        return
    if not isinstance(scaling, dict):
        raise DamagedFile(f"{who}: rope_scaling is {str(scaling)[:80]}, not an object")
    config["rope_scaling"] = {
        "rope_type": scaling.get("rope_type", scaling.get("type", "default")),
        **{key: _scaling_value(key, value, who) for key, value in scaling.items() if key != "type"},
    }


def _scaling_value(key: str, value: object, who: Path) -> object:
    items = value if isinstance(value, list) else [value]
    numbers = [item for item in items if isinstance(item, (int, float))]
    if len(items) > MAX_FACTORS or not all(math.isfinite(n) and abs(n) < 1e15 for n in numbers):
        raise DamagedFile(f"{who}: rope_scaling has {key} out of range")
    return value


def _heads(config: dict[str, Any], who: Path) -> None:
    heads = config["num_attention_heads"]
    kv_heads = config.setdefault("num_key_value_heads", heads)
    if heads % kv_heads:
        raise DamagedFile(f"{who}: {heads} heads do not divide into {kv_heads} key-value heads")
    if "head_dim" not in config:
        if config["hidden_size"] % heads:
            raise DamagedFile(
                f"{who}: hidden_size {config['hidden_size']} is no multiple of {heads} heads"
            )
        config["head_dim"] = config["hidden_size"] // heads


def _layout(value: object, where: str, who: Path) -> None:
    ok = isinstance(value, dict) and (
        value.get("group_size") in GROUP_SIZES and value.get("bits") in BITS
    )
    if not ok:
        raise UnsupportedModel(
            f"{who}: {where} is {str(value)[:80]}; supported: bits {BITS}, group_size {GROUP_SIZES}"
        )


def _quantization(config: dict[str, Any], who: Path) -> None:
    foreign = config.pop("quantization_config", None)
    value = config.get("quantization", foreign)
    if value is None:
        config.pop("quantization", None)
        return
    if not isinstance(value, dict) or ("quant_method" in value and "quantization" not in config):
        method = value.get("quant_method") if isinstance(value, dict) else value
        raise UnsupportedModel(
            f"{who}: is quantized by {str(method)[:80]!r}; use an MLX, GGUF or unquantized model"
        )
    _layout(value, "quantization", who)
    for module, layout in value.items():
        if isinstance(layout, dict):
            _layout(layout, f"quantization of {module}", who)
    config["quantization"] = value


def checked(config: Mapping[str, Any], who: Path) -> dict[str, Any]:
    """A validated copy: numbers in range, defaults filled in, derived keys added.

    `eos_token_id` becomes a sorted list. Raises DamagedFile or UnsupportedModel naming `who` and
    the key.
    """
    out = dict(config)
    model_type = out.get("model_type")
    if not isinstance(model_type, str) or len(model_type) > 64:
        raise DamagedFile(f"{who}: has no model_type; it is not a model's configuration")
    out["eos_token_id"] = token_ids(out.get("eos_token_id"), who)
    if model_type not in REQUIRED:
        return out
    _rope(out, who)
    _numbers(out, who)
    missing = [key for key in REQUIRED[model_type] if key not in out]
    if missing:
        raise DamagedFile(f"{who}: a {model_type} configuration without {', '.join(missing)}")
    for key, default in DEFAULTS.items():
        out.setdefault(key, default)
    if not isinstance(out["tie_word_embeddings"], bool):
        raise DamagedFile(f"{who}: tie_word_embeddings is not true or false")
    _heads(out, who)
    _quantization(out, who)
    return out


def merge_eos(config: dict[str, Any], ids: Iterable[int]) -> None:
    """Add end-of-sequence ids found elsewhere."""
    config["eos_token_id"] = sorted({*config["eos_token_id"], *ids})
