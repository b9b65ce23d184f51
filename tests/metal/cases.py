"""Caches to try the kernels on: every template, small windows, blocks shared in scrambled order."""

from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from edgekv.cache.decode import DecodeStep
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.pool import BlockPool
from edgekv.cache.reach import reach
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.cache.step import make_step
from edgekv.cache.table import table
from edgekv.metal import fused

N_KV_HEADS = 2
WINDOW = 300
COUNTS = (0, 1, 63, 64, 65, WINDOW - 1, WINDOW, WINDOW + 1)
LAYOUTS = {"no sinks": (0, 0), "sinks": (4, 0), "pinned": (4, 64)}
ROUNDING = {mx.float32: 0.0, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}
DTYPES = tuple(ROUNDING)


@dataclass(frozen=True)
class Template:
    head_dim: int = 64
    group: int = 3
    k_bits: int = 4
    v_bits: int = 4
    dtype: mx.Dtype = mx.float16

    @property
    def layer(self) -> LayerPolicy:
        return LayerPolicy(N_KV_HEADS, self.head_dim, self.k_bits, self.v_bits)

    @property
    def rope(self) -> Rope:
        half = self.head_dim // 2
        return Rope(10_000.0 ** (-np.arange(half) / half), attention_factor=1.1)


@dataclass(frozen=True)
class Case:
    """One new token over a cache, by the twin in fp32, and what its kernel is called with."""

    template: Template
    wanted: np.ndarray
    inputs: tuple

    def attend(self) -> mx.array:
        return fused.decode_attention(*self.inputs)

    def check(self, slack: float = 2e-5) -> None:
        """The kernel's answer is the twin's, to the rounding of its type."""
        found = np.array(self.attend().astype(mx.float32))
        allowed = np.abs(self.wanted) * ROUNDING[self.template.dtype] + slack
        assert np.isfinite(found).all()
        worst = (np.abs(found - self.wanted) / allowed).max()
        assert worst <= 1, f"{worst:.2f} times the rounding of {self.template.dtype}"


def tokens(template: Template, n: int, seed: int) -> tuple[mx.array, ...]:
    """Scaled queries, keys with a mean of their own, and values of n tokens."""
    rng = np.random.default_rng(seed)
    dim, heads = template.head_dim, N_KV_HEADS
    q = rng.standard_normal((n, heads * template.group, dim)) * 1.5 / dim**0.5
    k = rng.standard_normal((n, heads, dim)) + rng.standard_normal(dim)
    v = rng.standard_normal((n, heads, dim)) + 0.5
    return tuple(mx.array(x.astype(np.float32)) for x in (q, k, v))


def feed(cache: SequenceCache, template: Template, n: int, seed: int) -> None:
    """Take n tokens in at once: all that matters of them here is what the cache keeps."""
    if n:
        mx.eval(make_step(cache, n).attend(0, *tokens(template, n, seed)))


def shared_cache(template: Template, count: int, layout: str, window: int) -> SequenceCache:
    """A sequence of `count` tokens behind the sinks, forked from one that goes on beside it.

    The two take blocks of one pool in turn, so that neither's slots are in a row.
    """
    n_sink, n_pinned = LAYOUTS[layout]
    policy = CachePolicy(window, (template.layer,), n_sink, n_pinned)
    pool = BlockPool(2 * policy.max_blocks + 2, policy.layers)
    cache = SequenceCache(policy, template.rope, pool)
    total = n_sink + count
    feed(cache, template, total // 2, seed=1)
    other = cache.fork()
    while cache.length < total:
        step = min(67 + total // 5, total - cache.length)
        feed(other, template, step, seed=cache.length)
        feed(cache, template, step, seed=cache.length + 1)
    return cache


def make_case(
    template: Template, count: int, layout: str, window: int = WINDOW, seed: int = 0
) -> Case:
    cache = shared_cache(template, count, layout, window)
    seen = reach(cache)
    q, k, v = tokens(template, 1, seed=1000)
    # The kernel computes in fp32 from the query that it is given.
    q = q.astype(template.dtype)
    wanted = np.array(DecodeStep(cache).attend(0, q.astype(mx.float32), k, v))
    order = np.random.default_rng(seed).permutation(table(seen).shape[1])
    scrambled = table(seen)[:, mx.array(order)]
    blocks, hot = cache.pool.blocks(0), cache.layers[0].hot
    return Case(template, wanted, (q, scrambled, cache.rope.turns, blocks, hot))


def make_rows_case(template: Template, count: int, rows: int) -> Case:
    """Several new tokens at once, as when drafted tokens are verified: row by row in the twin."""
    cache = shared_cache(template, count, "pinned", WINDOW)
    q, k, v = tokens(template, rows, seed=1000)
    q = q.astype(template.dtype)
    tables, wanted = [], []
    for row in range(rows):
        tables.append({tile[0]: tile for tile in table(reach(cache))[0].tolist()})
        step, at = DecodeStep(cache), slice(row, row + 1)
        wanted.append(np.array(step.attend(0, q[at].astype(mx.float32), k[at], v[at])))
    places = list(dict.fromkeys(place for tiles in tables for place in tiles))
    entries = [[tiles.get(place, (place, 0, 0, 0)) for place in places] for tiles in tables]
    blocks, hot = cache.pool.blocks(0), cache.layers[0].hot
    inputs = (q, mx.array(entries, mx.int32), cache.rope.turns, blocks, hot)
    return Case(template, np.concatenate(wanted), inputs)
