"""Every fault that a client can meet, as a status and the one error object.

Shape: `{"error": {"message", "type", "param", "code"}}`, as OpenAI's API reference has it.
"""

from collections.abc import Mapping
from typing import Any

from edgekv.errors import DoesNotFit, EdgekvError, InvalidValue, TemplateError, UnsupportedModel
from edgekv.sessions import SessionInUse, SessionNotFound, StoreUnavailable

RETRY = {"Retry-After": "2"}


class ApiError(Exception):
    """A request that is refused or that failed: one message for the client, never a traceback."""

    def __init__(
        self,
        status: int,
        kind: str,
        code: str,
        message: str,
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.kind, self.code = status, kind, code
        self.message, self.param = message, param
        self.headers = dict(headers or {})

    def body(self, path: str = "") -> dict[str, Any]:
        """The error object; Anthropic's clients look for a `type` beside it."""
        error = {
            "message": self.message,
            "type": self.kind,
            "param": self.param,
            "code": self.code,
        }
        outer = {"type": "error"} if path.startswith("/v1/messages") else {}
        return outer | {"error": error}


def invalid(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    """A field that cannot be used."""
    return ApiError(400, "invalid_request_error", code, message, param)


def unsupported(message: str, param: str | None = None) -> ApiError:
    """A field that means something, but not for this model or this server."""
    return invalid(message, param, "unsupported")


def not_found(message: str, code: str, param: str | None = None) -> ApiError:
    return ApiError(404, "not_found_error", code, message, param)


def overloaded(message: str) -> ApiError:
    return ApiError(503, "server_error", "overloaded", message, headers=RETRY)


def internal(request_id: str) -> ApiError:
    """A fault of the server's own; what it was is in the log, under the same id."""
    return ApiError(
        500, "server_error", "internal", f"the server failed on this request ({request_id})"
    )


def timed_out(message: str, status: int = 504) -> ApiError:
    return ApiError(status, "timeout_error", "timeout", message)


def from_fault(fault: EdgekvError) -> ApiError:
    """The same fault as a client sees it."""
    text = str(fault)
    match fault:
        case SessionNotFound():
            return not_found(text, "session_not_found")
        case SessionInUse():
            return ApiError(409, "conflict_error", "session_busy", text, "edgekv.session_id")
        case StoreUnavailable():
            return ApiError(503, "server_error", "store_unavailable", text, headers=RETRY)
        case TemplateError():
            return invalid(text, "messages", "template_error")
        case UnsupportedModel():
            return unsupported(text)
        case InvalidValue():
            return invalid(text)
        case DoesNotFit():
            return ApiError(503, "server_error", "out_of_memory", text, headers=RETRY)
    return ApiError(500, "server_error", "internal", text)
