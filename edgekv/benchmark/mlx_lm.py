"""mlx-lm on the weights of the same file, in its own model and its own generation.

Weights are read by edgekv's loader, so that both hold the same packed arrays. On the CPU backend
activations are fp32, where fp16 is many times slower.
"""

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn

from edgekv import blas
from edgekv.benchmark.contest import Row, Task
from edgekv.benchmark.contestant import process_peak, prompts, rates, words
from edgekv.loading import Checkpoint, open_checkpoint
from edgekv.metal.device import compute_dtype


def measure(setting: Mapping[str, Any], task: Task) -> list[Row]:
    from mlx_lm.generate import generate_step

    if setting.get("fast_blas"):
        blas.install()
    checkpoint = open_checkpoint(Path(task.model))
    model = load(checkpoint, dense=setting["weights"] == "dense")
    bits = setting["kv_bits"]
    options = {"kv_bits": bits, "quantized_kv_start": 0} if bits < 16 else {}

    def stream(tokens: Sequence[int], n: int) -> Iterator[int]:
        for token, _ in generate_step(mx.array(list(tokens)), model, max_tokens=n, **options):
            yield int(token)

    given = prompts(checkpoint.tokenizer.encode(words()), task.contexts)
    rates(stream, given[0][:70], 3)
    rows = []
    for tokens in given:
        mx.reset_peak_memory()
        rows.append(
            rates(stream, tokens, task.answer)
            | {
                "kv_bytes": None,
                "peak_bytes": mx.get_peak_memory(),
                "process_peak_bytes": process_peak(),
            }
        )
    return rows


def load(checkpoint: Checkpoint, dense: bool) -> Any:  # noqa: ANN401 - mlx-lm's own model
    """mlx-lm's model of a checkpoint, its weights packed as they are stored or expanded."""
    config, weights = checkpoint.config, checkpoint.weights
    module = importlib.import_module(f"mlx_lm.models.{config['model_type']}")
    model = module.Model(module.ModelArgs.from_dict(config))
    kind = compute_dtype(mx.float16)
    settings = config.get("quantization") or {}
    packed = {name.removesuffix(".scales") for name in weights if name.endswith(".scales")}
    modes = {m: _mode(settings.get(m, settings)) for m in packed}
    if not dense and modes:
        nn.quantize(model, class_predicate=lambda name, _: modes.get(name, False))
        weights = {k: v if v.dtype == mx.uint32 else v.astype(kind) for k, v in weights.items()}
    else:
        weights = _expanded(weights, modes, kind)
    model.load_weights(list(weights.items()))
    mx.eval(model.parameters())
    return model


def _mode(setting: Mapping[str, Any]) -> dict[str, int]:
    return {key: setting[key] for key in ("group_size", "bits")}


def _expanded(
    weights: Mapping[str, mx.array], modes: Mapping[str, dict[str, int]], kind: mx.Dtype
) -> dict[str, mx.array]:
    dense = {k: v.astype(kind) for k, v in weights.items() if k.rpartition(".")[0] not in modes}
    for module, mode in modes.items():
        codes, scales, zeros = (weights[f"{module}.{x}"] for x in ("weight", "scales", "biases"))
        dense[f"{module}.weight"] = mx.dequantize(
            codes, scales.astype(kind), zeros.astype(kind), mode["group_size"], mode["bits"]
        )
    return dense
