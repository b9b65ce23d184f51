"""Whatever is done to sequences that share a pool, in any order: what they hold and answer.

The model of a sequence is the list of its tokens, the number of blocks closed so far, and for
each closed block the numbers it stands for. Trimming takes tokens back and opens no block, so a
query in block b finds block b - 1 in the form in which it is stored if it was closed before the
trim; every other query finds the blocks up to b - 2 stored and the rest in fp16. Trims are not
restricted beyond `can_trim`.
"""

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from edgekv.cache.block import close
from edgekv.cache.host import HostStep
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.pool import BlockPool
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.cache.step import make_step, takes_one
from edgekv.errors import DoesNotFit
from edgekv.metal.packed import expand
from edgekv.metal.tile import BLOCK
from tests.cache.naive import FREQUENCIES, half, turn

DIM, KV_HEADS, GROUP = 32, 2, 2
TOLERANCE = {16: 1e-4, 8: 2e-4, 4: 1e-3, 3: 1e-3, 2: 2e-3}
"""A key on the edge of two fp16 numbers may fall to the other, and its code with it."""


@dataclass
class Tokens:
    """The whole sequence, and the closed blocks of it that the policy keeps."""

    policy: CachePolicy
    keys: list = field(default_factory=list)
    values: list = field(default_factory=list)
    closed: int = 0
    held: dict = field(default_factory=dict)
    """Block → (keys, values) as stored; the same tuple in every sequence that shares it."""

    def __len__(self):
        return len(self.keys)

    @property
    def pinned(self):
        return self.policy.n_pinned // BLOCK

    def position(self, t):
        """Where a key is rotated to: its place among the sinks, or its offset in its block."""
        s = self.policy.n_sink
        return t if t < s else (t - s) % BLOCK

    def closed_after(self, n):
        return max(self.closed, max(0, len(self) + n - self.policy.n_sink) // BLOCK - 1)

    def kept(self, last):
        """Blocks held when `last` are closed: pinned ones, and what a window can reach."""
        ring = -(-(self.policy.window - 1) // BLOCK)
        return {b for b in range(last) if b < self.pinned or b >= last - ring}

    def append(self, q, k, v):
        """Take tokens in; returns the attention of each."""
        s, first = self.policy.n_sink, len(self)
        at = np.array([self.position(t) for t in range(first, first + len(k))])
        self.keys.extend(half(turn(k, at[:, None] * np.ones((1, KV_HEADS)), np.float32)))
        self.values.extend(half(v))
        before, last = self.closed, self.closed_after(0)
        fresh = {b: self._stored(b) for b in range(before, last)}
        kept = self.kept(last)
        # A chunk's early queries may see a block that is gone when the chunk has been taken in.
        seen = self.held | fresh
        keys, values = np.stack(self.keys), np.stack(self.values)
        forms = (keys, values), self._as_stored(seen, keys, values)
        out = [
            self._attend(q[i], t, *forms, stored_until=max(before, (t - s) // BLOCK - 1))
            for i, t in enumerate(range(first, len(self)))
        ]
        self.closed = last
        self.held = {b: stored for b, stored in seen.items() if b in kept}
        return np.stack(out)

    def _stored(self, block):
        start = self.policy.n_sink + block * BLOCK
        k, v = (np.stack(x[start : start + BLOCK]) for x in (self.keys, self.values))
        layer = self.policy.layers[0]
        pair = [mx.array(x.swapaxes(0, 1)[None].astype(np.float16)) for x in (k, v)]
        blocks = close(*pair, layer)
        keys = expand(blocks.keys, BLOCK, mx.float32).swapaxes(-1, -2)
        values = expand(blocks.values, DIM, mx.float32)
        return tuple(np.array(x)[0].swapaxes(0, 1).astype(np.float64) for x in (keys, values))

    def _as_stored(self, blocks, keys, values):
        keys, values = keys.copy(), values.copy()
        for block, stored in blocks.items():
            rows = slice(
                self.policy.n_sink + block * BLOCK, self.policy.n_sink + (block + 1) * BLOCK
            )
            keys[rows], values[rows] = stored
        return keys, values

    def _attend(self, q, t, fresh, stored, stored_until):
        policy, s = self.policy, self.policy.n_sink
        u = np.arange(t + 1)
        anchored = u < s + policy.n_pinned
        u = u[anchored | (u > t - policy.window)]
        closed = ((u >= s) & ((u - s) // BLOCK < stored_until))[:, None, None]
        keys, values = (np.where(closed, b[u], a[u]) for a, b in zip(fresh, stored, strict=True))
        stands = np.where(u < s + policy.n_pinned, min(t, policy.last_slot), t)
        distance = stands - u + np.where(u < s, u, (u - s) % BLOCK)
        turned = turn(np.broadcast_to(q, (len(u), *q.shape)), distance[:, None])
        scores = (turned * keys.repeat(GROUP, axis=1)).sum(-1)
        weights = np.exp(scores - scores.max(0))
        weights /= weights.sum(0)
        return (weights[..., None] * values.repeat(GROUP, axis=1)).sum(0)

    def trim(self, n):
        length = len(self) - n
        del self.keys[length:], self.values[length:]

    def fork(self):
        return Tokens(self.policy, list(self.keys), list(self.values), self.closed, dict(self.held))


@dataclass
class Pair:
    """A sequence and what it should be."""

    cache: SequenceCache
    tokens: Tokens


policies = st.builds(
    lambda window, n_sink, pinned, k_bits, v_bits: CachePolicy(
        max(window, 128) if pinned else window,
        (LayerPolicy(KV_HEADS, DIM, k_bits, v_bits),),
        n_sink,
        pinned * BLOCK,
    ),
    st.sampled_from([1, 2, 63, 64, 65, 66, 100, 128, 129, 150, 193]),
    st.sampled_from([0, 1, 4, 64]),
    st.integers(0, 2),
    st.sampled_from([16, 16, 4, 2]),
    st.sampled_from([16, 16, 4, 3]),
)
# Chunks that end at, before and behind the edges of blocks as well as any other.
sizes = st.one_of(st.integers(1, 70), st.sampled_from([64, 128, 60, 127, 191, 260]))


class Sequences(RuleBasedStateMachine):
    pairs = Bundle("pairs")

    def __init__(self):
        super().__init__()
        self.live = []
        self.rng = np.random.default_rng(0)

    @initialize(target=pairs, policy=policies, spare=st.integers(0, 4))
    def start(self, policy, spare):
        self.policy = policy
        self.pool = BlockPool(policy.max_blocks + spare, policy.layers)
        self.rope = Rope(FREQUENCIES)
        return self._new(SequenceCache(policy, self.rope, self.pool), Tokens(policy))

    def _new(self, cache, tokens):
        pair = Pair(cache, tokens)
        self.live.append(pair)
        return pair

    @precondition(lambda self: len(self.live) < 4)
    @rule(target=pairs)
    def begin(self):
        return self._new(SequenceCache(self.policy, self.rope, self.pool), Tokens(self.policy))

    @rule(pair=pairs, n=sizes)
    def append(self, pair, n):
        self._feed(pair, n)

    @rule(pair=pairs)
    def decode_one(self, pair):
        self._feed(pair, 1)

    @rule(pair=pairs, n=st.integers(1, 70))
    def append_one_by_one_on_the_host(self, pair, n):
        for _ in range(n):
            self._feed(pair, 1, on_host=True)

    @rule(pair=pairs, sizes=st.lists(st.integers(1, 90), min_size=2, max_size=4))
    def append_in_pieces(self, pair, sizes):
        for n in sizes:
            self._feed(pair, n)

    @precondition(lambda self: len(self.live) < 4)
    @rule(target=pairs, pair=pairs)
    def fork(self, pair):
        return self._new(pair.cache.fork(), pair.tokens.fork())

    @rule(pair=pairs, n=st.integers(0, 130))
    def trim(self, pair, n):
        tokens, length = pair.tokens, len(pair.tokens) - n
        open_from = tokens.closed * BLOCK + self.policy.n_sink
        reach = max(0, length - self.policy.window + 1 - self.policy.n_sink) // BLOCK
        whole = all(b in tokens.held for b in range(reach, tokens.closed))
        possible = length >= 0 and (length >= open_from or tokens.closed == 0) and whole
        assert pair.cache.can_trim(n) == possible
        if possible:
            pair.cache.trim(n)
            tokens.trim(n)

    @rule(pair=pairs)
    def forget(self, pair):
        pair.cache.free()
        pair.tokens = Tokens(self.policy)

    @rule(pair=consumes(pairs))
    def drop(self, pair):
        pair.cache.free()
        self.live = [other for other in self.live if other is not pair]

    def _feed(self, pair, n, on_host=False):
        cache, tokens = pair.cache, pair.tokens
        shapes = ((n, KV_HEADS * GROUP, DIM), (n, KV_HEADS, DIM), (n, KV_HEADS, DIM))
        q, k, v = (self.rng.standard_normal(s).astype(np.float32) for s in shapes)
        fits = self._fits(pair, n)
        state = (cache.length, cache.closed, list(cache.pinned), list(cache.ring))
        on_host = on_host and takes_one(cache, n)
        try:
            step = HostStep(cache) if on_host else make_step(cache, n)
        except DoesNotFit:
            assert not fits
            after = (cache.length, cache.closed, list(cache.pinned), list(cache.ring))
            assert after == state
            return
        assert fits
        out = step.attend(0, *(x if on_host else mx.array(x) for x in (q, k, v)))
        mx.eval(cache.arrays())
        wanted = tokens.append(q, k, v)
        worst = np.abs(np.array(out) - wanted).max()
        note(f"{n} tokens up to {len(tokens)}: off by {worst:.2g}")
        layer = self.policy.layers[0]
        assert worst < max(TOLERANCE[layer.k_bits], TOLERANCE[layer.v_bits])

    def _fits(self, pair, n):
        tokens = pair.tokens
        last = tokens.closed_after(n)
        kept = tokens.kept(last)
        others = {id(x) for p in self.live if p is not pair for x in p.tokens.held.values()}
        stay = {id(x) for b, x in tokens.held.items() if b in kept}
        fresh = sum(b >= tokens.closed for b in kept)
        return len(others | stay) + fresh <= self.pool.n_blocks

    @invariant()
    def bookkeeping_is_that_of_the_tokens(self):
        for pair in self.live:
            cache, tokens = pair.cache, pair.tokens
            assert cache.length == len(tokens)
            assert cache.closed == tokens.closed
            start = self.policy.n_sink + tokens.closed * BLOCK
            assert cache.recent_tokens == max(0, len(tokens) - start)
            reach = self.policy.n_sink + self.policy.n_pinned + self.policy.window
            assert cache.evicted_tokens == max(0, len(tokens) - reach)
            assert len(cache.pinned) + len(cache.ring) == len(tokens.held)

    @invariant()
    def a_slot_is_taken_for_each_block_that_somebody_holds(self):
        held = {id(x) for pair in self.live for x in pair.tokens.held.values()}
        if self.live:
            assert self.pool.n_free == self.pool.n_blocks - len(held)

    @invariant()
    def bytes_stay_within_the_policy(self):
        for pair in self.live:
            own = pair.cache.nbytes - self.pool.nbytes
            used = len(pair.tokens.held) * self.policy.layers[0].block_nbytes
            assert own == self.policy.fixed_nbytes
            assert own + used <= self.policy.nbytes
        if self.live:
            blocks = self.pool.n_blocks * self.policy.layers[0].block_nbytes
            assert self.pool.nbytes == blocks

    def teardown(self):
        for pair in self.live:
            pair.cache.free()
        if hasattr(self, "pool"):
            assert self.pool.n_free == self.pool.n_blocks


def run(max_examples, steps, **options):
    checks = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    run_state_machine_as_test(
        Sequences,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=checks,
            **options,
        ),
    )


def test_any_history_of_sequences_gives_the_attention_of_its_tokens():
    run(max_examples=100, steps=20, derandomize=True)


@pytest.mark.slow
def test_many_long_histories():
    run(max_examples=500, steps=40)
