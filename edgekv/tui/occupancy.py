"""How full a conversation's cache is: what the gauge shows, worked out without the engine."""

from dataclasses import dataclass
from typing import Literal

from edgekv.cache.policy import CachePolicy
from edgekv.metal.tile import BLOCK

State = Literal["room", "nearly full", "rolling"]
NEARLY_FULL = 0.75
"""Share of the window from which the gauge warns, well before anything is forgotten."""


@dataclass(frozen=True)
class Occupancy:
    """`tokens` of one sequence under a policy."""

    policy: CachePolicy
    tokens: int

    @property
    def kept(self) -> int:
        """Tokens that go on in the window, behind the sinks and the pinned prefix."""
        behind = self.tokens - self.policy.n_sink - self.policy.n_pinned
        return min(max(0, behind), self.policy.window)

    @property
    def evicted(self) -> int:
        """Tokens that no later one can see."""
        return max(0, self.tokens - self.policy.last_slot - 1)

    @property
    def sinks(self) -> int:
        return min(self.tokens, self.policy.n_sink)

    @property
    def pinned(self) -> int:
        return min(max(0, self.tokens - self.policy.n_sink), self.policy.n_pinned)

    @property
    def used_nbytes(self) -> int:
        """Bytes that hold tokens, of the `policy.nbytes` that are set aside."""
        closed = max(0, self.tokens - self.policy.n_sink) // BLOCK
        block = sum(layer.block_nbytes for layer in self.policy.layers)
        half = sum(layer.half_token_nbytes for layer in self.policy.layers)
        recent = min(self.tokens, self.policy.fixed_nbytes // half)
        return recent * half + min(max(0, closed - 1), self.policy.max_blocks) * block

    @property
    def state(self) -> State:
        if self.evicted:
            return "rolling"
        return "nearly full" if self.kept >= NEARLY_FULL * self.policy.window else "room"

    @property
    def bits(self) -> str:
        """Bits of the blocks: "INT4", "K8 V4", "fp16"."""
        pairs = {(layer.k_bits, layer.v_bits) for layer in self.policy.layers}
        if len(pairs) > 1:
            return "mixed bits"
        k_bits, v_bits = pairs.pop()
        if k_bits != v_bits:
            return f"K{k_bits} V{v_bits}"
        return "fp16" if k_bits == 16 else f"INT{k_bits}"
