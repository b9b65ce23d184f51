"""A model folder as MLX and Hugging Face repositories lay it out.

`config.json`, optional `generation_config.json`, and `model*.safetensors`, in one file or in
shards listed by `model.safetensors.index.json`.
"""

import re
from pathlib import Path
from typing import Any

import mlx.core as mx

from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.loading.config import checked, merge_eos, read_json, token_ids
from edgekv.loading.safetensors import load_safetensors

INDEX = "model.safetensors.index.json"
MAX_SHARDS = 4096
PATTERNS = ("model*.safetensors", "weights*.safetensors")

# Recomputed from the configuration; old checkpoints store them all the same.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")
_SHARD = re.compile(r".*-(\d{5})-of-(\d{5})\.safetensors")


def folder_config(folder: Path) -> dict[str, Any]:
    """The validated configuration, end-of-sequence ids of the generation config merged in."""
    path = folder / "config.json"
    if not path.is_file():
        others = sorted(child.name for child in folder.glob("*.gguf"))
        advice = f"did you mean {folder / others[0]}" if others else "name a model's folder"
        raise DamagedFile(f"{folder}: has no config.json; {advice}")
    config = checked(read_json(path), path)
    generation = folder / "generation_config.json"
    if generation.is_file():
        merge_eos(config, token_ids(read_json(generation).get("eos_token_id"), generation))
    return config


def _indexed(folder: Path, index: Path) -> dict[str, set[str]]:
    """File name to the tensors that the index says it holds."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise DamagedFile(f"{index}: has no weight_map; download it again")
    files: dict[str, set[str]] = {}
    for tensor, name in weight_map.items():
        if not isinstance(name, str) or Path(name).name != name or "\\" in name:
            raise DamagedFile(f"{index}: names {str(name)[:80]!r}, which is not in the folder")
        files.setdefault(name, set()).add(tensor)
    if len(files) > MAX_SHARDS:
        raise DamagedFile(f"{index}: names {len(files)} files, more than {MAX_SHARDS}")
    return files


def _globbed(folder: Path) -> dict[str, set[str]]:
    """Files found by name; numbered shards must all be there."""
    names = {path.name for pattern in PATTERNS for path in folder.glob(pattern)}
    if not names:
        raise UnsupportedModel(
            f"{folder}: has no model*.safetensors; other weight files are not read"
        )
    for name in sorted(names):
        if match := _SHARD.fullmatch(name):
            count = int(match[2])
            stem = name[: match.start(1)]
            names |= {
                f"{stem}{i:05}-of-{count:05}.safetensors" for i in range(1, min(count, 4096) + 1)
            }
    return {name: set() for name in sorted(names)}


def _fits(packed: mx.array, scales: mx.array, layout: dict[str, Any]) -> bool:
    if packed.dtype != mx.uint32 or packed.ndim < 2 or packed.shape[:-1] != scales.shape[:-1]:
        return False
    return bool(packed.shape[-1] * 32 == scales.shape[-1] * layout["group_size"] * layout["bits"])


def _check_packed(folder: Path, config: dict[str, Any], weights: dict[str, mx.array]) -> None:
    """Every quantized module must be whole and of the width that the configuration says."""
    settings = config.get("quantization")
    for name in weights:
        module = name.removesuffix(".scales")
        if module == name:
            continue
        if settings is None:
            raise DamagedFile(f"{folder}: has {name[:80]!r} but config.json has no quantization")
        layout = settings.get(module) or settings
        packed = weights.get(f"{module}.weight")
        if packed is None or not _fits(packed, weights[name], layout):
            raise DamagedFile(f"{folder}: {module[:80]!r} is not quantized as config.json says")


def folder_weights(folder: Path, config: dict[str, Any]) -> dict[str, mx.array]:
    """All arrays of all shards, lazy. Raises DamagedFile or UnsupportedModel naming the file."""
    index = folder / INDEX
    files = _indexed(folder, index) if index.is_file() else _globbed(folder)
    weights: dict[str, mx.array] = {}
    for name, expected in files.items():
        if not (folder / name).is_file():
            raise DamagedFile(f"{folder}: the shard {name} is missing; download the model again")
        arrays = load_safetensors(folder / name)
        if lost := sorted(expected - arrays.keys()):
            raise DamagedFile(f"{folder / name}: has no {lost[0][:80]!r}, which the index lists")
        weights |= arrays
    weights = {name: array for name, array in weights.items() if not _DERIVED.fullmatch(name)}
    _check_packed(folder, config, weights)
    return weights
