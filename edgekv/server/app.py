"""The routes, and what becomes of a fault."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from edgekv.cache.policy import describe
from edgekv.errors import EdgekvError
from edgekv.server.anthropic import count_tokens, messages
from edgekv.server.chat import chat
from edgekv.server.completions import completions
from edgekv.server.errors import ApiError, from_fault, internal, not_found
from edgekv.server.responses import responses
from edgekv.server.security import Access, Gate
from edgekv.server.service import Service
from edgekv.server.sessions import delete_session, session, sessions

log = logging.getLogger("edgekv.server")

Endpoint = Callable[[Request], Awaitable[Response]]

NOT_BUILT = (
    "/v1/embeddings",
    "/v1/moderations",
    "/v1/audio/speech",
    "/v1/audio/transcriptions",
    "/v1/audio/translations",
    "/v1/images/generations",
    "/v1/rerank",
    "/v1/files",
    "/v1/batches",
)
"""Routes that clients know of and that this server answers 501 on, which says more than 404."""


def make_app(service: Service, access: Access) -> ASGIApp:
    """The server without its sockets."""
    routes = [
        _route("/", status_page, "GET"),
        _route("/health", health, "GET"),
        _route("/ready", ready, "GET"),
        _route("/metrics", metrics, "GET"),
        _route("/v1/cache/stats", cache_stats, "GET"),
        _route("/v1/models", models, "GET"),
        _route("/v1/models/{name:path}", model, "GET"),
        _route("/v1/sessions", sessions, "GET"),
        _route("/v1/sessions/{name}", session, "GET"),
        _route("/v1/sessions/{name}", delete_session, "DELETE"),
        _route("/v1/requests/{name}/cancel", cancel, "POST"),
        _route("/v1/chat/completions", chat, "POST"),
        _route("/v1/completions", completions, "POST"),
        _route("/v1/responses", responses, "POST"),
        _route("/v1/messages", messages, "POST"),
        _route("/v1/messages/count_tokens", count_tokens, "POST"),
        *(Route(path, not_built, methods=["GET", "POST"]) for path in NOT_BUILT),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            ApiError: _refused,
            HTTPException: _no_route,
            EdgekvError: _faulty,
        },
    )
    app.router.redirect_slashes = False
    app.state.service = service
    return Gate(app, access, service.metrics.responded)


def _route(path: str, endpoint: Endpoint, method: str) -> Route:
    async def answered(request: Request) -> Response:
        try:
            return await endpoint(request)
        except (ApiError, EdgekvError):
            raise
        except Exception:
            # Not left to Starlette, which closes the connection behind its answer.
            request_id = request.scope["request_id"]
            log.exception("%s failed", request_id)
            return await _refused(request, internal(request_id))

    return Route(path, answered, methods=[method])


async def _refused(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, ApiError)
    if fault.status == 499:
        log.info("%s: the client left", request.scope["request_id"])
    return JSONResponse(fault.body(request.url.path), fault.status, fault.headers)


async def _faulty(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, EdgekvError)
    return await _refused(request, from_fault(fault))


async def _no_route(request: Request, fault: Exception) -> Response:
    assert isinstance(fault, HTTPException)
    path, method = request.url.path[:200], request.method
    if fault.status_code == 405:
        refusal = ApiError(
            405, "invalid_request_error", "method_not_allowed", f"{path} does not take {method}"
        )
        refusal.headers = dict(fault.headers or {})
    else:
        refusal = not_found(f"there is no {path}", "route_not_found")
    return await _refused(request, refusal)


async def not_built(request: Request) -> Response:
    """A route of OpenAI's that is not for this kind of server."""
    raise ApiError(
        501, "not_supported", "not_supported", f"{request.url.path} is not built: chat is"
    )


async def health(request: Request) -> Response:
    """Whether the process lives."""
    return JSONResponse({"status": "ok"})


async def ready(request: Request) -> Response:
    """Whether it takes requests."""
    service: Service = request.app.state.service
    if service.closing:
        raise ApiError(503, "server_error", "shutting_down", "the server is shutting down")
    return JSONResponse({"status": "ready", "model": service.settings.name})


async def metrics(request: Request) -> Response:
    """For Prometheus."""
    service: Service = request.app.state.service
    text = service.metrics.text(service.engine.load, service.in_flight, service.settings.kv_budget)
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4")


async def cache_stats(request: Request) -> Response:
    """The cache's policy, what is held now, and counts since the start."""
    service: Service = request.app.state.service
    settings, load = service.settings, service.engine.load
    body = {
        "model": settings.name,
        "policy": describe(settings.policy),
        "bytes_per_request": settings.policy.nbytes,
        "budget_bytes": settings.kv_budget,
        "held_bytes": load.kv_bytes,
        "requests": {
            "running": load.running,
            "waiting": load.waiting,
            "in_flight": service.in_flight,
            "most_running": settings.running,
            "most_waiting": settings.queue,
        },
        "prompt_tokens": load.prompt_tokens,
        "completion_tokens": load.completion_tokens,
    }
    return JSONResponse(body | service.metrics.summary())


def _model(service: Service) -> dict[str, Any]:
    policy, shape = service.settings.policy, service.engine.loaded.shape
    return {
        "id": service.settings.name,
        "object": "model",
        "created": service.started,
        "owned_by": "edgekv",
        "context_window": shape.context,
        "kv": {
            "window": policy.window,
            "sinks": policy.n_sink,
            "k_bits": policy.layers[0].k_bits,
            "v_bits": policy.layers[0].v_bits,
            "bytes": policy.nbytes,
        },
    }


async def models(request: Request) -> Response:
    """The one model there is."""
    return JSONResponse({"object": "list", "data": [_model(request.app.state.service)]})


async def model(request: Request) -> Response:
    service: Service = request.app.state.service
    service.check_model(request.path_params["name"])
    return JSONResponse(_model(service))


async def cancel(request: Request) -> Response:
    """End a request by its id; its client gets what there is."""
    service: Service = request.app.state.service
    service.cancel(request.path_params["name"])
    return JSONResponse({"id": request.path_params["name"], "cancelled": True})


async def status_page(request: Request) -> Response:
    """For people."""
    page = files("edgekv.server").joinpath("status.html")
    return HTMLResponse(await asyncio.to_thread(page.read_text, "utf-8"))
