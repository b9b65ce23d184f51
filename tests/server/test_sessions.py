"""Sessions over HTTP: kept, resumed by another server on the same store, shown and deleted."""

from contextlib import contextmanager

import pytest

from edgekv.engine import Engine
from edgekv.sessions import Store
from tests.server.conftest import check_error, serving

pytestmark = pytest.mark.model

LONG = "Plums are a fruit. " * 20


@pytest.fixture
def kept(default_model, tmp_path):
    """A function: a server over a store that outlives it."""

    @contextmanager
    def serve():
        with (
            Store(tmp_path) as store,
            Engine(default_model, store) as engine,
            serving(engine, store=store) as served,
        ):
            yield served

    return serve


def ask(server, *turns, **extension):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    body = {"messages": messages, "max_tokens": 6, "edgekv": extension}
    return server.client.post("/v1/chat/completions", json=body)


def test_a_conversation_goes_on_after_a_restart_without_being_read_again(kept):
    with kept() as server:
        first = ask(server, LONG, session_id="plums").json()
        said = first["choices"][0]["message"]["content"]
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert len(first["edgekv"]["session_id"]) == 32
        earlier = first["usage"]["prompt_tokens"]
    with kept() as server:
        second = ask(server, LONG, said, "Go on.", session_id="plums").json()
        cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached >= earlier // 64 * 64
        assert second["edgekv"]["session_id"] == first["edgekv"]["session_id"]
        shown = server.client.get("/v1/sessions/plums").json()
        roles = [message["role"] for message in shown["transcript"]]
        assert roles == ["user", "assistant", "user", "assistant"]
        assert shown["transcript"][1]["content"] == said
        alone = ask(server, LONG, said, "Go on.").json()
        assert alone["choices"] == second["choices"]


def test_sessions_are_listed_shown_and_deleted(kept):
    with kept() as server:
        ask(server, "hi", session_id="one")
        made = ask(server, "hi", persist=True).json()["edgekv"]["session_id"]
        listed = server.client.get("/v1/sessions").json()
        assert {session["id"] for session in listed["data"]} >= {made}
        assert {session["object"] for session in listed["data"]} == {"session"}
        assert server.client.delete("/v1/sessions/one").json()["deleted"] is True
        check_error(server.client.get("/v1/sessions/one"), 404, "session_not_found")
        check_error(server.client.delete("/v1/sessions/one"), 404, "session_not_found")
        names = [s["name"] for s in server.client.get("/v1/sessions").json()["data"]]
        assert "one" not in names


def test_nothing_is_kept_of_a_request_that_names_no_session(kept, tmp_path):
    with kept() as server:
        assert ask(server, LONG).json()["edgekv"]["session_id"] is None
        assert ask(server, LONG, session_id="x", persist=False).status_code == 200
        assert server.client.get("/v1/sessions").json()["data"] == []
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_session_has_one_writer_at_a_time(kept, tmp_path):
    with kept() as server, Store(tmp_path) as other:
        ask(server, "hi", session_id="busy")
        lock = other.lock(other.get("busy").id)
        check_error(ask(server, "hi", session_id="busy"), 409, "session_busy")
        check_error(server.client.delete("/v1/sessions/busy"), 409, "session_busy")
        lock.release()
        assert ask(server, "hi", session_id="busy").status_code == 200


def test_a_server_without_a_store_refuses_sessions(served):
    check_error(served.chat(edgekv={"session_id": "x"}), 400, "unsupported")
    check_error(served.client.get("/v1/sessions"), 400, "unsupported")
    prompt = {"prompt": "a", "edgekv": {"session_id": "x"}}
    check_error(served.client.post("/v1/completions", json=prompt), 400, "unsupported")
