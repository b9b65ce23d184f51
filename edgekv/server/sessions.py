"""Stored conversations over HTTP: listed, shown, deleted."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgekv.server.errors import unsupported
from edgekv.server.service import Service
from edgekv.sessions import Session, Store


def _shown(session: Session) -> dict[str, Any]:
    return {
        "id": session.id,
        "object": "session",
        "name": session.name,
        "model": session.model,
        "created": int(session.created),
        "updated": int(session.updated),
        "messages": session.n_messages,
    }


async def _with_store(request: Request, work: Callable[[Store], dict[str, Any]]) -> Response:
    service: Service = request.app.state.service
    if service.store is None:
        raise unsupported("this server keeps no sessions")
    store = service.store
    return JSONResponse(await service.beside(lambda: work(store)))


async def sessions(request: Request) -> Response:
    """Those that are there, the last used first."""

    def work(store: Store) -> dict[str, Any]:
        return {"object": "list", "data": [_shown(session) for session in store.sessions()]}

    return await _with_store(request, work)


async def session(request: Request) -> Response:
    """One, with its messages."""

    def work(store: Store) -> dict[str, Any]:
        found = store.get(request.path_params["name"])
        transcript = [
            {
                "role": message.role,
                "content": message.content,
                "finish_reason": message.finish_reason,
            }
            for message in store.messages(found.id)
        ]
        return _shown(found) | {"transcript": transcript}

    return await _with_store(request, work)


async def delete_session(request: Request) -> Response:
    """Put one out of sight, as `edgekv sessions rm` does."""

    def work(store: Store) -> dict[str, Any]:
        found = store.get(request.path_params["name"])
        lock = store.lock(found.id)
        try:
            store.delete(found.id)
        finally:
            lock.release()
        return {"id": found.id, "object": "session.deleted", "deleted": True}

    return await _with_store(request, work)
