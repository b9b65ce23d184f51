"""The server on its socket, from start to a clean end."""

import asyncio
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from edgekv.errors import EdgekvError
from edgekv.server.protocol import Protocol
from edgekv.server.service import Service

GRACE_SECONDS = 5
"""Time that answers under way have to end once the server is asked to."""


class _Server(uvicorn.Server):
    """uvicorn's, which leaves the process to its caller: a signal ends the server alone."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            # Python lets the main thread alone have handlers.
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._service.shut_down()
        await super().shutdown(sockets)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises EdgekvError.

    Who connects before the server runs waits for it.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        # By its protocol asyncio knows TCP, and turns off the delay that costs 40 ms an answer.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        raise EdgekvError(
            f"cannot listen on {host}:{port}: {error.strerror or error}; choose another --port"
        ) from None
    return listener


def make_server(app: ASGIApp, service: Service, log_level: str) -> uvicorn.Server:
    """A server that is not running yet."""
    config = uvicorn.Config(
        app,
        http=Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level=log_level,
        server_header=False,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    return _Server(config, service)


def listen(app: ASGIApp, service: Service, listener: socket.socket, log_level: str) -> None:
    """Serve until SIGINT or SIGTERM."""
    asyncio.run(make_server(app, service, log_level).serve([listener]))
