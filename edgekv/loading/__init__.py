"""Load a checkpoint, a GGUF file or a safetensors folder, in one form.

Whatever the source: Hugging Face names and configuration keys, MLX's own quantized layout.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from edgekv.errors import EdgekvError, ModelNotFound
from edgekv.loading.config import merge_eos
from edgekv.loading.folder import folder_config, folder_weights
from edgekv.loading.gguf import read_gguf
from edgekv.loading.gguf_names import config_from_gguf
from edgekv.loading.gguf_weights import gguf_arrays, weights_from_gguf
from edgekv.tokenizer import Tokenizer, load_tokenizer_folder, load_tokenizer_gguf

__all__ = ["Checkpoint", "open_checkpoint", "read_config", "read_key_biases"]

_KEY_BIAS = "k_proj.bias"

Check = Callable[[dict[str, Any]], object]


@dataclass(frozen=True)
class Checkpoint:
    """Everything a model is built from.

    config: keys of Hugging Face's `config.json`, numbers validated; `quantization`, where there
      is one, in the MLX repositories' form, with overrides per module.
    weights: a quantized module is `X.weight` (uint32), `X.scales`, `X.biases`.
    """

    path: Path
    config: dict[str, Any]
    weights: dict[str, mx.array]
    tokenizer: Tokenizer


def _found(path: Path) -> Path:
    try:
        if path.exists():
            return path
        why = "no such file or folder"
    except OSError as fault:
        why = f"cannot be looked at ({fault.strerror})"
    raise ModelNotFound(f"{path}: {why}; check the path or pull the model")


def read_config(path: Path) -> dict[str, Any]:
    """The configuration alone; for a GGUF file without `quantization`.

    Raises ModelNotFound, DamagedFile or UnsupportedModel.
    """
    if _found(path).is_dir():
        return folder_config(path)
    return config_from_gguf(read_gguf(path))


def read_key_biases(path: Path) -> dict[str, mx.array]:
    """The biases of key projections by name, and nothing else: empty for most models.

    Raises ModelNotFound, DamagedFile or UnsupportedModel.
    """
    with _naming(path):
        if _found(path).is_dir():
            arrays = folder_weights(path, folder_config(path))
        else:
            arrays = gguf_arrays(read_gguf(path), _KEY_BIAS)
    return {name: array for name, array in arrays.items() if name.endswith(_KEY_BIAS)}


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Faults of a tensor or a tokenizer do not know their file: say it first."""
    try:
        yield
    except EdgekvError as fault:
        if str(path) in str(fault):
            raise
        raise type(fault)(f"{path}: {fault}") from fault


def _open_gguf(path: Path, check: Check) -> Checkpoint:
    gguf = read_gguf(path)
    config = config_from_gguf(gguf)
    check(config)
    tokenizer = load_tokenizer_gguf(gguf.metadata, config)
    weights, quantization = weights_from_gguf(gguf, config)
    if quantization is not None:
        config["quantization"] = quantization
    return Checkpoint(path, config, weights, tokenizer)


def _open_folder(path: Path, check: Check) -> Checkpoint:
    config = folder_config(path)
    check(config)
    tokenizer = load_tokenizer_folder(path, config)
    return Checkpoint(path, config, folder_weights(path, config), tokenizer)


def open_checkpoint(path: Path, check: Check = lambda config: None) -> Checkpoint:
    """Load a `.gguf` file or a folder.

    check: raises where the configuration will not do, before any weights are read.
    Makes MLX arrays, a folder's are lazy: call it on the thread that runs the model.
    Raises ModelNotFound, DamagedFile or UnsupportedModel.
    """
    with _naming(path):
        opened = _open_folder if _found(path).is_dir() else _open_gguf
        checkpoint = opened(path, check)
    merge_eos(checkpoint.config, checkpoint.tokenizer.eos_ids)
    return checkpoint
