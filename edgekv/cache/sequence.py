"""SequenceCache: what one sequence keeps, and what happens to it as tokens come and go."""

from collections import deque
from dataclasses import dataclass

import mlx.core as mx
import numpy as np

from edgekv.cache.policy import RECENT_BLOCKS, CachePolicy, LayerPolicy
from edgekv.cache.pool import BlockPool
from edgekv.cache.rope import Rope
from edgekv.errors import DoesNotFit
from edgekv.metal.tile import BLOCK


@dataclass
class LayerArrays:
    """The fp16 part of one layer.

    hot: (2, n_kv_heads, n_sink + 128, head_dim), keys and values: the sinks, keys rotated to
    their position, and two recent blocks, keys rotated to their offset in the block. Block b is
    the first of the two where b is even, and the second where it is odd.
    """

    hot: mx.array

    @classmethod
    def zeros(cls, layer: LayerPolicy, n_sink: int) -> "LayerArrays":
        tokens = n_sink + RECENT_BLOCKS * BLOCK
        return cls(mx.zeros((2, layer.n_kv_heads, tokens, layer.head_dim), mx.float16))

    def copy(self) -> "LayerArrays":
        # Memory of its own, because the host writes into it in place (see cache/host.py).
        return LayerArrays(mx.array(np.array(self.hot)))


@dataclass(frozen=True)
class Closing:
    """Blocks first..last that a step closes; those kept are written to the pool."""

    first: int
    last: int
    kept: tuple[int, ...]
    slots: tuple[int, ...]


class SequenceCache:
    """Sinks, pinned blocks, a ring of closed blocks and recent tokens of one sequence.

    Token t below n_sink is a sink; any other belongs to block (t - n_sink) // 64. A block is
    closed when the block behind it is full, so 64 to 127 recent tokens stay in fp16, and a
    query in block b sees the blocks up to b - 2 as they are stored and the others in fp16,
    however its tokens were fed. Owned by the thread that makes MLX calls.
    """

    def __init__(self, policy: CachePolicy, rope: Rope, pool: BlockPool | None = None) -> None:
        self.policy = policy
        self.rope = rope
        self.pool = pool or BlockPool(policy.max_blocks, policy.layers)
        self.layers = [LayerArrays.zeros(layer, policy.n_sink) for layer in policy.layers]
        self.length = 0
        self.closed = 0
        """Blocks closed so far, evicted ones included."""
        self.pinned: list[int] = []
        self.ring: deque[int] = deque()
        """Slots of the newest closed blocks, the oldest first."""

    @property
    def nbytes(self) -> int:
        """Bytes the KV arrays of this sequence occupy, its pool included."""
        return self.pool.nbytes + sum(array.nbytes for array in self.arrays())

    @property
    def ring_start(self) -> int:
        """The block that the ring's oldest slot holds."""
        return self.closed - len(self.ring)

    @property
    def evicted_tokens(self) -> int:
        """Tokens that the newest token no longer attends to."""
        return max(0, self.length - 1 - self.policy.last_slot)

    @property
    def recent_tokens(self) -> int:
        return max(0, self.length - self.policy.n_sink - self.closed * BLOCK)

    def arrays(self) -> list[mx.array]:
        """The arrays that a forward pass changes outside the pool, to be evaluated after it."""
        return [layer.hot for layer in self.layers]

    def recent_row(self, block: int) -> int:
        """Where a recent block's first token stands in each layer's `hot`."""
        return self.policy.n_sink + block % RECENT_BLOCKS * BLOCK

    def advance(self, n: int) -> Closing:
        """Account for n new tokens: close what fills, evict what no query can reach any more.

        Raises DoesNotFit, with nothing changed, when a shared pool has no room.
        """
        full = max(0, self.length + n - self.policy.n_sink) // BLOCK
        first, last = self.closed, max(self.closed, full - 1)
        keep_from = max(self.policy.pinned_blocks, last - self.policy.ring_blocks)
        kept = [b for b in range(first, last) if b < self.policy.pinned_blocks or b >= keep_from]
        evicted = [s for b, s in enumerate(self.ring, self.ring_start) if b < keep_from]
        if len(kept) > self.pool.n_free + self.pool.freed_by(evicted):
            raise DoesNotFit(
                f"the KV pool of {self.pool.n_blocks} blocks is full: "
                "raise --kv-budget or close other sessions"
            )
        for slot in evicted:
            self.pool.free(slot)
            self.ring.popleft()
        slots = [self.pool.allocate() for _ in kept]
        n_pinned = sum(b < self.policy.pinned_blocks for b in kept)
        self.pinned += slots[:n_pinned]
        self.ring.extend(slots[n_pinned:])
        self.length += n
        self.closed = last
        return Closing(first, last, tuple(b - first for b in kept), tuple(slots))

    def can_trim(self, n: int) -> bool:
        """Whether the newest n tokens can be taken back with every window left whole."""
        length = self.length - n
        if n < 0 or length < 0:
            return False
        oldest = length - self.policy.window + 1
        held = self.policy.n_sink + self.ring_start * BLOCK
        whole = self.ring_start <= self.policy.pinned_blocks or oldest >= held
        return whole and (n <= self.recent_tokens or self.closed == 0)

    def trim(self, n: int) -> None:
        """Take back the newest n tokens; `can_trim(n)` must hold."""
        assert self.can_trim(n), f"cannot take {n} of {self.length} tokens back"
        self.length -= n

    def fork(self) -> "SequenceCache":
        """A second sequence that goes on from here, sharing every closed block."""
        other = SequenceCache.__new__(SequenceCache)
        other.policy, other.rope, other.pool = self.policy, self.rope, self.pool
        other.layers = [layer.copy() for layer in self.layers]
        other.length, other.closed = self.length, self.closed
        other.pinned, other.ring = list(self.pinned), deque(self.ring)
        for slot in (*self.pinned, *self.ring):
            self.pool.share(slot)
        return other

    def free(self) -> None:
        """Give every block back and forget all tokens."""
        for slot in (*self.pinned, *self.ring):
            self.pool.free(slot)
        self.pinned.clear()
        self.ring.clear()
        self.length = self.closed = 0
