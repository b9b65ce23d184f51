"""BlockMemory: blocks and tails of the latest sequences in RAM, within a budget of its own."""

from collections import OrderedDict
from collections.abc import Sequence

from edgekv.sessions.entry import Entry

BUDGET = 256_000_000
"""Bytes beside the sequence itself: nine full windows of the default model."""


class BlockMemory:
    """Entries by key, the least recently used evicted first. Owned by the MLX thread."""

    def __init__(self, budget: int = BUDGET) -> None:
        self._budget = budget
        self._entries: OrderedDict[str, Entry] = OrderedDict()
        self._tails: dict[str, dict[str, tuple[int, ...]]] = {}
        self.nbytes = 0

    def get(self, key: str) -> Entry | None:
        entry = self._entries.get(key)
        if entry is not None:
            self._entries.move_to_end(key)
        return entry

    def known(self, keys: Sequence[str]) -> set[str]:
        return {key for key in keys if key in self._entries}

    def tails(self, base: str) -> list[tuple[str, tuple[int, ...]]]:
        """(key, fp16 tokens) of every tail behind those blocks."""
        return list(self._tails.get(base, {}).items())

    def put(self, entry: Entry) -> None:
        self.drop(entry.key)
        self._entries[entry.key] = entry
        self.nbytes += entry.nbytes
        if entry.kind == "tail":
            self._tails.setdefault(entry.base, {})[entry.key] = entry.tokens
        while self.nbytes > self._budget:
            self.drop(next(iter(self._entries)))

    def drop(self, key: str) -> None:
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        self.nbytes -= entry.nbytes
        if entry.kind == "tail":
            del self._tails[entry.base][key]
            if not self._tails[entry.base]:
                del self._tails[entry.base]
