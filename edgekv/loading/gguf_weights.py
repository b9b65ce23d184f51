"""The weights of a GGUF file under Hugging Face names, and how each is quantized."""

from collections import Counter
from typing import Any

import mlx.core as mx

from edgekv.errors import DamagedFile
from edgekv.loading.gguf import GGUF, Tensor
from edgekv.loading.gguf_names import (
    ROPE_FACTORS,
    architecture,
    config_from_gguf,
    hf_name,
    row_order,
)
from edgekv.loading.gguf_quants import GROUP_SIZE, Packed, load_tensor


def quantization(bits: dict[str, int | None]) -> dict[str, Any] | None:
    """MLX's `quantization` entry from the bits of each matrix, None where it is not quantized.

    The commonest width is the default, every other module an override.
    """
    common = Counter(b for b in bits.values() if b is not None).most_common(1)
    if not common:
        return None
    default = {"group_size": GROUP_SIZE, "bits": common[0][0]}
    overrides = {
        module: b is not None and {"group_size": GROUP_SIZE, "bits": b}
        for module, b in bits.items()
        if b != default["bits"]
    }
    return default | overrides


def _load(
    gguf: GGUF, name: str, tensor: Tensor, config: dict[str, Any]
) -> dict[str, mx.array] | Packed:
    order = row_order(name, config) if architecture(gguf).permuted else None
    rows = tensor.shape[0]
    if order is not None and rows != len(order):
        raise DamagedFile(f"{gguf.path}: {tensor.name} has {rows} rows, not {len(order)}")
    loaded = load_tensor(tensor, order)
    return loaded if isinstance(loaded, Packed) else {name: loaded}


def gguf_arrays(gguf: GGUF, ending: str) -> dict[str, mx.array]:
    """The unquantized arrays whose Hugging Face name ends so, without reading the others.

    Raises UnsupportedModel or DamagedFile naming the tensor.
    """
    config = config_from_gguf(gguf)
    found: dict[str, mx.array] = {}
    for tensor in gguf.tensors.values():
        name = "" if tensor.name == ROPE_FACTORS else hf_name(tensor.name, gguf)
        if name.endswith(ending):
            loaded = _load(gguf, name, tensor, config)
            found |= loaded if isinstance(loaded, dict) else {}
    return found


def weights_from_gguf(
    gguf: GGUF, config: dict[str, Any]
) -> tuple[dict[str, mx.array], dict[str, Any] | None]:
    """All arrays, evaluated, and the `quantization` entry they are described by.

    Raises UnsupportedModel or DamagedFile naming the tensor.
    """
    weights: dict[str, mx.array] = {}
    bits: dict[str, int | None] = {}
    for tensor in gguf.tensors.values():
        if tensor.name == ROPE_FACTORS:
            continue
        name = hf_name(tensor.name, gguf)
        module = name.removesuffix(".weight")
        loaded = _load(gguf, name, tensor, config)
        if isinstance(loaded, Packed):
            weights |= {f"{module}.{key}": getattr(loaded, key) for key in Packed._fields[:3]}
            bits[module] = loaded.bits
        else:
            weights |= loaded
            if len(tensor.shape) == 2:
                bits[module] = None
    mx.eval(weights)
    return weights, quantization(bits)
