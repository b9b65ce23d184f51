"""Continuous batching: the replies under way, a step of all of them at a time.

A step is a pass of the newest token of every reply that is being written, and some layers of a
pass of a piece of one prompt that is being read (Orca, OSDI 2022, section 3; Sarathi-Serve, arXiv
2403.02310, section 4). So a reply begins and ends between any two tokens, and a long prompt does
not hold up the others. Linear layers see all rows at once; attention runs through each reply's own
cache.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx

from edgekv.cache.policy import CachePolicy
from edgekv.errors import DoesNotFit
from edgekv.events import Finished, FinishReason, Notice, Prefilled, Reply, Request
from edgekv.generate import chunks, forward, forward_by_layer, forward_each, longest_chunk
from edgekv.grammar import Matcher
from edgekv.metal.device import physical_memory
from edgekv.metal.tile import BLOCK
from edgekv.models.layers import Decoder
from edgekv.sessions.reuse import Reuse, Tracked
from edgekv.speech import Chooser, Drawn, Tally, Writer
from edgekv.tokenizer import Tokenizer


@dataclass(frozen=True)
class Limits:
    """How many replies are written at a time, and the bytes of KV they may have together."""

    running: int = 4
    kv_bytes: int | None = None


@dataclass(frozen=True)
class Load:
    """What the engine is doing: replies, bytes of KV they hold, and tokens since it started."""

    running: int
    waiting: int
    kv_bytes: int
    prompt_tokens: int
    completion_tokens: int


class _Sequence:
    """A reply under way."""

    def __init__(
        self,
        request: Request,
        reply: Reply,
        tracked: Tracked,
        chooser: Chooser,
        writer: Writer,
    ) -> None:
        self.request, self.reply = request, reply
        self.tracked, self.cache = tracked, tracked.cache
        self.chooser, self.writer = chooser, writer
        n_cached = tracked.cached_tokens
        self.tally = Tally(reply.asked, tracked.cache, len(request.prompt), n_cached)
        self.drawn: Drawn | None = None
        """The newest token: not read, and not in the cache."""
        self.logits: mx.array | None = None
        """Scores of a reply with a grammar, whose token is drawn when they are there."""
        self.layers: Iterator[mx.array] | None = None
        """What is left of a pass of a piece of the prompt, which is in the cache in part."""
        self.hidden: mx.array

    @property
    def unread(self) -> int:
        """Tokens of the prompt that are not in the cache yet."""
        return max(0, len(self.request.prompt) - self.cache.length)

    @property
    def is_last(self) -> bool:
        """Whether the newest token is the last one asked for."""
        return self.writer.n_tokens + 1 >= self.request.max_tokens

    def take(self, logits: mx.array) -> None:
        """The scores behind the newest token in the cache."""
        if self.chooser.matcher is None:
            self.drawn = self.chooser.draw(logits)
        else:
            self.logits = logits

    def draw_late(self) -> None:
        """Draw the token of a grammar, for which the host must see the one before."""
        if self.logits is not None:
            self.drawn, self.logits = self.chooser.draw(self.logits), None

    def pending(self) -> list[mx.array]:
        """What a step has made lazily, to be computed."""
        made = [] if self.drawn is None else list(self.drawn.arrays())
        made += [] if self.logits is None else [self.logits]
        return [*made, *self.cache.arrays()]


SHARED_PIECE = BLOCK
"""Tokens of a prompt in a pass that others wait for: a layer of it is about a token's time."""

SHARE = 0.75
"""How long a prompt is read before the others' next tokens, in passes of those."""


class Scheduler:
    """Owned by the engine's thread, which calls `step` until it is idle."""

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        reuse: Reuse,
        matcher: Callable[[Request], Matcher | None],
        notices: Callable[[], list[str]],
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._reuse, self._matcher = reuse, matcher
        self._notices = notices
        self.limits = Limits()
        self._waiting: deque[tuple[Request, Reply]] = deque()
        self._running: list[_Sequence] = []
        self._prompt_tokens = self._completion_tokens = 0

    @property
    def idle(self) -> bool:
        return not self._waiting and not self._running

    @property
    def load(self) -> Load:
        """May be read from any thread."""
        running = list(self._running)
        return Load(
            len(running),
            len(self._waiting),
            sum(one.request.policy.nbytes for one in running),
            self._prompt_tokens,
            self._completion_tokens,
        )

    def add(self, request: Request, reply: Reply) -> None:
        """Queue a request."""
        self._waiting.append((request, reply))

    def cancel_all(self) -> None:
        """End every reply, those that wait included."""
        for _, reply in self._waiting:
            reply.cancel()
        for one in self._running:
            one.reply.cancel()
        self._drop_cancelled()

    def step(self) -> None:
        """One forward pass, and the events that come of the one before."""
        self._drop_cancelled()
        self._admit()
        for one in list(self._running):
            self._guard(one, one.draw_late)
        newest = [(one, one.drawn) for one in self._running if one.drawn is not None]
        reading = self._next_to_read()
        begun = time.perf_counter()
        self._together([one for one, _ in newest if not one.is_last], self._write_on)
        for one, drawn in newest:
            self._guard(one, partial(self._read, one, drawn))
        written = time.perf_counter()
        if reading is not None and reading in self._running:
            seconds = SHARE * (written - begun) if newest else math.inf
            self._together([reading], lambda _: self._read_on(reading, seconds))

    def _together(
        self, sequences: Sequence[_Sequence], work: Callable[[Sequence[_Sequence]], None]
    ) -> None:
        """A pass of some replies; where it fails, their caches hold a part of a token."""
        try:
            work(sequences)
        except Exception as error:
            for one in sequences:
                self._end(one, error)

    def _drop_cancelled(self) -> None:
        for waiting in [w for w in self._waiting if w[1].cancelled]:
            self._waiting.remove(waiting)
            waiting[1].put(_never_begun(waiting[0]))
        for one in [one for one in self._running if one.reply.cancelled]:
            self._guard(one, partial(self._finish, one, "cancelled"))

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self.limits.running:
            request, reply = self._waiting[0]
            try:
                if not self._has_room(request):
                    return
                self._waiting.popleft()
                self._running.append(self._begin(request, reply))
            except Exception as error:
                if self._waiting and self._waiting[0][1] is reply:
                    self._waiting.popleft()
                reply.put(error)

    def _has_room(self, request: Request) -> bool:
        """Raises DoesNotFit for a request that never will have."""
        budget, needed = self.limits.kv_bytes, request.policy.nbytes
        if budget is None:
            return True
        if needed > budget:
            raise DoesNotFit(
                f"a window of {request.policy.window:,} tokens takes {needed:,} bytes of KV, over "
                f"the {budget:,} that all requests have together: raise --kv-budget"
            )
        return self.load.kv_bytes + needed <= budget

    def _begin(self, request: Request, reply: Reply) -> _Sequence:
        chooser = Chooser(request, self._model.vocab_size, self._matcher(request))
        writer = Writer(request, reply, self._tokenizer)
        _check_memory(request.policy)
        tracked = self._reuse.begin(request.prompt, request.policy, request.session)
        self._tell(reply)
        self._prompt_tokens += len(request.prompt)
        return _Sequence(request, reply, tracked, chooser, writer)

    def _write_on(self, writing: Sequence[_Sequence]) -> None:
        """Put the newest tokens through the model, without waiting where the device allows it."""
        if not writing:
            return
        tokens = [one.drawn.token for one in writing if one.drawn is not None]
        hidden = forward_each(self._model, [one.cache for one in writing], tokens)
        for one, logits in zip(writing, self._model.logits(hidden), strict=True):
            one.drawn = None
            one.take(logits)
        mx.async_eval(hidden, *(array for one in writing for array in one.pending()))

    def _next_to_read(self) -> _Sequence | None:
        """The reply whose prompt is read now: one that is in the middle of a pass, or the next."""
        begun = (one for one in self._running if one.layers is not None)
        return next(begun, None) or next((one for one in self._running if one.unread), None)

    def _read_on(self, reading: _Sequence, seconds: float) -> None:
        """Put a piece of a prompt through the model, layer by layer, until the time is over.

        It is waited for, so that the memory of a long prompt's reading does not grow with it.
        """
        if reading.layers is None:
            reading.layers = self._begin_piece(reading, shared=math.isfinite(seconds))
        begun = last = time.perf_counter()
        for hidden in reading.layers:
            reading.hidden = hidden
            mx.eval(hidden)
            now = time.perf_counter()
            # Half of another layer: as often too little as too much.
            if now + (now - last) / 2 > begun + seconds:
                return
            last = now
        if time.perf_counter() > begun + seconds / 2:
            # What follows, keeping the blocks above all, has a turn of its own.
            return
        reading.layers = None
        if not reading.unread:
            reading.take(self._model.logits(reading.hidden[-1:])[0])
        mx.eval(reading.pending())
        if not reading.unread:
            reading.tally.prefilled()
        self._report_progress(reading)

    def _begin_piece(self, reading: _Sequence, shared: bool) -> Iterator[mx.array]:
        prompt, done = reading.request.prompt, reading.cache.length
        policy = reading.cache.policy
        size = next(chunks(done, reading.unread, policy.n_sink, longest_chunk(policy)))
        tokens = mx.array(prompt[done : done + (min(size, SHARED_PIECE) if shared else size)])
        if len(tokens) == 1:
            return iter([forward(self._model, reading.cache, tokens)])
        return forward_by_layer(self._model, reading.cache, tokens)

    def _read(self, one: _Sequence, drawn: Drawn) -> None:
        """Turn a token into events."""
        token, score = drawn.read()
        one.tally.token()
        one.tracked.tokens.append(token)
        self._reuse.keep(one.tracked)
        self._completion_tokens += 1
        reason = one.writer.add(token, score)
        if reason is not None:
            self._finish(one, reason)

    def _report_progress(self, one: _Sequence) -> None:
        one.tally.measure()
        self._reuse.keep(one.tracked)
        one.reply.put(Prefilled(one.cache.length, len(one.request.prompt)))
        # The next piece is another prompt's, if one waits: a short one is not held up by a long.
        self._running.remove(one)
        self._running.append(one)

    def _tell(self, reply: Reply) -> None:
        """Pass on what the user should be told."""
        for text in self._notices():
            reply.put(Notice(text))

    def _guard(self, one: _Sequence, work: Callable[[], None]) -> None:
        """A fault of one reply is that reply's alone."""
        if one not in self._running:
            return
        try:
            work()
        except Exception as error:
            self._end(one, error)

    def _finish(self, one: _Sequence, reason: FinishReason) -> None:
        if one.writer.finish():
            reason = "stop"
        finished = one.tally.finished(reason, one.writer)
        if one.layers is None:
            self._reuse.end(one.tracked)
        self._tell(one.reply)
        self._end(one, finished)

    def _end(self, one: _Sequence, event: Finished | Exception) -> None:
        if one in self._running:
            self._running.remove(one)
        one.reply.put(event)


def _check_memory(policy: CachePolicy) -> None:
    """Refuse a cache that this machine cannot hold beside the model, before it is allocated."""
    room = physical_memory() - mx.get_active_memory()
    if policy.nbytes > room:
        raise DoesNotFit(
            f"a window of {policy.window:,} tokens takes {policy.nbytes:,} bytes of KV, but "
            f"{max(0, room):,} are left beside the model: lower --window or --kv-bits"
        )


def _never_begun(request: Request) -> Finished:
    """The end of a reply that was cancelled while it waited."""
    return Finished("cancelled", len(request.prompt), 0, 0, 0.0, 0.0, 0.0, 0, 0)
