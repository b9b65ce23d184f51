"""Reading a request's body: no larger than allowed, and in the time allowed."""

import asyncio

from starlette.requests import ClientDisconnect, Request

from edgekv.server.errors import ApiError, timed_out
from edgekv.server.fields import Fields, parse_json

MAX_BODY = 8 << 20
"""Bytes of a request at the most."""

BODY_SECONDS = 30.0
"""Time that a client has to send one."""


async def read_fields(request: Request) -> Fields:
    """The body as fields. Raises ApiError (400, 408, 413, 415)."""
    kind = request.headers.get("content-type", "").lower()
    if kind.startswith("multipart/"):
        raise ApiError(
            415, "invalid_request_error", "unsupported_media_type", "send JSON, not multipart"
        )
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return parse_json(await _read(request))
    except TimeoutError:
        raise timed_out(f"the body was not sent within {BODY_SECONDS:g} seconds", 408) from None
    except ClientDisconnect:
        raise ApiError(499, "timeout_error", "client_closed_request", "the client left") from None


async def _read(request: Request) -> bytes:
    declared = request.headers.get("content-length", "0")
    if declared.isdecimal() and int(declared[:20]) > MAX_BODY:
        raise _too_large()
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > MAX_BODY:
            raise _too_large()
        parts.append(part)
    return b"".join(parts)


def _too_large() -> ApiError:
    return ApiError(
        413,
        "invalid_request_error",
        "body_too_large",
        f"the body is over the limit of {MAX_BODY:,} bytes",
    )
