"""Answers sent as they are made (server-sent events), or whole; either ends with its client."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from edgekv.server.errors import ApiError, internal
from edgekv.server.generation import Generation, Step

log = logging.getLogger("edgekv.server")

KEEPALIVE_SECONDS = 15.0
SEND_SECONDS = 60.0
"""Time that a client has to take a piece of a stream."""

T = TypeVar("T")


class Shape(Protocol):
    """How an API writes a stream: text of events for each step. Used for one answer."""

    def step(self, step: Step) -> Iterator[str]: ...

    def fault(self, fault: ApiError) -> Iterator[str]: ...


def event(value: Mapping[str, Any], name: str | None = None) -> str:
    """One event."""
    head = "" if name is None else f"event: {name}\n"
    return f"{head}data: {json.dumps(value, separators=(',', ':'))}\n\n"


DONE = "data: [DONE]\n\n"
KEEPALIVE = ": keepalive\n\n"


async def until_gone(receive: Receive, work: Awaitable[T]) -> T:
    """What the work gives, unless the client leaves first. Raises ApiError (499)."""
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ApiError(499, "timeout_error", "client_closed_request", "the client left")
    finally:
        for one in (task, gone):
            one.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def collect(request: Request, generation: Generation) -> list[Step]:
    """All steps of an answer. Raises ApiError."""

    async def all_steps() -> list[Step]:
        return [step async for step in generation.steps()]

    try:
        return await until_gone(request.receive, all_steps())
    finally:
        generation.close()


async def open_stream(request: Request, generation: Generation, shape: Shape) -> Response:
    """A stream that begins with the first step, so that an early fault still has its status."""
    steps = _timed(generation.steps(), KEEPALIVE_SECONDS)
    try:
        first = await until_gone(request.receive, anext(steps))
    except BaseException:
        generation.close()
        raise
    return EventStream(_frames(first, steps, shape, request.scope["request_id"]), generation)


async def _timed(steps: AsyncIterator[Step], seconds: float) -> AsyncIterator[Step | None]:
    """The steps, and None whenever that many seconds pass without one."""
    pending: asyncio.Future[Step] | None = None
    try:
        while True:
            pending = pending or asyncio.ensure_future(anext(steps))
            done, _ = await asyncio.wait({pending}, timeout=seconds)
            if not done:
                yield None
                continue
            finished, pending = pending, None
            try:
                step = finished.result()
            except StopAsyncIteration:
                return
            yield step
    finally:
        if pending is not None:
            pending.cancel()


async def _frames(
    first: Step | None, steps: AsyncIterator[Step | None], shape: Shape, request_id: str
) -> AsyncIterator[str]:
    """The text of a stream; a fault in it is an event, for the status is sent already."""
    try:
        for frame in _frame(first, shape):
            yield frame
        async for step in steps:
            for frame in _frame(step, shape):
                yield frame
    except ApiError as fault:
        for frame in shape.fault(fault):
            yield frame
    except Exception:
        log.exception("%s failed in its stream", request_id)
        for frame in shape.fault(internal(request_id)):
            yield frame


def _frame(step: Step | None, shape: Shape) -> Iterator[str]:
    return iter((KEEPALIVE,)) if step is None else shape.step(step)


class EventStream(Response):
    """Sends frames until they end, the client leaves, or it takes none for too long."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[str], generation: Generation) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._frames, self._generation = frames, generation

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await until_gone(receive, self._send(send))
        except (ApiError, TimeoutError, OSError):
            log.info("%s: the client left its stream", scope["request_id"])
        finally:
            self._generation.close()

    async def _send(self, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async for frame in self._frames:
            body = {"type": "http.response.body", "body": frame.encode(), "more_body": True}
            await asyncio.wait_for(send(body), SEND_SECONDS)
        await send({"type": "http.response.body", "body": b"", "more_body": False})
