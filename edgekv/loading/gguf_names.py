"""Hugging Face names and keys for what a GGUF file calls by its own.

Sources: the GGUF specification (metadata keys, standardized tensor names) and the model families'
own `config.json`.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.loading.config import checked
from edgekv.loading.gguf import GGUF, Tensor


class Architecture(NamedTuple):
    """What a value of `general.architecture` stands for."""

    model_type: str
    permuted: bool
    """Rows of q and k are reordered for RoPE on neighbouring pairs."""


ARCHITECTURES = {
    "llama": Architecture("llama", permuted=True),
    "qwen2": Architecture("qwen2", permuted=False),
    "qwen3": Architecture("qwen3", permuted=False),
}

MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
ROPE_FACTORS = "rope_freqs.weight"

# GGUF key after the architecture's prefix: key of config.json.
KEYS = {
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
    "context_length": "max_position_embeddings",
}
TOKENS = {
    "tokenizer.ggml.bos_token_id": "bos_token_id",
    "tokenizer.ggml.eos_token_id": "eos_token_id",
}

_NAME = re.compile(r"(?:blk\.(\d{1,4})\.)?(\w+)\.(weight|bias)")


def architecture(gguf: GGUF) -> Architecture:
    """Raises UnsupportedModel naming the architecture and those supported."""
    name = gguf.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{gguf.path}: the architecture {str(name)[:64]!r} is not supported; "
            f"supported: {', '.join(sorted(ARCHITECTURES))}"
        )
    return ARCHITECTURES[name]


def hf_name(name: str, gguf: GGUF) -> str:
    """`blk.3.attn_q.weight` → `model.layers.3.self_attn.q_proj.weight`."""
    match = _NAME.fullmatch(name)
    layer, module, kind = match.groups() if match else (None, name, "")
    table = MODULES if layer is None else LAYER_MODULES
    if module not in table:
        raise UnsupportedModel(
            f"{gguf.path}: has the tensor {name[:80]!r}, which "
            f"{gguf.metadata['general.architecture']} models do not have here"
        )
    prefix = "" if layer is None else f"model.layers.{int(layer)}."
    return f"{prefix}{table[module]}.{kind}"


def row_order(name: str, config: Mapping[str, Any]) -> NDArray[np.intp] | None:
    """Where the rows of a permuted projection come from, for Hugging Face's order.

    The file pairs dimension i of a head with i + head_dim / 2 as neighbours, Hugging Face keeps
    the halves apart. None for tensors that are not permuted.
    """
    heads = {
        "q_proj": config["num_attention_heads"],
        "k_proj": config["num_key_value_heads"],
    }.get(name.split(".")[-2])
    if heads is None:
        return None
    rows = np.arange(heads * config["head_dim"])
    return rows.reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)


def _rope_scaling(gguf: GGUF, prefix: str) -> dict[str, Any] | None:
    """Llama 3 files carry their scaling as one factor per frequency, which divides it."""
    if ROPE_FACTORS in gguf.tensors:
        return {"rope_type": "factors", "factors": _factors(gguf, gguf.tensors[ROPE_FACTORS])}
    kind = gguf.metadata.get(f"{prefix}.rope.scaling.type", "none")
    if kind == "none":
        return None
    scaling = {"rope_type": kind, "factor": gguf.metadata.get(f"{prefix}.rope.scaling.factor", 1.0)}
    original = gguf.metadata.get(f"{prefix}.rope.scaling.original_context_length")
    return scaling if original is None else scaling | {"original_max_position_embeddings": original}


def _factors(gguf: GGUF, tensor: Tensor) -> list[float]:
    if tensor.type.name != "F32" or len(tensor.shape) != 1:
        raise DamagedFile(f"{gguf.path}: {tensor.name} is not a vector of F32")
    factors: list[float] = tensor.data.view("<f4").tolist()
    if not all(math.isfinite(factor) and factor > 0 for factor in factors):
        raise DamagedFile(f"{gguf.path}: {tensor.name} has factors that are not positive numbers")
    return factors


def _plain(value: object, key: str, path: Path) -> object:
    """Per-layer arrays say something these architectures have no place for."""
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        return value[0].item()
    if isinstance(value, (np.ndarray, list)):
        raise UnsupportedModel(f"{path}: {key} differs between layers, which is not supported")
    return value


def _check_shapes(config: Mapping[str, Any], gguf: GGUF, prefix: str) -> None:
    rotated = gguf.metadata.get(f"{prefix}.rope.dimension_count", config["head_dim"])
    if rotated != config["head_dim"]:
        raise UnsupportedModel(
            f"{gguf.path}: rotates {rotated} of {config['head_dim']} dimensions of a head, "
            "which is not supported"
        )
    scaling = config["rope_scaling"] or {}
    if len(scaling.get("factors", ())) not in (0, config["head_dim"] // 2):
        raise DamagedFile(
            f"{gguf.path}: {ROPE_FACTORS} has {len(scaling['factors'])} factors, "
            f"not {config['head_dim'] // 2}"
        )


def config_from_gguf(gguf: GGUF) -> dict[str, Any]:
    """A validated Hugging Face style configuration; reads no weights but the RoPE factors.

    Raises UnsupportedModel or DamagedFile.
    """
    model_type = architecture(gguf).model_type
    prefix = gguf.metadata["general.architecture"]
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise DamagedFile(f"{gguf.path}: has no token_embd.weight; it holds no whole model")
    config: dict[str, Any] = {
        "model_type": model_type,
        "vocab_size": embedding.shape[0],
        "rope_scaling": _rope_scaling(gguf, prefix),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        "attention_bias": "blk.0.attn_q.bias" in gguf.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in gguf.tensors,
    }
    names = {f"{prefix}.{key}": name for key, name in KEYS.items()} | TOKENS
    for key, name in names.items():
        if key in gguf.metadata:
            config[name] = _plain(gguf.metadata[key], key, gguf.path)
    config = checked(config, gguf.path)
    _check_shapes(config, gguf, prefix)
    return config
