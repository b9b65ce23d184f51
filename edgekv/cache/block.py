"""Close blocks, and make room for them, as a layer's policy says."""

import mlx.core as mx

from edgekv.cache.policy import LayerPolicy
from edgekv.metal import attention
from edgekv.metal.packed import Blocks, Matrix
from edgekv.metal.tile import BLOCK


def close(keys: mx.array, values: mx.array, layer: LayerPolicy) -> Blocks:
    """Quantize full blocks, both given as (n, n_kv_heads, 64, head_dim)."""
    return attention.close(keys, values, layer.k_bits, layer.v_bits, layer.v_group)


def empty(n: int, layer: LayerPolicy) -> Blocks:
    """Zeroed room for n closed blocks."""
    heads, dim = layer.n_kv_heads, layer.head_dim
    return Blocks(
        _empty((n, heads, dim, BLOCK), layer.k_bits, BLOCK),
        _empty((n, heads, BLOCK, dim), layer.v_bits, layer.v_group),
    )


def _empty(shape: tuple[int, ...], bits: int, group: int) -> Matrix:
    if bits == 16:
        return (mx.zeros(shape, mx.float16),)
    *lead, columns = shape
    constants = (*lead, columns // group)
    return (
        mx.zeros((*lead, columns * bits // 32), mx.uint32),
        mx.zeros(constants, mx.float16),
        mx.zeros(constants, mx.float16),
    )
