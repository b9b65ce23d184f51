"""How much of a conversation each layer keeps, in how many bits, and what that costs in bytes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.metal.tile import BLOCK

BITS = (2, 3, 4, 8, 16)
HALF = 2
"""Bytes of an fp16 number: sinks, recent tokens, scales, zeros and 16-bit blocks."""

RECENT_BLOCKS = 2
"""Blocks kept in fp16 behind the newest token: the one that waits and the one that fills."""


def value_group(head_dim: int) -> int:
    """Channels that share one scale in a quantized value row: 64, or 32 where 64 does not divide.

    Raises InvalidValue when neither divides, as for a head_dim of 80.
    """
    for group in (64, 32):
        if head_dim % group == 0:
            return group
    raise InvalidValue(f"head_dim {head_dim} is not a multiple of 32: use --kv-bits 16")


def _matrix_nbytes(rows: int, columns: int, bits: int, group: int) -> int:
    """Bytes of a (rows, columns) matrix whose rows are quantized in groups of columns."""
    if bits == 16:
        return rows * columns * HALF
    return rows * columns * bits // 8 + rows * (columns // group) * 2 * HALF


@dataclass(frozen=True)
class LayerPolicy:
    """The shape and the key and value bits of one attention layer."""

    n_kv_heads: int
    head_dim: int
    k_bits: int = 4
    v_bits: int = 4

    def __post_init__(self) -> None:
        for name, bits in (("k_bits", self.k_bits), ("v_bits", self.v_bits)):
            if bits not in BITS:
                raise InvalidValue(f"{name} must be one of 2, 3, 4, 8, 16, got {bits}")
        if self.v_bits != 16:
            value_group(self.head_dim)

    @property
    def v_group(self) -> int:
        return self.head_dim if self.v_bits == 16 else value_group(self.head_dim)

    @property
    def block_nbytes(self) -> int:
        """Bytes of one closed block: keys (head_dim, 64) and values (64, head_dim) a head."""
        keys = _matrix_nbytes(self.head_dim, BLOCK, self.k_bits, BLOCK)
        values = _matrix_nbytes(BLOCK, self.head_dim, self.v_bits, self.v_group)
        return self.n_kv_heads * (keys + values)

    @property
    def half_token_nbytes(self) -> int:
        """Bytes of one token's key and value in fp16."""
        return 2 * self.n_kv_heads * self.head_dim * HALF


@dataclass(frozen=True)
class CachePolicy:
    """What one sequence keeps: sinks, a pinned prefix, and a window of the newest tokens.

    A token attends to the first `n_sink` tokens, to the `n_pinned` tokens behind them, and to
    the `window` newest tokens, itself included. All layers share the window; bits are per layer.
    """

    window: int
    layers: tuple[LayerPolicy, ...]
    n_sink: int = 4
    n_pinned: int = 0

    def __post_init__(self) -> None:
        if self.window < 1:
            raise InvalidValue(f"window must be at least 1 token, got {self.window}")
        if not 0 <= self.n_sink <= BLOCK:
            raise InvalidValue(f"n_sink must be from 0 to {BLOCK}, got {self.n_sink}")
        if self.n_pinned % BLOCK or self.n_pinned < 0:
            raise InvalidValue(f"n_pinned must be a multiple of {BLOCK}, got {self.n_pinned}")
        if self.n_pinned and not self.can_pin:
            raise InvalidValue(
                f"a pinned prefix needs a window of at least {RECENT_BLOCKS * BLOCK} tokens, "
                f"got {self.window}"
            )

    @property
    def ring_blocks(self) -> int:
        """Closed blocks that the window can reach back to, one of them for taking tokens back.

        The newest query of a sequence whose last 64 tokens were trimmed still finds its whole
        window: 64 * ring_blocks >= window - 1.
        """
        return -(-(self.window - 1) // BLOCK)

    @property
    def pinned_blocks(self) -> int:
        return self.n_pinned // BLOCK

    @property
    def max_blocks(self) -> int:
        """Closed blocks of one sequence at the most."""
        return self.pinned_blocks + self.ring_blocks

    @property
    def last_slot(self) -> int:
        """The highest position in the cache: where the newest token of a full cache stands."""
        return self.n_sink + self.n_pinned + self.window - 1

    @property
    def k_bits(self) -> float:
        """Bits of keys, the mean where layers differ."""
        return _mean([layer.k_bits for layer in self.layers])

    @property
    def v_bits(self) -> float:
        """Bits of values, the mean where layers differ."""
        return _mean([layer.v_bits for layer in self.layers])

    @property
    def bytes_per_token(self) -> float:
        """Bytes a token costs in a closed block, all layers together."""
        return sum(layer.block_nbytes for layer in self.layers) / BLOCK

    @property
    def fixed_nbytes(self) -> int:
        """Bytes of the fp16 part: sinks and recent tokens."""
        tokens = self.n_sink + RECENT_BLOCKS * BLOCK
        return tokens * sum(layer.half_token_nbytes for layer in self.layers)

    @property
    def nbytes(self) -> int:
        """The bound: bytes the KV arrays of one sequence occupy, and never more."""
        return self.fixed_nbytes + self.max_blocks * sum(x.block_nbytes for x in self.layers)

    def with_window(self, window: int) -> "CachePolicy":
        return replace(self, window=window)

    def with_pinned(self, n_pinned: int) -> "CachePolicy":
        """The policy with a pinned prefix, or as it is where the window is too small for one."""
        return replace(self, n_pinned=n_pinned if self.can_pin else 0)

    @property
    def can_pin(self) -> bool:
        # Below this a pinned token could leave the window before its block is quantized.
        return self.window >= RECENT_BLOCKS * BLOCK


def _mean(bits: Sequence[int]) -> float:
    return bits[0] if len(set(bits)) == 1 else sum(bits) / len(bits)


def fit_window(policy: CachePolicy, budget: int, longest: int) -> CachePolicy:
    """The policy with the largest window up to `longest` tokens within `budget` bytes.

    Raises DoesNotFit when not even one block's window fits.
    """
    smallest = policy.with_window(min(longest, RECENT_BLOCKS * BLOCK))
    if smallest.nbytes > budget:
        raise DoesNotFit(
            f"a KV budget of {budget:,} bytes is below the {smallest.nbytes:,} bytes "
            f"that a window of {smallest.window} tokens takes: raise --kv-budget"
        )
    room = budget - policy.fixed_nbytes
    blocks = room // sum(layer.block_nbytes for layer in policy.layers) - policy.pinned_blocks
    return policy.with_window(max(smallest.window, min(longest, blocks * BLOCK + 1)))


def describe(policy: CachePolicy) -> list[dict[str, int | str]]:
    """One row per run of equal layers: which layers, what they keep, bits and bytes."""
    rows: list[dict[str, int | str]] = []
    for first, last in _runs(policy.layers):
        layer = policy.layers[first]
        rows.append(
            {
                "layers": f"{first}-{last}" if last > first else str(first),
                "kind": "rolling",
                "window": policy.window,
                "n_sink": policy.n_sink,
                "pinned": policy.n_pinned,
                "k_bits": layer.k_bits,
                "v_bits": layer.v_bits,
                "n_kv_heads": layer.n_kv_heads,
                "head_dim": layer.head_dim,
                "block_bytes": layer.block_nbytes,
            }
        )
    return rows


def _runs(layers: Sequence[LayerPolicy]) -> list[tuple[int, int]]:
    """(first, last) of each run of equal neighbours."""
    runs: list[tuple[int, int]] = []
    for i, layer in enumerate(layers):
        if runs and layers[runs[-1][0]] == layer:
            runs[-1] = (runs[-1][0], i)
        else:
            runs.append((i, i))
    return runs
