"""BlockPool: room for a fixed number of closed blocks in every layer, allocated once."""

from collections.abc import Sequence

import mlx.core as mx

from edgekv.cache.block import empty
from edgekv.cache.policy import LayerPolicy
from edgekv.metal.packed import Blocks


class BlockPool:
    """Arrays of closed blocks per layer, and who holds which slot.

    A slot is the same index in every layer. Blocks are immutable once written, so sequences
    share them by reference count; a slot is reused when nobody holds it. Owned by the thread
    that makes MLX calls.
    """

    def __init__(self, n_blocks: int, layers: Sequence[LayerPolicy]) -> None:
        self.n_blocks = n_blocks
        self._layers = [empty(n_blocks, layer) for layer in layers]
        self._holders = [0] * n_blocks

    @property
    def n_free(self) -> int:
        return self._holders.count(0)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays, used or not."""
        return sum(array.nbytes for layer in self._layers for part in layer for array in part)

    def allocate(self) -> int:
        """Take the lowest free slot: low slots keep the used part of the arrays contiguous.

        The pool is sized by the policies of its sequences, so running out is a bug.
        """
        slot = self._holders.index(0)
        self._holders[slot] = 1
        return slot

    def freed_by(self, slots: Sequence[int]) -> int:
        """How many slots would become free if one holder gave these back."""
        return sum(self._holders[slot] == 1 for slot in slots)

    def share(self, slot: int) -> None:
        """One more sequence holds a slot."""
        assert self._holders[slot] > 0, f"slot {slot} is free"
        self._holders[slot] += 1

    def free(self, slot: int) -> None:
        """One sequence fewer holds a slot."""
        assert self._holders[slot] > 0, f"slot {slot} is free"
        self._holders[slot] -= 1

    def write(self, layer: int, slots: Sequence[int], blocks: Blocks) -> None:
        """Store closed blocks, the i-th of them in slots[i]."""
        index = mx.array(list(slots))
        room = self._layers[layer]
        for stored, new in zip(
            (*room.keys, *room.values), (*blocks.keys, *blocks.values), strict=True
        ):
            stored[index] = new

    def blocks(self, layer: int) -> Blocks:
        """The arrays of one layer, of every slot, used or not."""
        return self._layers[layer]

    def read(self, layer: int, slots: Sequence[int]) -> Blocks:
        """The blocks in those slots, in order: a view where slots ascend by one, else a copy."""
        keys, values = self._layers[layer]
        index = as_slice(slots) or mx.array(list(slots))
        return Blocks(tuple(a[index] for a in keys), tuple(a[index] for a in values))


def as_slice(slots: Sequence[int]) -> slice | None:
    """The slice that takes these slots, where they ascend by one."""
    taken = slice(slots[0], slots[0] + len(slots))
    return taken if list(slots) == list(range(taken.start, taken.stop)) else None
