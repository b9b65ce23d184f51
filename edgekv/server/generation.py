"""One answer for one client: the engine's events as parts, on the server's event loop."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from edgekv.engine import Event, Finished, Notice, Prefilled, Reply, Request, Text, TokenScore
from edgekv.errors import EdgekvError
from edgekv.server.errors import ApiError, from_fault, timed_out
from edgekv.server.messages import Message
from edgekv.server.output import Content, Part, Reasoning, Splitter
from edgekv.server.recording import Recording
from edgekv.server.tools import ToolCall, ToolUse

log = logging.getLogger("edgekv.server")

FinishReason = Literal["stop", "length", "tool_calls"]
Ending = Literal["cancelled", "deadline", "shutdown"]


@dataclass(frozen=True)
class Work:
    """An answer to make. thinks, thinking: as for Splitter; seconds: until it is given up."""

    id: str
    created: int
    request: Request
    tools: ToolUse | None = None
    thinks: bool = False
    thinking: bool = False
    seconds: float | None = None
    progress: bool = False
    recording: Recording | None = None
    messages: Sequence[Message] = ()


@dataclass(frozen=True)
class Delta:
    """A part of the answer, with the scores of its tokens where they were asked for."""

    part: Part
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True)
class End:
    """The end of an answer. detail: eos, stop, max_tokens, tool_calls or cancelled."""

    reason: FinishReason
    detail: str
    finished: Finished
    reasoning_tokens: int


Step = Delta | Prefilled | End


class LoopReply(Reply):
    """A reply whose events reach an asyncio loop instead of a waiting thread."""

    def __init__(self) -> None:
        super().__init__()
        self._loop = asyncio.get_running_loop()
        self._arrived: asyncio.Queue[Event | BaseException] = asyncio.Queue()

    def put(self, event: Event | BaseException) -> None:
        """Called on the engine's thread."""
        try:
            self._loop.call_soon_threadsafe(self._arrived.put_nowait, event)
        except RuntimeError:
            # The loop is closed: nobody listens any more.
            self.cancel()

    async def next(self) -> Event:
        """The next event; raises the fault that ended the reply."""
        event = await self._arrived.get()
        if isinstance(event, BaseException):
            raise event
        return event


class Generation:
    """A reply under way. Iterate over `steps`; whatever ends the iteration ends the reply."""

    def __init__(
        self, work: Work, reply: LoopReply, on_close: "Callable[[Generation], None]"
    ) -> None:
        self.work = work
        self._reply, self._on_close = reply, on_close
        self._begun = time.perf_counter()
        self.first_s: float | None = None
        """Seconds from the request to the first text, the wait in the queue included."""
        self.finished: Finished | None = None
        self._is_open = True
        self._ending: Ending | None = None
        self._splitter = Splitter(work.tools, work.thinks, work.thinking)
        self._scores: list[TokenScore] = []
        self._calls = 0
        self._closed = False
        self._said: list[str] = []
        self._undecided = self._reasoning_tokens = 0

    def cancel(self, why: Ending) -> None:
        """Stop within a token; `cancelled` gives what there is, the others are faults."""
        self._ending = self._ending or why
        self._reply.cancel()

    def close(self) -> None:
        """Stop what is under way and give the place free; may be called more than once."""
        if self._is_open:
            self._is_open = False
            self._reply.cancel()
            self._on_close(self)

    async def steps(self) -> AsyncIterator[Step]:
        """Raises ApiError."""
        timer = self._timer()
        try:
            while True:
                event = await self._next()
                if isinstance(event, Finished):
                    self.finished = event
                    for part in self._splitter.finish():
                        if not self._closed:
                            yield self._delta(part)
                    await self._record(event)
                    yield self._end(event)
                    return
                for step in self._taken(event):
                    yield step
        finally:
            self.close()
            if timer is not None:
                timer.cancel()

    async def _record(self, finished: Finished) -> None:
        """Keep the answer, before its client is told that it is whole."""
        recording = self.work.recording
        if recording is None:
            return
        text = "".join(self._said)
        try:
            await asyncio.to_thread(recording.write, self.work.messages, text, finished.reason)
        except EdgekvError as fault:
            log.warning("%s is not kept: %s", self.work.id, fault)

    def _timer(self) -> asyncio.TimerHandle | None:
        if self.work.seconds is None:
            return None
        return asyncio.get_running_loop().call_later(self.work.seconds, self.cancel, "deadline")

    async def _next(self) -> Event:
        try:
            return await self._reply.next()
        except EdgekvError as fault:
            raise from_fault(fault) from fault

    def _taken(self, event: Event) -> list[Step]:
        if isinstance(event, Notice):
            log.warning("%s", event.text)
        if not isinstance(event, Text):
            return [event] if isinstance(event, Prefilled) else []
        if self.first_s is None:
            self.first_s = time.perf_counter() - self._begun
        self._scores.extend(event.scores)
        before = self._splitter.thinking
        parts = self._splitter.add(event.text)
        self._undecided += event.n_tokens
        if not self._splitter.undecided:
            thought = any(isinstance(part, Reasoning) for part in parts)
            if before or thought or self._splitter.thinking:
                self._reasoning_tokens += self._undecided
            self._undecided = 0
        deltas: list[Step] = []
        for part in parts:
            if self._closed:
                break
            deltas.append(self._delta(part))
        return deltas

    def _delta(self, part: Part) -> Delta:
        if isinstance(part, ToolCall):
            self._calls += 1
            if self.work.tools is not None and not self.work.tools.parallel:
                self._closed = True
                self._reply.cancel()
        if isinstance(part, Content):
            self._said.append(part.text)
        scores: tuple[TokenScore, ...] = ()
        if isinstance(part, Content | Reasoning):
            scores, self._scores = tuple(self._scores), []
        return Delta(part, scores)

    def _end(self, finished: Finished) -> End:
        if finished.reason == "cancelled":
            self._raise_fault()
        reason: FinishReason = "stop"
        if finished.reason == "length":
            reason, detail = "length", "max_tokens"
        elif self._calls:
            reason, detail = "tool_calls", "tool_calls"
        elif finished.reason == "cancelled":
            detail = "cancelled"
        else:
            detail = "eos" if finished.stop is None else "stop"
        return End(reason, detail, finished, self._reasoning_tokens)

    def _raise_fault(self) -> None:
        """Raises ApiError where the reply was not to end here."""
        if self._ending == "deadline":
            raise timed_out(f"no answer within the {self.work.seconds:g} seconds asked for")
        if self._ending == "shutdown":
            raise ApiError(503, "server_error", "shutting_down", "the server is shutting down")
