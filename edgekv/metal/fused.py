"""Launches of the decode and block-close kernels. Their twins: reference.py and packed.py."""

from dataclasses import dataclass
from typing import NamedTuple

import mlx.core as mx

from edgekv.metal.kernels import LANES, REGISTERS, THREADGROUP_BYTES, build
from edgekv.metal.packed import Blocks, bits_and_group
from edgekv.metal.rotary import Turns
from edgekv.metal.tile import BLOCK

HEAD_DIMS = (64, 96, 128, 256)
MAX_GROUP = 8
MAX_ROWS = 8
MAX_SPLITS = LANES
WORTH_A_SPLIT = 25
"""A split must read so many times the bytes of its partial results, which then cost 4 %."""


class Tile(NamedTuple):
    """64 tokens or fewer as a query sees them: one entry of a decode kernel's table.

    place: the slot of a closed block, or ~row of the first token in `hot`; distance: from the
    tile's first token to the query; start..stop: the tokens that are seen, of the tile's own.
    """

    place: int
    distance: int
    start: int
    stop: int


@dataclass(frozen=True)
class DecodeShape:
    """What a decode kernel is instantiated for."""

    head_dim: int
    group: int
    rows: int
    k_bits: int
    v_bits: int
    v_group: int

    @property
    def rows_at_once(self) -> int:
        """The most rows whose queries fit a thread's registers, of those that divide all rows."""
        dividing = [n for n in range(1, self.rows + 1) if self.rows % n == 0]
        return max((n for n in dividing if self._registers(n) <= REGISTERS), default=1)

    @property
    def vectors(self) -> int:
        """Queries of one simdgroup: the query heads of a KV head, for each of its rows."""
        return self.rows_at_once * self.group

    @property
    def simdgroups(self) -> int:
        """Simdgroups of a threadgroup: eight, or four where their memory would not fit."""
        return 8 if self.threadgroup_bytes(8) <= THREADGROUP_BYTES else 4

    def threadgroup_bytes(self, simdgroups: int) -> int:
        """What decode.metal declares."""
        stage = 4 * max(self.vectors * BLOCK, self.head_dim)
        scales = 2 * 2 * BLOCK * (self.head_dim // self.v_group)
        queries = 4 * self.vectors * self.head_dim + 4 * self.head_dim // 2
        return queries + simdgroups * (stage + scales + 8)

    @property
    def registers(self) -> int:
        """An estimate of a thread's 32-bit registers; above 128 some numbers go to memory."""
        return self._registers(self.rows_at_once)

    def _registers(self, rows: int) -> int:
        # Where decode.metal keeps the most: for each query eight sums, the outputs that stay with
        # the lane, the maximum, the total and the share of the zeros; besides, about 28 codes,
        # addresses and counters.
        return rows * self.group * (8 + self.head_dim // LANES + 3) + 28

    def splits(self, tiles: int) -> int:
        """Into how many threadgroups the tiles of a KV head are cut."""
        partial = 2 * 4 * self.vectors * (self.head_dim + 2)
        packed = BLOCK * self.head_dim * (self.k_bits + self.v_bits) // 8
        run = max(self.simdgroups, -(-WORTH_A_SPLIT * partial // packed))
        return min(MAX_SPLITS, max(1, tiles // run))


def has_shape(head_dim: int, group: int) -> bool:
    """Whether kernels are made for so many channels, and query heads to a KV head."""
    return head_dim in HEAD_DIMS and group <= MAX_GROUP


def supports_decode(q: mx.array, blocks: Blocks, n_kv_heads: int) -> bool:
    """Whether there is a decode kernel for queries (rows, n_heads, head_dim) over this pool."""
    rows, n_heads, dim = q.shape
    return (
        rows <= MAX_ROWS
        and has_shape(dim, n_heads // n_kv_heads)
        and all(len(matrix) == 3 and matrix[0].shape[0] > 0 for matrix in blocks)
    )


def supports_close(keys: mx.array, values: mx.array, k_bits: int, v_bits: int) -> bool:
    """Whether there is a kernel that closes these blocks."""
    half = keys.dtype == values.dtype == mx.float16
    return half and keys.shape[-1] in HEAD_DIMS and k_bits < 16 and v_bits < 16


def decode_shape(q: mx.array, blocks: Blocks, n_kv_heads: int) -> DecodeShape:
    """The shape for queries (rows, n_heads, head_dim) over packed blocks."""
    rows, n_heads, dim = q.shape
    k_bits, _ = bits_and_group(blocks.keys, BLOCK)
    v_bits, v_group = bits_and_group(blocks.values, dim)
    return DecodeShape(dim, n_heads // n_kv_heads, rows, k_bits, v_bits, v_group)


def decode_attention(
    q: mx.array, table: mx.array, turns: Turns, blocks: Blocks, hot: mx.array
) -> mx.array:
    """A few new tokens over closed blocks and fp16 tokens, by one dispatch or by two.

    q: (rows, n_heads, head_dim), scaled and not rotated; table: (rows, tiles, 4) int32, a `Tile`
    an entry, with the same places in every row; blocks: the whole pool of the layer; hot:
    (2, n_kv_heads, capacity, head_dim) fp16. Returns (rows, n_heads, head_dim) in q's dtype.
    """
    rows, n_heads, dim = q.shape
    n_kv_heads = hot.shape[1]
    shape = decode_shape(q, blocks, n_kv_heads)
    splits = shape.splits(table.shape[1])
    threads = LANES * shape.simdgroups
    dtype = q.dtype if splits == 1 else mx.float32
    (out,) = build("decode")(
        inputs=[q, table, turns.frequencies, turns.factor, *blocks.keys, *blocks.values, hot],
        template=[
            ("O", dtype),
            ("SPLIT", splits > 1),
            ("DIM", dim),
            ("GROUP", shape.group),
            ("ROWS", shape.rows_at_once),
            ("K_BITS", shape.k_bits),
            ("V_BITS", shape.v_bits),
            ("V_GROUP", shape.v_group),
            ("SIMDGROUPS", shape.simdgroups),
        ],
        grid=(threads * splits, n_kv_heads, rows // shape.rows_at_once),
        threadgroup=(threads, 1, 1),
        output_shapes=[q.shape if splits == 1 else (splits, rows * n_heads, dim + 2)],
        output_dtypes=[dtype],
    )
    return out if splits == 1 else _merge(out, q)


def _merge(partials: mx.array, q: mx.array) -> mx.array:
    (out,) = build("merge")(
        inputs=[partials],
        template=[("O", q.dtype), ("DIM", q.shape[-1])],
        grid=(LANES, partials.shape[1], 1),
        threadgroup=(LANES, 1, 1),
        output_shapes=[q.shape],
        output_dtypes=[q.dtype],
    )
    return out


def close(keys: mx.array, values: mx.array, k_bits: int, v_bits: int, v_group: int) -> Blocks:
    """Full blocks, keys and values both (n, n_kv_heads, 64, head_dim) fp16, quantized at once."""
    n, heads, _, dim = keys.shape
    groups = dim // v_group
    threads = max(dim, BLOCK * groups)
    k_shape, v_shape = (n, heads, dim), (n, heads, BLOCK)
    constants = [(*k_shape, 1)] * 2, [(*v_shape, groups)] * 2
    k_codes, k_scale, k_zero, v_codes, v_scale, v_zero = build("close")(
        inputs=[keys, values],
        template=[("DIM", dim), ("K_BITS", k_bits), ("V_BITS", v_bits), ("V_GROUP", v_group)],
        grid=(2 * threads, heads, n),
        threadgroup=(threads, 1, 1),
        output_shapes=[
            *((*k_shape, BLOCK * k_bits // 32), *constants[0]),
            *((*v_shape, dim * v_bits // 32), *constants[1]),
        ],
        output_dtypes=[mx.uint32, mx.float16, mx.float16] * 2,
    )
    return Blocks((k_codes, k_scale, k_zero), (v_codes, v_scale, v_zero))
