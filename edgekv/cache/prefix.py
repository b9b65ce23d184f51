"""Names of blocks: a hash chained over their tokens and all that their contents depend on.

A key or value above the first layer depends on every token that its query could see, and those
on the tokens before them. So a block's name covers all tokens up to its last one. It covers the
window too from the first block on that was computed after a token had left it: blocks before
that are the same in every window.
"""

import hashlib
import json
from array import array
from collections.abc import Sequence
from dataclasses import asdict

from edgekv.cache.policy import CachePolicy
from edgekv.metal.tile import BLOCK


class Chain:
    """The names of one sequence's blocks: keys[c] stands for the sinks and the first c blocks.

    The first block's tokens include the sinks before it. `model` is the fingerprint of weights,
    configuration, tokenizer and layout.
    """

    def __init__(self, policy: CachePolicy, model: str) -> None:
        self._policy = policy
        kept = asdict(policy)
        window = kept.pop("window")
        self._window = f"window {window}".encode()
        self.keys = [_digest(model.encode(), json.dumps(kept).encode())]

    def extend(self, tokens: Sequence[int]) -> None:
        """Name the blocks that all the tokens of the sequence so far fill."""
        while self.start(len(self.keys)) <= len(tokens):
            block = len(self.keys) - 1
            last = self.start(block + 1)
            named = array("I", tokens[self.start(block) : last]).tobytes()
            self.keys.append(_digest(self.keys[-1].encode(), named, self._rolled(last)))

    def start(self, block: int) -> int:
        """The first token that a block's name adds; of block 0, the first of the sinks."""
        return self._policy.n_sink + block * BLOCK if block else 0

    def tail(self, closed: int, suffix: Sequence[int]) -> str:
        """The name of the fp16 part behind so many closed blocks that holds these tokens."""
        rolled = self._rolled(self.start(closed) + len(suffix))
        return _digest(b"tail", self.keys[closed].encode(), array("I", suffix).tobytes(), rolled)

    def _rolled(self, length: int) -> bytes:
        """The window, if the last of so many tokens could no longer see all those before it."""
        return self._window if length - 1 > self._policy.last_slot else b""


def needed(policy: CachePolicy, closed: int) -> list[int]:
    """The blocks, pinned ones first, that a sequence with so many closed ones holds."""
    pinned = min(policy.pinned_blocks, closed)
    first = max(pinned, closed - policy.ring_blocks)
    return [*range(pinned), *range(first, closed)]


def shared(first: Sequence[int], second: Sequence[int]) -> int:
    """How many leading tokens two sequences have in common."""
    end = min(len(first), len(second))
    return next((n for n in range(end) if first[n] != second[n]), end)


def _digest(*parts: bytes) -> str:
    state = hashlib.blake2b(digest_size=20)
    for part in parts:
        state.update(len(part).to_bytes(8, "little"))
        state.update(part)
    return state.hexdigest()
