"""uvicorn's HTTP/1.1, with the one error object for what is not HTTP, and a time for headers."""

import json
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from edgekv.server.errors import ApiError

HEADER_SECONDS = 20.0
"""Time for a whole request head, from a connection's start or the answer before."""


class Protocol(H11Protocol):
    """One connection."""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - uvicorn's own type
        super().connection_made(transport)
        self._waiting = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.cancel()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._waiting.cancel()
        elif self._waiting.cancelled():
            self._waiting = self.loop.call_later(HEADER_SECONDS, self._give_up)

    def _give_up(self) -> None:
        """Close a connection that is too slow to ask."""
        if not self.transport.is_closing():
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """What h11 could not read as a request, answered in JSON."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self.cycle.response_started:
                self.transport.close()
                return
            # The rest of a body that was under way is broken: the application may not answer.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        fault = ApiError(400, "invalid_request_error", "invalid_http", f"not valid HTTP: {msg}")
        content = json.dumps(fault.body()).encode()
        head = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(content)).encode()),
            (b"connection", b"close"),
        ]
        reply = h11.Response(status_code=fault.status, headers=head, reason=b"Bad Request")
        for event in (reply, h11.Data(data=content), h11.EndOfMessage()):
            self.transport.write(self.conn.send(event))
        self.transport.close()
