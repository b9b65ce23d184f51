"""Divergence from fp16 of several ways to store a KV cache, on one text, side by side.

python benchmarks/layouts.py MODEL --file TEXT [--tokens 2048] bits    > bits.json
python benchmarks/layouts.py MODEL --file TEXT [--tokens 2048] layouts > layouts.json

`bits` is edgekv's own layout in several bits. `layouts` is four bits in edgekv's layout, in
mlx-lm's (keys and values per token, groups of 64) as mlx-lm ships it, everything quantized, by its
own cache and its own model on the same weights, and like for like: keys per token, plain or after
a Hadamard transform, in edgekv's cache with its fp16 sinks and recent tokens.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from edgekv import blas
from edgekv.benchmark.mlx_lm import load as load_theirs
from edgekv.cache import prefill
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.sequence import SequenceCache
from edgekv.cli.evaluate import kld_report
from edgekv.cli.meter import Meter
from edgekv.evaluation.divergence import COLUMNS, Divergence, compare, reference_policy
from edgekv.generate import PREFILL_CHUNK, chunks, forward
from edgekv.loading import Checkpoint, open_checkpoint
from edgekv.metal.packed import Blocks, expand, quantize
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape

BITS = ((16, 16), (8, 8), (8, 4), (4, 4), (4, 2), (3, 3), (2, 2))
Hidden = Callable[[mx.array], mx.array]
"""Tokens (n,) taken into a cache → their hidden states (n, hidden_size)."""


@dataclass(frozen=True)
class PerToken(LayerPolicy):
    """Keys quantized per token, in four bits, and kept as the numbers they then stand for."""

    hadamard: bool = False


def close(keys: mx.array, values: mx.array, layer: LayerPolicy) -> Blocks:
    """As the cache closes blocks, but for keys per token."""
    if isinstance(layer, PerToken):
        keys = mx.hadamard_transform(keys) if layer.hadamard else keys
        keys = expand(quantize(keys, 4, layer.head_dim), layer.head_dim, mx.float32)
        # The transform is its own inverse.
        keys = mx.hadamard_transform(keys) if layer.hadamard else keys
    return _close(keys, values, layer)


_close, prefill.close = prefill.close, close


def per_token(policy: CachePolicy, hadamard: bool) -> CachePolicy:
    layers = (PerToken(x.n_kv_heads, x.head_dim, 16, 4, hadamard) for x in policy.layers)
    return CachePolicy(policy.window, tuple(layers), policy.n_sink)


def shipped(checkpoint: Checkpoint) -> Hidden:
    """mlx-lm's own model over its own four-bit cache."""
    from mlx_lm.models.cache import QuantizedKVCache

    model = load_theirs(checkpoint, dense=True)
    caches = [QuantizedKVCache(group_size=64, bits=4) for _ in model.layers]

    def hidden(tokens: mx.array) -> mx.array:
        found: mx.array = model.model(tokens[None], caches)[0]
        mx.eval(found)
        return found

    return hidden


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("what", choices=("bits", "layouts"))
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=2048)
    args = parser.parse_args()
    blas.install()
    checkpoint = open_checkpoint(args.model)
    shape = ModelShape.from_config(checkpoint.config)
    rope = make_rope(checkpoint.config, shape.head_dim)
    text = args.file.read_text("utf-8")
    tokens = checkpoint.tokenizer.encode(text, add_special=True)[: args.tokens]
    ways: dict[str, Hidden] = {}
    if args.what == "layouts":
        ways["mlx-lm, as shipped"] = shipped(checkpoint)
    model = build(checkpoint.config, checkpoint.weights)

    def over(policy: CachePolicy) -> Hidden:
        cache = SequenceCache(policy, rope)

        def hidden(tokens: mx.array) -> mx.array:
            found = forward(model, cache, tokens)
            mx.eval(found, *cache.arrays())
            return found

        return hidden

    four = shape.policy(len(tokens))
    if args.what == "bits":
        ways |= {f"K{k}V{v}": over(shape.policy(len(tokens), 4, k, v)) for k, v in BITS}
    else:
        ways["edgekv"] = over(four)
        ways["per token, like for like"] = over(per_token(four, hadamard=False))
        ways["Hadamard, per token, like for like"] = over(per_token(four, hadamard=True))
    score, numbers, done = compare(model), [], 0
    reference, meter = over(reference_policy(four, len(tokens))), Meter(args.what)
    for n in chunks(0, len(tokens), four.n_sink, PREFILL_CHUNK):
        given = mx.array(tokens[done : done + n])
        wanted = mx.array(tokens[done + 1 : done + n + 1])
        states = [hidden(given)[: wanted.size] for hidden in (reference, *ways.values())]
        numbers.append(score(states, wanted))
        done += n
        meter.told(done, len(tokens))
    columns = np.concatenate(numbers)
    parts = (columns[:, at : at + COLUMNS] for at in range(0, columns.shape[1], COLUMNS))
    found = zip(ways, parts, strict=True)
    json.dump({name: kld_report(Divergence(part)) for name, part in found}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
