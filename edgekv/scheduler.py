"""Continuous batching: the replies under way, a step of all of them at a time.

In one forward pass go the newest token of every reply that is being written and a piece of one
prompt that is being read (Orca, OSDI 2022, section 3; Sarathi-Serve, arXiv 2403.02310, section 4).
So a reply begins and ends between any two tokens, and a long prompt does not hold up the others.
Linear layers see all rows at once; attention runs through each reply's own cache.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import mlx.core as mx

from edgekv.cache.batch import BatchStep
from edgekv.cache.sequence import SequenceCache
from edgekv.cache.step import make_step
from edgekv.errors import DoesNotFit
from edgekv.events import Finished, FinishReason, Prefilled, Reply, Request
from edgekv.generate import PREFILL_CHUNK, chunks
from edgekv.grammar import Matcher
from edgekv.models.layers import Decoder
from edgekv.speech import Chooser, Drawn, Tally, Writer
from edgekv.tokenizer import Tokenizer

SHARED_CHUNK = 32
"""Tokens of a prompt computed in a step that others wait for: about two tokens' time on a CPU."""


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
        cache: SequenceCache,
        chooser: Chooser,
        writer: Writer,
    ) -> None:
        self.request, self.reply, self.cache = request, reply, cache
        self.chooser, self.writer = chooser, writer
        self.cached = cache.length
        self.tally = Tally(cache, len(request.prompt), cache.length)
        self.drawn: Drawn | None = None
        """The newest token: not read, and not in the cache."""
        self.logits: mx.array | None = None
        """Scores of a reply with a grammar, whose token is drawn when they are there."""

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


class Scheduler:
    """Owned by the engine's thread, which calls `step` until it is idle."""

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        open_cache: Callable[[Request], SequenceCache],
        matcher: Callable[[Request], Matcher | None],
        limits: Limits,
    ) -> None:
        self._model, self._tokenizer = model, tokenizer
        self._open_cache, self._matcher = open_cache, matcher
        self._limits = limits
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
        writing = [one for one in self._running if one.drawn is not None]
        newest = [(one, one.drawn) for one in writing if one.drawn is not None]
        reading = next((one for one in self._running if one.unread), None)
        going_on = [one for one in writing if not one.is_last]
        try:
            self._forward(going_on, reading, shared=bool(writing))
        except Exception as error:
            # The caches of this pass hold part of a token: none of its replies can go on.
            for one in {*going_on, *([] if reading is None else [reading])}:
                self._end(one, error)
        for one, drawn in newest:
            if one in self._running:
                self._guard(one, lambda one=one, drawn=drawn: self._read(one, drawn))  # type: ignore[misc]
        if reading is not None and reading in self._running:
            self._report_progress(reading)

    def _drop_cancelled(self) -> None:
        for waiting in [w for w in self._waiting if w[1].cancelled]:
            self._waiting.remove(waiting)
            waiting[1].put(_never_begun(waiting[0]))
        for one in [one for one in self._running if one.reply.cancelled]:
            self._finish(one, "cancelled")

    def _admit(self) -> None:
        while self._waiting and len(self._running) < self._limits.running:
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
        budget, needed = self._limits.kv_bytes, request.policy.nbytes
        if budget is None:
            return True
        if needed > budget:
            raise DoesNotFit(
                f"a window of {request.policy.window:,} tokens takes {needed:,} bytes of KV, over "
                f"the {budget:,} that all requests have together: raise --kv-budget"
            )
        return self.load.kv_bytes + needed <= budget

    def _begin(self, request: Request, reply: Reply) -> _Sequence:
        cache = self._open_cache(request)
        chooser = Chooser(request, self._model.vocab_size, self._matcher(request))
        writer = Writer(request, reply, self._tokenizer)
        self._prompt_tokens += len(request.prompt)
        return _Sequence(request, reply, cache, chooser, writer)

    def _forward(
        self, writing: Sequence[_Sequence], reading: _Sequence | None, shared: bool
    ) -> None:
        """Put the newest tokens and a piece of a prompt through the model, without waiting.

        A step that nobody else waits for takes a large piece, and is waited for, so that the
        memory of a long prompt's reading does not grow with it.
        """
        rows = [one.drawn.token for one in writing if one.drawn is not None]
        sequences = list(writing)
        if reading is not None:
            rows.append(mx.array(self._piece(reading, shared)))
            sequences.append(reading)
        if not rows:
            return
        steps = [make_step(one.cache, len(row)) for one, row in zip(sequences, rows, strict=True)]
        step = steps[0] if len(steps) == 1 else BatchStep(steps)
        hidden = self._model(mx.concatenate(rows), step)
        ends = [one for one in sequences if not one.unread]
        if ends:
            self._score(ends, hidden[[*self._last_rows(sequences, rows)]])
        arrays = [array for one in sequences for array in one.pending()]
        mx.async_eval(hidden, *arrays)
        if reading is not None and not shared:
            mx.eval(hidden, *arrays)

    def _piece(self, reading: _Sequence, shared: bool) -> list[int]:
        prompt, done = reading.request.prompt, reading.cache.length
        size = next(chunks(done, reading.unread, reading.cache.policy.n_sink, PREFILL_CHUNK))
        return list(prompt[done : done + (min(size, SHARED_CHUNK) if shared else size)])

    @staticmethod
    def _last_rows(sequences: Sequence[_Sequence], rows: Sequence[mx.array]) -> list[int]:
        """Each sequence's last row, where its prompt is read to the end."""
        last, found = -1, []
        for one, row in zip(sequences, rows, strict=True):
            last += len(row)
            if not one.unread:
                found.append(last)
        return found

    def _score(self, ends: Sequence[_Sequence], hidden: mx.array) -> None:
        logits = self._model.logits(hidden)
        for one, row in zip(ends, logits, strict=True):
            one.drawn = None
            one.take(row)

    def _read(self, one: _Sequence, drawn: Drawn) -> None:
        """Turn a token into events."""
        token, score = drawn.read()
        one.tally.token()
        self._completion_tokens += 1
        reason = one.writer.add(token, score)
        if reason is not None:
            self._finish(one, reason)

    def _report_progress(self, one: _Sequence) -> None:
        one.tally.measure()
        one.reply.put(Prefilled(one.cache.length, len(one.request.prompt)))
        # The next piece is another prompt's, if one waits: a short one is not held up by a long.
        self._running.remove(one)
        self._running.append(one)

    def _guard(self, one: _Sequence, work: Callable[[], None]) -> None:
        """A fault of one reply is that reply's alone."""
        try:
            work()
        except Exception as error:
            self._end(one, error)

    def _finish(self, one: _Sequence, reason: FinishReason) -> None:
        if one.writer.finish():
            reason = "stop"
        self._end(one, one.tally.finished(reason, one.writer.n_tokens, one.writer.stopped_by))

    def _end(self, one: _Sequence, event: Finished | Exception) -> None:
        self._running.remove(one)
        one.cache.free()
        one.reply.put(event)


def _never_begun(request: Request) -> Finished:
    """The end of a reply that was cancelled while it waited."""
    return Finished("cancelled", len(request.prompt), 0, 0, 0.0, 0.0, 0.0, 0, 0)
