"""Attention over a whole sequence by its definition, in float64 and without any cache."""

import mlx.core as mx
import numpy as np

from edgekv.cache.block import close
from edgekv.cache.policy import CachePolicy
from edgekv.metal.packed import expand
from edgekv.metal.tile import BLOCK

FREQUENCIES = 0.3 ** np.arange(16)


def half(x):
    return x.astype(np.float16).astype(np.float64)


def turn(x, positions, dtype=np.float64):
    angles = np.multiply.outer(positions, FREQUENCIES)
    cos, sin = np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)
    low, high = np.split(x, 2, axis=-1)
    return np.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)


def stored_blocks(keys, values, policy: CachePolicy, layer: int):
    """Keys (still rotated by their offset) and values as closed blocks give them back."""
    layer_policy = policy.layers[layer]
    s = policy.n_sink
    out_k, out_v = keys.copy(), values.copy()
    for start in range(s, len(keys) - BLOCK + 1, BLOCK):
        rows = slice(start, start + BLOCK)
        k = mx.array(keys[rows].swapaxes(0, 1)[None].astype(np.float16))
        v = mx.array(values[rows].swapaxes(0, 1)[None].astype(np.float16))
        blocks = close(k, v, layer_policy)
        k = expand(blocks.keys, BLOCK, mx.float32).swapaxes(-1, -2)
        v = expand(blocks.values, keys.shape[-1], mx.float32)
        out_k[rows] = np.array(k)[0].swapaxes(0, 1)
        out_v[rows] = np.array(v)[0].swapaxes(0, 1)
    return out_k, out_v


def offsets(n, n_sink):
    t = np.arange(n)
    return np.where(t < n_sink, t, (t - n_sink) % BLOCK)


def attention(q, k, v, policy: CachePolicy, layer: int = 0):
    """q (n, heads, dim), k, v (n, kv_heads, dim), not rotated; returns (n, heads, dim)."""
    n, heads, dim = q.shape
    group = heads // k.shape[1]
    at = offsets(n, policy.n_sink)
    # In fp32 as the cache computes it: another rounding to fp16 would be another key.
    local = half(turn(k, at[:, None] * np.ones((1, k.shape[1])), np.float32))
    fresh_v = half(v)
    stored_k, stored_v = stored_blocks(local, fresh_v, policy, layer)
    out = np.zeros(q.shape)
    for t in range(n):
        for_query = _visible(t, policy)
        block = (for_query - policy.n_sink) // BLOCK
        far = (for_query >= policy.n_sink) & (block <= (t - policy.n_sink) // BLOCK - 2)
        keys = np.where(far[:, None, None], stored_k[for_query], local[for_query])
        values = np.where(far[:, None, None], stored_v[for_query], fresh_v[for_query])
        anchored = for_query < policy.n_sink + policy.n_pinned
        position = np.where(anchored, min(t, policy.last_slot), t)
        starts = for_query - at[for_query]
        for h in range(heads):
            turned = turn(np.broadcast_to(q[t, h], (len(for_query), dim)), position - starts)
            scores = (turned * keys[:, h // group]).sum(-1)
            weights = np.exp(scores - scores.max())
            out[t, h] = weights / weights.sum() @ values[:, h // group]
    return out


def _visible(t, policy):
    s = np.arange(t + 1)
    return s[(s < policy.n_sink + policy.n_pinned) | (s > t - policy.window)]
