"""Reuse: what of a prompt is computed already, in this process or on disk.

Three places are looked at: the sequence that answered last, the blocks in RAM, and those on
disk. A sequence can go on from a tail, which is all of its fp16 part, and is then what it was to
the last bit; or from closed blocks alone. Those are taken but for the newest, which is computed
again, for the block behind it sees it in fp16.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgekv.cache.image import TailState, fits, read_block, read_tail, restore
from edgekv.cache.policy import CachePolicy
from edgekv.cache.prefix import Chain, needed, shared
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.metal.tile import BLOCK
from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.entry import Entry, Kind, Refused
from edgekv.sessions.memory import BlockMemory
from edgekv.sessions.records import StoreUnavailable
from edgekv.sessions.writer import Writer


@dataclass
class Tracked:
    """A sequence with the tokens that it was given, those on their way included.

    cached_tokens: how many of the prompt's were there already. session: the id of the stored
    session that its blocks are written for, if any.
    """

    cache: SequenceCache
    chain: Chain
    tokens: list[int]
    cached_tokens: int
    session: str | None
    kept_blocks: int
    tail: Entry | None = None
    """How it stood at the end of its turn."""


@dataclass(frozen=True)
class _Start:
    """A place to go on from: so many tokens, behind so many closed blocks, and the tail there.

    taken_back: how many tokens of the tail are not wanted.
    """

    length: int
    closed: int
    tail: tuple[str, tuple[int, ...]] | None = None
    taken_back: int = 0

    def better_than(self, other: "_Start") -> bool:
        return (self.length, -self.taken_back) > (other.length, -other.taken_back)


class Reuse:
    """Gives each prompt the longest start that is known, and keeps what is computed.

    Owned by the thread that makes MLX calls. model: the fingerprint of all that the contents of
    a block depend on beside its tokens and policy. notify: takes one line for the user.
    """

    def __init__(
        self,
        model: str,
        rope: Rope,
        notify: Callable[[str], None],
        files: BlockFiles | None = None,
        memory: BlockMemory | None = None,
    ) -> None:
        self._model = model
        self._rope = rope
        self._notify = notify
        self._files = files
        self._memory = memory or BlockMemory()
        self._writer = Writer(files, notify) if files is not None and files.writable else None
        self._refused: set[str] = set()
        self._latest: Tracked | None = None

    def begin(
        self, prompt: Sequence[int], policy: CachePolicy, session: str | None = None
    ) -> Tracked:
        """A sequence that holds the first `cached_tokens` of a prompt; the last is never held."""
        chain = Chain(policy, self._model)
        chain.extend(prompt)
        wanted = prompt[:-1]
        start = self._best(chain, policy, wanted)
        cache = self._continued(start, policy)
        # The sequence before makes room before another is allocated.
        self._latest = None
        while cache is None:
            cache = self._restored(start, chain, policy, wanted)
            if cache is None:
                start = self._best(chain, policy, wanted)
        return Tracked(cache, chain, list(prompt), cache.length, session, cache.closed)

    def keep(self, sequence: Tracked) -> None:
        """Keep the blocks that a sequence has closed since, and write them if it has a session."""
        cache = sequence.cache
        if cache.closed == sequence.kept_blocks:
            return
        sequence.chain.extend(sequence.tokens[: cache.length])
        for block in needed(cache.policy, cache.closed):
            if block < sequence.kept_blocks:
                continue
            entry = self._block(sequence, block)
            if sequence.session is not None and self._writer is not None:
                self._writer.offer(sequence.session, entry)
        sequence.kept_blocks = cache.closed

    def end(self, sequence: Tracked) -> None:
        """Keep a sequence at the end of its turn so that it can go on from just there."""
        self.keep(sequence)
        cache = sequence.cache
        del sequence.tokens[cache.length :]
        # A reply that was given up between a token's pass and its reading has one unnamed.
        if 0 < cache.length == len(sequence.tokens):
            sequence.tail = self._tail(sequence)
            self._memory.put(sequence.tail)
            self._persist(sequence, sequence.tail)
        self._latest = sequence

    def flush(self) -> None:
        """Wait until all that was kept for sessions is on disk."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Write what is left, and end the writer's thread."""
        self._latest = None
        if self._writer is not None:
            self._writer.close()

    # Finding a start

    def _best(self, chain: Chain, policy: CachePolicy, wanted: Sequence[int]) -> _Start:
        """The longest start that all parts are known of."""
        known = self._known(chain.keys[1:])
        whole = [_all_known(chain, policy, closed, known) for closed in range(len(chain.keys))]
        best = _Start(0, 0)
        for closed in range(len(chain.keys) - 1, -1, -1):
            first = chain.start(closed)
            if first + 2 * BLOCK + policy.n_sink <= best.length:
                break
            if not whole[closed]:
                continue
            for key, suffix in self._tails(chain.keys[closed]):
                n = shared(suffix, wanted[first:])
                start = _Start(first + n, closed, (key, suffix), len(suffix) - n)
                best = start if start.better_than(best) else best
            behind = closed + 1 < len(chain.keys) and chain.keys[closed + 1] in known
            if behind and best.length < first <= len(wanted) and chain.keys[1] in known:
                best = _Start(first, closed)
        return best

    def _continued(self, start: _Start, policy: CachePolicy) -> SequenceCache | None:
        """The sequence before, if it is the one to go on from: it need not be loaded."""
        latest = self._latest
        if latest is None or latest.tail is None or start.tail is None:
            return None
        if latest.tail.key != start.tail[0] or latest.cache.policy != policy:
            return None
        latest.cache.trim(start.taken_back)
        return latest.cache

    def _restored(
        self, start: _Start, chain: Chain, policy: CachePolicy, prompt: Sequence[int]
    ) -> SequenceCache | None:
        """The sequence at a start; None where a part was refused, which is then not known."""
        if start.length == 0:
            return SequenceCache(policy, self._rope)
        blocks = needed(policy, start.closed)
        parts = [self._load_block(chain, policy, block, prompt) for block in blocks]
        fp16 = self._load_fp16(start, chain, policy, prompt)
        if fp16 is None or any(part is None for part in parts):
            return None
        slots = fp16.slots if start.tail is not None else tuple(range(len(blocks)))
        state = TailState(start.length + start.taken_back, start.closed, slots)
        arrays = [part.arrays for part in parts if part is not None]
        cache = restore(policy, self._rope, state, arrays, fp16.arrays)
        cache.trim(start.taken_back)
        return cache

    def _load_fp16(
        self, start: _Start, chain: Chain, policy: CachePolicy, prompt: Sequence[int]
    ) -> Entry | None:
        """The tail of a start, or the first block, which has the sinks."""
        if start.tail is None:
            return self._load_block(chain, policy, 0, prompt)
        key, suffix = start.tail
        n = len(suffix) + (policy.n_sink if start.closed else 0)
        entry = self._load(key, "tail", chain.keys[start.closed], suffix, policy, n)
        held = len(needed(policy, start.closed))
        if entry is not None and len(set(entry.slots)) != held:
            self._refuse(key, f"{key[:12]}: it does not name {held} blocks")
            return None
        return entry

    def _load_block(
        self, chain: Chain, policy: CachePolicy, block: int, prompt: Sequence[int]
    ) -> Entry | None:
        tokens = tuple(prompt[chain.start(block) : chain.start(block + 1)])
        n = policy.n_sink if block == 0 else 0
        return self._load(chain.keys[block + 1], "block", chain.keys[block], tokens, policy, n)

    def _load(
        self,
        key: str,
        kind: Kind,
        base: str,
        tokens: tuple[int, ...],
        policy: CachePolicy,
        n_fp16: int,
    ) -> Entry | None:
        entry = self._memory.get(key)
        if entry is not None or self._files is None:
            return entry
        try:
            entry = self._files.load(key)
            if entry is not None and (entry.kind, entry.base, entry.tokens) != (kind, base, tokens):
                raise self._files.refuse(key, "it holds other tokens")
            if entry is not None and not fits(policy, entry.arrays, n_fp16):
                raise self._files.refuse(key, "its arrays have other shapes")
        except (Refused, StoreUnavailable) as fault:
            self._refuse(key, str(fault))
            return None
        if entry is None:
            self._refused.add(key)
        else:
            self._memory.put(entry)
        return entry

    def _refuse(self, key: str, reason: str) -> None:
        self._refused.add(key)
        self._notify(f"stored KV is not used and computed again: {reason}")

    def _known(self, keys: Sequence[str]) -> set[str]:
        found = self._memory.known(keys)
        if self._files is not None:
            found |= self._on_disk(keys)
        return found

    def _on_disk(self, keys: Sequence[str]) -> set[str]:
        assert self._files is not None
        try:
            return self._files.known(keys) - self._refused
        except StoreUnavailable as fault:
            self._give_up(fault)
            return set()

    def _tails(self, base: str) -> list[tuple[str, tuple[int, ...]]]:
        found = self._memory.tails(base)
        latest = self._latest.tail if self._latest is not None else None
        if latest is not None and latest.base == base:
            found.append((latest.key, latest.tokens))
        if self._files is None:
            return found
        try:
            return found + [one for one in self._files.tails(base) if one[0] not in self._refused]
        except StoreUnavailable as fault:
            self._give_up(fault)
            return found

    def _give_up(self, fault: StoreUnavailable) -> None:
        """An index that cannot be read any more: go on in memory."""
        self._files = None
        self._notify(f"stored KV is not used: {fault}")

    # Keeping

    def _block(self, sequence: Tracked, block: int) -> Entry:
        """A closed block that the sequence holds, from RAM where it is there."""
        chain = sequence.chain
        entry = self._memory.get(chain.keys[block + 1])
        if entry is None:
            tokens = tuple(sequence.tokens[chain.start(block) : chain.start(block + 1)])
            arrays = read_block(sequence.cache, block)
            entry = Entry(chain.keys[block + 1], "block", chain.keys[block], tokens, arrays)
            self._memory.put(entry)
        return entry

    def _tail(self, sequence: Tracked) -> Entry:
        state, arrays = read_tail(sequence.cache)
        chain, closed = sequence.chain, state.closed
        suffix = tuple(sequence.tokens[chain.start(closed) :])
        return Entry(
            chain.tail(closed, suffix), "tail", chain.keys[closed], suffix, arrays, state.slots
        )

    def _persist(self, sequence: Tracked, tail: Entry) -> None:
        """Have what the session stands on written, as far as it is not on disk."""
        if sequence.session is None or self._writer is None or self._files is None:
            return
        blocks = needed(sequence.cache.policy, sequence.cache.closed)
        keys = {sequence.chain.keys[block + 1]: block for block in blocks}
        there = self._on_disk([*keys, tail.key])
        entries = [self._block(sequence, b) for key, b in keys.items() if key not in there]
        if tail.key not in there:
            entries.append(tail)
        self._writer.end_turn(sequence.session, entries, [*keys, tail.key])


def _all_known(chain: Chain, policy: CachePolicy, closed: int, known: set[str]) -> bool:
    return all(chain.keys[block + 1] in known for block in needed(policy, closed))
