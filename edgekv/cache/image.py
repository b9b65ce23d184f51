"""A sequence as host arrays and back: what of it can be kept in memory or on disk.

Layers of equal policy that stand side by side share an array, whose first axis counts them.
Every function here makes MLX calls, and belongs on the thread that owns the sequence.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from edgekv.cache.block import empty
from edgekv.cache.policy import CachePolicy
from edgekv.cache.pool import BlockPool
from edgekv.cache.prefix import needed
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.metal.host import view
from edgekv.metal.packed import Blocks
from edgekv.metal.tile import BLOCK

Arrays = Mapping[str, NDArray[Any]]
Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Name to type and shape."""


@dataclass(frozen=True)
class TailState:
    """Where a sequence stood when its fp16 part was kept.

    slots: the pool's slots of the blocks it held, in the order of `needed`. Attention adds up
    blocks in the order of their slots, so that a sequence restored in another order would
    differ from the first in the last bit.
    """

    length: int
    closed: int
    slots: tuple[int, ...]


def read_block(cache: SequenceCache, block: int) -> Arrays:
    """The arrays of one closed block that the sequence holds; the first brings the sinks."""
    held = dict(zip(needed(cache.policy, cache.closed), _slots(cache), strict=True))
    arrays = {}
    for run in _runs(cache.policy):
        layers = [cache.pool.read(layer, [held[block]]) for layer in run]
        for name, part in _parts(layers):
            arrays[f"{name}.{run.start}"] = _host(mx.concatenate(part))
        if block == 0 and cache.policy.n_sink:
            arrays[f"sinks.{run.start}"] = _hot(cache, run, [slice(0, cache.policy.n_sink)])
    return arrays


def read_tail(cache: SequenceCache) -> tuple[TailState, Arrays]:
    """The sinks and the recent tokens of a sequence, in order."""
    sinks = slice(0, min(cache.policy.n_sink, cache.length))
    rows = [sinks, *_recent_rows(cache)]
    arrays = {f"hot.{run.start}": _hot(cache, run, rows) for run in _runs(cache.policy)}
    return TailState(cache.length, cache.closed, tuple(_slots(cache))), arrays


def restore(
    policy: CachePolicy,
    rope: Rope,
    state: TailState,
    blocks: Sequence[Arrays],
    fp16: Arrays,
) -> SequenceCache:
    """A sequence of its own that stands where another stood.

    blocks: those of `needed(policy, state.closed)`, in that order. fp16: what `read_tail` gave,
    or the first block's arrays, for a sequence that ends with its last closed block.
    """
    cache = SequenceCache(policy, rope)
    mx.eval([cache.pool.blocks(layer) for layer in range(len(policy.layers))])
    cache.length, cache.closed = state.length, state.closed
    free = [cache.pool.allocate() for _ in state.slots]
    # The same order in a pool of another size.
    rank = {slot: free[n] for n, slot in enumerate(sorted(state.slots))}
    slots = [rank[slot] for slot in state.slots]
    n_pinned = min(policy.pinned_blocks, state.closed)
    cache.pinned += slots[:n_pinned]
    cache.ring.extend(slots[n_pinned:])
    if blocks:
        _write_blocks(cache.pool, policy, slots, blocks)
    _write_hot(cache, fp16)
    mx.eval(cache.arrays())
    return cache


def fits(policy: CachePolicy, arrays: Arrays, n_fp16: int) -> bool:
    """Whether arrays have the names, shapes and types that a sequence of the policy would give.

    n_fp16: tokens in fp16, sinks included: of a tail, or the sinks that come with the first block.
    """
    return {name: (array.dtype.name, array.shape) for name, array in arrays.items()} in (
        _block_layout(policy) | _fp16_layout(policy, "sinks", n_fp16),
        _fp16_layout(policy, "hot", n_fp16),
    )


def _block_layout(policy: CachePolicy) -> Layout:
    layout: Layout = {}
    for run in _runs(policy):
        for name, (part,) in _parts([empty(1, policy.layers[run.start])]):
            dtype = str(part.dtype).removeprefix("mlx.core.")
            layout[f"{name}.{run.start}"] = (dtype, (len(run), *part.shape[1:]))
    return layout


def _fp16_layout(policy: CachePolicy, name: str, tokens: int) -> Layout:
    layout: Layout = {}
    for run in _runs(policy) if tokens else []:
        layer = policy.layers[run.start]
        shape = (len(run), 2, layer.n_kv_heads, tokens, layer.head_dim)
        layout[f"{name}.{run.start}"] = ("float16", shape)
    return layout


def _runs(policy: CachePolicy) -> list[range]:
    """The layers of each run of equal policies."""
    runs, start = [], 0
    for _, run in groupby(policy.layers):
        end = start + len(list(run))
        runs.append(range(start, end))
        start = end
    return runs


def _slots(cache: SequenceCache) -> list[int]:
    return [*cache.pinned, *cache.ring]


def _parts(layers: Sequence[Blocks]) -> list[tuple[str, list[mx.array]]]:
    """The arrays of several layers' blocks, alike ones together under a name."""
    keys = zip(*(blocks.keys for blocks in layers), strict=True)
    values = zip(*(blocks.values for blocks in layers), strict=True)
    named = [(f"keys{n}", list(part)) for n, part in enumerate(keys)]
    return named + [(f"values{n}", list(part)) for n, part in enumerate(values)]


def _hot(cache: SequenceCache, run: range, rows: Sequence[slice]) -> NDArray[Any]:
    """Rows of the fp16 arrays of a run: (layers, 2, n_kv_heads, tokens, head_dim)."""
    layers = [cache.layers[layer].hot for layer in run]
    return _host(
        mx.stack([mx.concatenate([hot[:, :, place] for place in rows], 2) for hot in layers])
    )


def _recent_rows(cache: SequenceCache) -> list[slice]:
    """Where the recent tokens stand in each layer's `hot`, in order."""
    rows = []
    for at in range(0, cache.recent_tokens, BLOCK):
        row = cache.recent_row(cache.closed + at // BLOCK)
        rows.append(slice(row, row + min(BLOCK, cache.recent_tokens - at)))
    return rows


def _write_blocks(
    pool: BlockPool, policy: CachePolicy, slots: Sequence[int], blocks: Sequence[Arrays]
) -> None:
    """Fill slots of a new pool, in its own memory: nothing has been computed from it yet."""
    for run in _runs(policy):
        for name, rooms in _parts([pool.blocks(layer) for layer in run]):
            memory = [view(room) for room in rooms]
            for slot, block in zip(slots, blocks, strict=True):
                for room, numbers in zip(memory, block[f"{name}.{run.start}"], strict=True):
                    room[slot] = numbers


def _write_hot(cache: SequenceCache, fp16: Arrays) -> None:
    n_sink = min(cache.policy.n_sink, cache.length)
    for run in _runs(cache.policy):
        tail = fp16.get(f"hot.{run.start}", fp16.get(f"sinks.{run.start}"))
        if tail is None:
            continue
        for n, layer in enumerate(run):
            tokens, hot = mx.array(tail[n]), cache.layers[layer].hot
            at = 0
            for place in [slice(0, n_sink), *_recent_rows(cache)]:
                count = place.stop - place.start
                hot[:, :, place] = tokens[:, :, at : at + count]
                at += count


def _host(array: mx.array) -> NDArray[Any]:
    return np.array(array)
