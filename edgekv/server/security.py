"""Who may ask: the names this server answers to, the pages that may call it, and the key.

A server on loopback can be reached by any web page in the user's browser, through a name that the
page's owner points at 127.0.0.1; the Host header tells it apart. Origins are refused unless they
are listed or the server's own.
"""

import hmac
import ipaddress
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgekv.server.errors import ApiError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})
OPEN_PATHS = frozenset({"/", "/health", "/ready"})
"""What answers without a key: nothing there is a secret."""

METHODS = "GET, POST, DELETE, OPTIONS"
ALLOWED_HEADERS = "authorization, content-type, x-api-key, anthropic-version, anthropic-beta"


@dataclass(frozen=True)
class Access:
    """api_key: None where none is needed. hosts: names besides loopback's, as in a Host header.

    any_address: answer to every IP address, for a server bound to all of them. origins: web pages
    that may call, e.g. "https://app.example".
    """

    api_key: str | None = None
    hosts: frozenset[str] = frozenset()
    any_address: bool = False
    origins: frozenset[str] = frozenset()

    def check(self, path: str, headers: Mapping[str, str], preflight: bool) -> None:
        """Raises ApiError (401, 403)."""
        host = headers.get("host", "")
        if not self._knows(_name(host)):
            raise _forbidden(f"this server does not answer to the host {host[:100]!r}")
        origin = headers.get("origin")
        if origin is not None and not self.shares(origin, host):
            raise _forbidden(f"the origin {origin[:100]!r} may not call this server")
        if self.api_key is not None and not preflight and path not in OPEN_PATHS:
            self._check_key(headers, self.api_key)

    def shares(self, origin: str, host: str) -> bool:
        """Whether a page of that origin may read the answer."""
        return origin in self.origins or origin in (f"http://{host}", f"https://{host}")

    def _knows(self, name: str) -> bool:
        if name in LOOPBACK or name in self.hosts:
            return True
        return self.any_address and _is_address(name)

    def _check_key(self, headers: Mapping[str, str], key: str) -> None:
        given = headers.get("x-api-key", "")
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            given = token.strip()
        if not hmac.compare_digest(given.encode(), key.encode()):
            raise ApiError(
                401,
                "authentication_error",
                "invalid_api_key",
                "a valid key is needed: Authorization: Bearer <key>",
                headers={"WWW-Authenticate": "Bearer"},
            )


def _forbidden(message: str) -> ApiError:
    return ApiError(403, "permission_error", "host_not_allowed", message)


def _name(host: str) -> str:
    """A Host header without its port, in lower case."""
    name, colon, port = host.strip().lower().rpartition(":")
    return name if colon and port.isdecimal() and not name.endswith(":") else host.strip().lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


class Gate:
    """The outermost layer: checks access, answers preflights, names every answer by an id."""

    def __init__(self, app: ASGIApp, access: Access, responded: Callable[[str, int], None]) -> None:
        self._app = app
        self._access = access
        self._responded = responded

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = dict(scope)
        if len(scope["path"]) > 1:
            scope["path"] = scope["path"].rstrip("/") or "/"
        scope["request_id"] = f"req_{secrets.token_hex(12)}"
        headers = Headers(scope=scope)
        signed = self._signed(scope, headers, send)
        answer = self._refusal(scope, headers)
        await (answer or self._app)(scope, receive, signed)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        origin = headers.get("origin")
        preflight = scope["method"] == "OPTIONS" and origin is not None
        try:
            self._access.check(scope["path"], headers, preflight)
        except ApiError as fault:
            return JSONResponse(fault.body(scope["path"]), fault.status, fault.headers)
        return Response(status_code=204) if preflight else None

    def _signed(self, scope: Scope, headers: Headers, send: Send) -> Send:
        origin, host = headers.get("origin"), headers.get("host", "")

        async def signed(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = scope.get("route")
                self._responded(route.path if route else "none", message["status"])
                added = MutableHeaders(scope=message)
                added["X-Request-Id"] = scope["request_id"]
                added["X-Content-Type-Options"] = "nosniff"
                if origin is not None and self._access.shares(origin, host):
                    added["Access-Control-Allow-Origin"] = origin
                    added["Access-Control-Allow-Methods"] = METHODS
                    added["Access-Control-Allow-Headers"] = ALLOWED_HEADERS
                    added.add_vary_header("Origin")
            await send(message)

        return signed
