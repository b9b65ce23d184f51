"""How fast attention of one token is here: the kernel, its twin, and MLX's own at fp16."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import mlx.core as mx
import numpy as np

from edgekv.cache.decode import sight
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.reach import reach
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.cache.step import make_step
from edgekv.cache.table import table
from edgekv.cache.traffic import decode_nbytes
from edgekv.metal import fused, reference

CHUNK = 512
DTYPE = mx.float16
Attend = Callable[[mx.array], mx.array]


class Speed(NamedTuple):
    """One way to attend: seconds a token and layer, and bytes over seconds.

    nbytes: the fewest that this way must read and write.
    """

    way: str
    seconds: float
    nbytes: int

    @property
    def gb_per_s(self) -> float:
        return self.nbytes / self.seconds / 1e9


def measure(
    layer: LayerPolicy, n_heads: int, window: int, calls: int = 50, rounds: int = 7
) -> list[Speed]:
    """Attention of one token with the window full, the median of some rounds of many calls.

    The calls of a round are evaluated together, as the layers of a model are. The layer must
    have a kernel; without Metal MLX raises RuntimeError.
    """
    cache = _full(layer, n_heads, window)
    seen = reach(cache)
    least = decode_nbytes(layer, n_heads, DTYPE.size, *_counts(seen.seen, cache))
    half = decode_nbytes(layer, n_heads, DTYPE.size, 0, window + cache.policy.n_sink)
    ways = {"kernel": (_kernel(cache), least), "twin": (_twin(cache, n_heads), least)}
    ways["mx.fast, fp16"] = _half(layer, window + cache.policy.n_sink), half
    queries = [_draw(i, 1, n_heads, layer.head_dim) for i in range(calls)]
    mx.eval(queries)
    return [
        Speed(way, _seconds(attend, queries, rounds) / calls, nbytes)
        for way, (attend, nbytes) in ways.items()
    ]


def _draw(seed: int, *shape: int) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(DTYPE)


def _full(layer: LayerPolicy, n_heads: int, window: int) -> SequenceCache:
    """A sequence of random tokens, longer than its window."""
    dim = layer.head_dim
    cache = SequenceCache(
        CachePolicy(window, (layer,)), Rope(10_000.0 ** (-np.arange(dim // 2) / (dim // 2)))
    )
    while cache.length <= window + CHUNK:
        q = _draw(cache.length, CHUNK, n_heads, dim)
        kv = _draw(cache.length + 1, 2, CHUNK, layer.n_kv_heads, dim)
        mx.eval(make_step(cache, CHUNK).attend(0, q, kv[0], kv[1]), *cache.arrays())
    return cache


def _counts(seen: np.ndarray, cache: SequenceCache) -> tuple[int, int]:
    """Closed blocks and fp16 tokens in reach."""
    fresh = sum(part.stop - part.start for part in reach(cache).parts)
    return int(seen.any(axis=1).sum()), fresh


def _kernel(cache: SequenceCache) -> Attend:
    tiles, turns, hot = table(reach(cache)), cache.rope.turns, cache.layers[0].hot
    return lambda q: fused.decode_attention(q, tiles, turns, cache.pool.blocks(0), hot)


def _twin(cache: SequenceCache, n_heads: int) -> Attend:
    seen = reach(cache)
    what = sight(seen, cache.rope)
    blocks, hot = cache.pool.read(0, seen.slots), cache.layers[0].hot
    hot = hot[:, :, : what.hot_mask.shape[-1]]

    def attend(q: mx.array) -> mx.array:
        grouped = q.reshape(hot.shape[1], -1, q.shape[-1])
        return reference.decode_attention(grouped, what, blocks, hot)

    return attend


def _half(layer: LayerPolicy, tokens: int) -> Attend:
    keys, values = _draw(1, 2, 1, layer.n_kv_heads, tokens, layer.head_dim)
    return lambda q: mx.fast.scaled_dot_product_attention(
        q.swapaxes(0, 1)[None], keys, values, scale=1.0
    )


def _seconds(attend: Attend, queries: list[mx.array], rounds: int) -> float:
    def once() -> float:
        start = time.perf_counter()
        mx.eval([attend(q) for q in queries])
        return time.perf_counter() - start

    once()
    return statistics.median(once() for _ in range(rounds))
