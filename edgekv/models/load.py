"""A checkpoint's configuration and weights made into a model that computes."""

import importlib
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.metal.attention import choice
from edgekv.metal.device import compute_dtype, has_metal, physical_memory
from edgekv.models import ARCHITECTURES
from edgekv.models.cpu import add_host
from edgekv.models.expand import expand
from edgekv.models.layers import Decoder
from edgekv.models.memory import expands
from edgekv.models.shape import check_supported

Weights = dict[str, mx.array]


def build(config: dict[str, Any], weights: Weights) -> Decoder:
    """The model of a configuration in Hugging Face's keys, holding those weights, evaluated.

    weights are named as published; a quantized module X has X.weight (uint32), X.scales and
    X.biases, in the layout of MLX repositories. Raises UnsupportedModel for an architecture or
    a quantization it cannot run, DamagedFile where weights are missing or misshapen, InvalidValue
    where EDGEKV_KERNELS is.
    """
    kind = check_supported(config)
    # The trial of the kernels, and a wrong EDGEKV_KERNELS, belong here and not inside a reply.
    choice()
    family = importlib.import_module(ARCHITECTURES[kind])
    model: Decoder = family.Model(family.ModelArgs.from_config(config))
    weights = model.sanitize(weights)
    modes = _quantization(config, weights)
    n_packed = sum(_columns(weights, m, *modes[m]) for m in modes)
    if modes and not has_metal() and expands(n_packed, physical_memory()):
        weights = expand(weights, modes)
    elif modes:
        _make_room(model, modes)
    weights = {name: _for_compute(array) for name, array in weights.items()}
    _load(model, weights, kind)
    weights.clear()
    add_host(model)
    return model


def count_weights(config: dict[str, Any]) -> int:
    """How many numbers a model of that configuration holds; nothing of it is computed."""
    family = importlib.import_module(ARCHITECTURES[check_supported(config)])
    model: Decoder = family.Model(family.ModelArgs.from_config(config))
    return sum(array.size for array in model.arrays())


def _quantization(config: dict[str, Any], weights: Weights) -> dict[str, tuple[int, int]]:
    """(group_size, bits) of each quantized module."""
    settings = config.get("quantization") or {}
    modules = [name.removesuffix(".scales") for name in weights if name.endswith(".scales")]
    modes: dict[str, tuple[int, int]] = {}
    for module in modules:
        own = settings.get(module)
        mode = own if isinstance(own, dict) else settings
        if mode.get("mode", "affine") != "affine":
            raise UnsupportedModel(
                f"weights quantized as {mode['mode']!r} are not supported: use an affine model"
            )
        try:
            modes[module] = (int(mode["group_size"]), int(mode["bits"]))
        except (KeyError, TypeError, ValueError) as error:
            raise DamagedFile(
                f"configuration: quantization of {module} lacks group_size or bits"
            ) from error
    return modes


def _columns(weights: Weights, module: str, group_size: int, bits: int) -> int:
    """How many numbers a packed weight stands for."""
    return weights[f"{module}.weight"].size * 32 // bits


def _make_room(model: Decoder, modes: dict[str, tuple[int, int]]) -> None:
    """Turn the modules that are quantized in the checkpoint into quantized ones."""

    def wanted(path: str, module: nn.Module) -> bool | dict[str, int]:
        if path not in modes:
            return False
        group_size, bits = modes[path]
        return {"group_size": group_size, "bits": bits}

    nn.quantize(model, class_predicate=wanted)


def _for_compute(array: mx.array) -> mx.array:
    """Floating-point weights, scales and biases in the type this device computes in."""
    if not mx.issubdtype(array.dtype, mx.floating):
        return array
    return array.astype(compute_dtype(array.dtype))


def _load(model: Decoder, weights: Weights, kind: str) -> None:
    try:
        model.load_weights(list(weights.items()), strict=True)
    except ValueError as error:
        reason = " ".join(str(error).split())[:200]
        raise DamagedFile(f"weights do not fit the {kind} configuration: {reason}") from error
    mx.eval(model.arrays())
