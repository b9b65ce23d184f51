"""The fewest bytes that attention over the cache must move.

The kernels are held to these counts byte by byte, in tests/metal/test_traffic.py.
"""

from edgekv.cache.policy import HALF, RECENT_BLOCKS, CachePolicy, LayerPolicy
from edgekv.metal.tile import BLOCK


def decode_nbytes(layer: LayerPolicy, n_heads: int, itemsize: int, closed: int, fresh: int) -> int:
    """Attention of one token: each closed block, fp16 token, query and output once.

    closed: closed blocks in reach; fresh: fp16 tokens in reach; itemsize: bytes of a number of
    the query and of the output.
    """
    heads = 2 * n_heads * layer.head_dim * itemsize
    return heads + closed * layer.block_nbytes + fresh * layer.half_token_nbytes


def close_nbytes(layer: LayerPolicy) -> int:
    """Closing one block: its fp16 tokens read, its packed form written."""
    return BLOCK * layer.half_token_nbytes + layer.block_nbytes


def merge_nbytes(n_heads: int, head_dim: int, itemsize: int, splits: int) -> int:
    """Merging the partial softmaxes of one token: each read once, in fp32, and the output."""
    return n_heads * (splits * (head_dim + 2) * 4 + head_dim * itemsize)


def token_nbytes(policy: CachePolicy, n_heads: int) -> int:
    """Attention of one token in all layers, in 16 bits, with the window full.

    Of the window 64 to 127 tokens are fp16, 96 on average.
    """
    fresh = min(policy.window, RECENT_BLOCKS * BLOCK - BLOCK // 2)
    closed = policy.pinned_blocks + -(-(policy.window - fresh) // BLOCK)
    fresh += policy.n_sink
    return sum(decode_nbytes(layer, n_heads, HALF, closed, fresh) for layer in policy.layers)
