"""Rotation of queries and keys by tables of cosines and sines."""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class RotaryTable:
    """cos and sin of a list of positions: both (n, head_dim / 2), fp32."""

    cos: mx.array
    sin: mx.array


def rotate(x: mx.array, cos: mx.array, sin: mx.array) -> mx.array:
    """Rotate the pairs (i, i + head_dim / 2) of the last axis of x.

    cos and sin broadcast against (..., head_dim / 2). The result has x's dtype.
    """
    half = x.shape[-1] // 2
    low, high = x[..., :half], x[..., half:]
    turned = mx.concatenate([low * cos - high * sin, high * cos + low * sin], axis=-1)
    return turned.astype(x.dtype)
