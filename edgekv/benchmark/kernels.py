"""How fast attention of one token is here: the kernel, its twin, and MLX's own at fp16."""

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
from edgekv.errors import InvalidValue
from edgekv.hardware import GB_PER_S
from edgekv.metal import fused, reference
from edgekv.metal.device import has_metal
from edgekv.models.shape import ModelShape

CHUNK = 512
CALLS = 50
BITS = (4, 8)
CACHED = ("kernel", "twin")
"""Ways that read the quantized cache."""

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


def measure(layer: LayerPolicy, n_heads: int, window: int, rounds: int) -> list[Speed]:
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
    queries = [_draw(i, 1, n_heads, layer.head_dim) for i in range(CALLS)]
    mx.eval(queries)
    return [
        Speed(way, _seconds(attend, queries, rounds) / CALLS, nbytes)
        for way, (attend, nbytes) in ways.items()
    ]


def rows(shape: ModelShape, windows: Sequence[int], rounds: int) -> list[dict[str, Any]]:
    """The ways by window and bits, in microseconds a layer, and the floor where it is known.

    Raises InvalidValue without Metal, or where the model's shape has no kernel.
    """
    if not has_metal():
        raise InvalidValue("--kernels needs Metal, which MLX does not find here")
    if not fused.has_shape(shape.head_dim, shape.n_heads // shape.n_kv_heads):
        raise InvalidValue(
            f"--kernels has none for {shape.n_heads} heads over {shape.n_kv_heads} "
            f"of {shape.head_dim}"
        )
    peak = peak_gb_per_s()
    found = []
    for window, bits in itertools.product(windows, BITS):
        layer = LayerPolicy(shape.n_kv_heads, shape.head_dim, bits, bits)
        for speed in measure(layer, shape.n_heads, window, rounds=rounds):
            found.append(
                {
                    "name": speed.way,
                    "context": window,
                    "k_bits": bits if speed.way in CACHED else 16,
                    "v_bits": bits if speed.way in CACHED else 16,
                    "us": speed.seconds * 1e6,
                    "floor_us": speed.nbytes / peak / 1e3 if peak else None,
                    "gb_per_s": speed.gb_per_s,
                }
            )
    return found


def gpu() -> str:
    """The GPU's name, as "Apple M4 Max"."""
    return str(mx.device_info().get("device_name", "unknown"))


def peak_gb_per_s() -> int | None:
    """This machine's peak memory bandwidth, if its chip is a known one."""
    return GB_PER_S.get(gpu().removeprefix("Apple "))


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
