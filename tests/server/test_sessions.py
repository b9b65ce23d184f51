"""Sessions over HTTP: kept, resumed by another server on the same store, shown and deleted."""

from contextlib import contextmanager

import pytest

from edgekv.engine import Engine
from edgekv.sessions import Store
from tests.server.conftest import check_error, serving

pytestmark = pytest.mark.model

LONG = "Plums are a fruit. " * 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("store")


@pytest.fixture(scope="module")
def kept(default_model, folder):
    """A server over a store."""
    with keeping(default_model, folder) as served:
        yield served


@contextmanager
def keeping(model, folder):
    with (
        Store(folder) as store,
        Engine(model, store) as engine,
        serving(engine, store=store) as served,
    ):
        yield served


def ask(server, *turns, **extension):
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(turns)]
    body = {"messages": messages, "max_tokens": 6, "edgekv": extension}
    return server.client.post("/v1/chat/completions", json=body)


def test_a_conversation_goes_on_after_a_restart_without_being_read_again(default_model, tmp_path):
    with keeping(default_model, tmp_path) as server:
        first = ask(server, LONG, session_id="plums").json()
        said = first["choices"][0]["message"]["content"]
        assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
        assert len(first["edgekv"]["session_id"]) == 32
        earlier = first["usage"]["prompt_tokens"]
    with keeping(default_model, tmp_path) as server:
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
    ask(kept, "hi", session_id="one")
    made = ask(kept, "hi", persist=True).json()["edgekv"]["session_id"]
    listed = kept.client.get("/v1/sessions").json()
    assert {session["id"] for session in listed["data"]} >= {made}
    assert {session["object"] for session in listed["data"]} == {"session"}
    assert kept.client.delete("/v1/sessions/one").json()["deleted"] is True
    check_error(kept.client.get("/v1/sessions/one"), 404, "session_not_found")
    check_error(kept.client.delete("/v1/sessions/one"), 404, "session_not_found")
    names = [session["name"] for session in kept.client.get("/v1/sessions").json()["data"]]
    assert "one" not in names


def test_nothing_is_kept_of_a_request_that_names_no_session(kept, folder):
    before = len(list(folder.rglob("*.safetensors")))
    sessions = kept.client.get("/v1/sessions").json()
    text = "Cherries are a fruit too. " * 20
    assert ask(kept, text).json()["edgekv"]["session_id"] is None
    assert ask(kept, text, session_id="x", persist=False).status_code == 200
    assert kept.client.get("/v1/sessions").json() == sessions
    assert len(list(folder.rglob("*.safetensors"))) == before


def test_a_session_has_one_writer_at_a_time(kept, folder):
    ask(kept, "hi", session_id="busy")
    with Store(folder) as other:
        lock = other.lock(other.get("busy").id)
        check_error(ask(kept, "hi", session_id="busy"), 409, "session_busy")
        check_error(kept.client.delete("/v1/sessions/busy"), 409, "session_busy")
        lock.release()
    assert ask(kept, "hi", session_id="busy").status_code == 200


def test_a_server_without_a_store_refuses_sessions(served):
    check_error(served.chat(edgekv={"session_id": "x"}), 400, "unsupported")
    check_error(served.client.get("/v1/sessions"), 400, "unsupported")
    prompt = {"prompt": "a", "edgekv": {"session_id": "x"}}
    check_error(served.client.post("/v1/completions", json=prompt), 400, "unsupported")
