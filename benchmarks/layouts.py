"""Divergence from fp16 of several ways to store a KV cache, on one text.

python benchmarks/layouts.py MODEL bits    --file TEXT [--tokens 2048] > bits.json
python benchmarks/layouts.py MODEL like    --file TEXT [--tokens 2048] > like.json
python benchmarks/layouts.py MODEL shipped --file TEXT [--tokens 2048] > shipped.json

`bits` is edgekv's own layout in several bits. The others are mlx-lm's layout in four bits (keys
and values per token, groups of 64): `like` in edgekv's cache with its fp16 sinks and recent tokens,
keys plain or after a Hadamard transform; `shipped` by mlx-lm's own cache and model on the same
weights, where everything is quantized. `bits` and `like` go on where they were interrupted.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from kept import arguments, walked

from edgekv import blas
from edgekv.benchmark.mlx_lm import load as load_theirs
from edgekv.cache import prefill
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.sequence import SequenceCache
from edgekv.cli.evaluate import kld_report
from edgekv.evaluation.divergence import Divergence, compare, each, reference_policy
from edgekv.evaluation.walk import Numbers
from edgekv.generate import chunks, forward
from edgekv.loading import open_checkpoint
from edgekv.metal.packed import Blocks, expand, quantize
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape

BITS = ((16, 16), (8, 8), (8, 4), (4, 4), (4, 2), (3, 3), (2, 2))


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


def in_our_cache(args: argparse.Namespace) -> dict[str, Divergence]:
    names = [f"K{k}V{v}" for k, v in BITS]
    if args.what == "like":
        names = ["per token, like for like", "Hadamard, per token, like for like"]

    def policies(shape: ModelShape) -> Sequence[CachePolicy]:
        four = shape.policy(args.tokens)
        several = [per_token(four, hadamard) for hadamard in (False, True)]
        if args.what == "bits":
            several = [shape.policy(args.tokens, 4, k, v) for k, v in BITS]
        return [reference_policy(four, args.tokens), *several]

    return dict(zip(names, each(walked(args, policies, compare)), strict=True))


def shipped(args: argparse.Namespace) -> Numbers:
    """mlx-lm's own model over its own four-bit cache, against ours over sixteen bits."""
    from mlx_lm.models.cache import QuantizedKVCache

    blas.install()
    checkpoint = open_checkpoint(args.model)
    shape = ModelShape.from_config(checkpoint.config)
    theirs = load_theirs(checkpoint, dense=True)
    caches = [QuantizedKVCache(group_size=64, bits=4) for _ in theirs.layers]
    text = args.file.read_text("utf-8")
    tokens = checkpoint.tokenizer.encode(text, add_special=True)[: args.tokens]
    model = build(checkpoint.config, checkpoint.weights)
    policy = reference_policy(shape.policy(args.tokens), args.tokens)
    cache = SequenceCache(policy, make_rope(checkpoint.config, shape.head_dim))
    score, numbers, done = compare(model), [], 0
    for n in chunks(0, len(tokens), policy.n_sink):
        given = mx.array(tokens[done : done + n])
        wanted = mx.array(tokens[done + 1 : done + n + 1])
        both = [forward(model, cache, given), theirs.model(given[None], caches)[0]]
        mx.eval(both, *cache.arrays())
        numbers.append(score([states[: wanted.size] for states in both], wanted))
        done += n
    return np.concatenate(numbers)


def main() -> None:
    parser = arguments(__doc__, 2048)
    parser.add_argument("what", choices=("bits", "like", "shipped"))
    args = parser.parse_args()
    if args.what == "shipped":
        found = {"mlx-lm, as shipped": Divergence(shipped(args))}
    else:
        found = in_our_cache(args)
    json.dump({name: kld_report(one) for name, one in found.items()}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
