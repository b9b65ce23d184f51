"""HTTP itself: paths, methods, sizes, slow and broken clients, keys, hosts and origins."""

import socket
import time

import pytest

from edgekv.server import body, protocol, sse
from edgekv.server.security import Access
from tests.server.conftest import check_error, events

pytestmark = pytest.mark.model


def raw(url, data, wait=True):
    """Send bytes as they are; returns what comes back until the server closes."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(data)
        received = b""
        while wait and (piece := connection.recv(65536)):
            received += piece
        return received


def head(path="/v1/chat/completions", **headers):
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@pytest.fixture
def server(scripted):
    return scripted()


def test_unknown_routes_and_methods_have_the_error_object(server):
    check_error(server.client.get("/nope"), 404, "route_not_found")
    check_error(server.client.get("/v1/nope/deeper?x=1"), 404, "route_not_found")
    response = server.client.put("/v1/models")
    check_error(response, 405, "method_not_allowed")
    assert "GET" in response.headers["allow"]
    check_error(server.client.get("/v1/chat/completions"), 405, "method_not_allowed")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/audio/speech", "/v1/moderations"])
def test_routes_of_other_kinds_of_server_are_501(server, path):
    check_error(server.client.post(path, json={}), 501, "not_supported")


def test_a_trailing_slash_and_a_query_change_nothing(server):
    assert server.client.get("/v1/models/?limit=5").status_code == 200
    messages = [{"role": "user", "content": "hi"}]
    path = "/v1/chat/completions/?api-version=1"
    assert server.client.post(path, json={"messages": messages}).status_code == 200


def test_small_writes_are_not_held_back(server, monkeypatch):
    asked = []
    set_option = socket.socket.setsockopt

    def note(self, *option):
        asked.append(option)
        set_option(self, *option)

    monkeypatch.setattr(socket.socket, "setsockopt", note)
    raw(server.url, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1) in [option[:3] for option in asked]


def test_models_are_listed_and_shown(server):
    (model,) = server.client.get("/v1/models").json()["data"]
    assert server.client.get(f"/v1/models/{model['id']}").json() == model
    assert model["object"] == "model" and model["owned_by"] == "edgekv"
    assert model["context_window"] == 8192 and model["kv"]["window"] == 512
    check_error(server.client.get("/v1/models/other"), 404, "model_not_found")


@pytest.mark.parametrize(
    "data",
    [
        b"GARBAGE\r\n\r\n",
        b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        head(Content_Length="-1"),
        head(Content_Length="abc"),
        head(Content_Length="5, 6"),
        head(Transfer_Encoding="chunked") + b"zz\r\n",
    ],
    ids=lambda x: str(x)[:40],
)
def test_what_is_not_http_is_answered_in_json(server, data):
    received = raw(server.url, data + b"\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 400"), received[:200]
    assert b"application/json" in received and b'"code": "invalid_http"' in received
    assert server.client.get("/health").status_code == 200


def test_a_body_over_the_cap_is_413_whether_declared_or_not(server, monkeypatch):
    monkeypatch.setattr(body, "MAX_BODY", 1000)
    check_error(server.chat("x" * 2000), 413, "body_too_large")

    def chunks():
        yield b'{"messages": "'
        for _ in range(20):
            yield b"x" * 100
        yield b'"}'

    response = server.client.post("/v1/chat/completions", content=chunks())
    check_error(response, 413, "body_too_large")
    assert server.chat("hi").status_code == 200


def test_a_chunked_body_without_a_length_is_fine(server):
    parts = iter([b'{"messages": [{"role": "user", ', b'"content": "hi"}]}'])
    assert server.client.post("/v1/chat/completions", content=parts).status_code == 200


def test_json_under_another_type_is_fine_and_a_form_is_not(server):
    data = b'{"messages": [{"role": "user", "content": "hi"}]}'
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        headers = {"content-type": kind}
        response = server.client.post("/v1/chat/completions", content=data, headers=headers)
        assert response.status_code == 200
    response = server.client.post("/v1/chat/completions", files={"a": b"b"})
    check_error(response, 415, "unsupported_media_type")


def test_half_a_body_is_408_in_time(server, monkeypatch):
    monkeypatch.setattr(body, "BODY_SECONDS", 0.3)
    received = raw(server.url, head(Content_Length=100, Connection="close") + b'{"mess')
    assert received.startswith(b"HTTP/1.1 408")
    assert b'"type":"timeout_error"' in received
    assert server.idle()


def test_a_connection_that_asks_for_nothing_is_closed(server, monkeypatch):
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)
    begun = time.monotonic()
    assert raw(server.url, b"POST /v1/ch") == b""
    second = raw(server.url, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea")
    assert second.count(b"HTTP/1.1 200") == 1
    assert time.monotonic() - begun < 4


def test_clients_that_drop_half_a_request_leave_nothing_behind(server):
    for data in (b"", b"POST", head(Content_Length=100), head(Content_Length=100) + b"{"):
        for _ in range(10):
            raw(server.url, data, wait=False)
    assert server.idle()
    assert server.chat("hi").status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "127.0.0.1.nip.io", ""])
def test_a_foreign_host_is_refused(server, host):
    response = server.client.get("/v1/models", headers={"host": host})
    check_error(response, 403, "host_not_allowed")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8787", "127.0.0.1:1", "[::1]:8787"])
def test_loopbacks_names_are_answered_to(server, host):
    assert server.client.get("/v1/models", headers={"host": host}).status_code == 200


def test_no_web_page_may_call_unless_it_is_listed(scripted):
    server = scripted(access=Access(origins=frozenset({"https://app.example"})))
    for origin in ("https://evil.example", "null", "http://app.example"):
        response = server.client.get("/v1/models", headers={"origin": origin})
        check_error(response, 403, "host_not_allowed")
        assert "access-control-allow-origin" not in response.headers
    response = server.client.get("/v1/models", headers={"origin": "https://app.example"})
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    assert "origin" in response.headers["vary"].lower()
    asked = {"origin": "https://app.example", "access-control-request-method": "POST"}
    preflight = server.client.options("/v1/chat/completions", headers=asked)
    assert preflight.status_code == 204
    assert "POST" in preflight.headers["access-control-allow-methods"]


def test_without_listed_origins_there_are_no_cors_headers_but_the_own_page_may_call(server):
    assert "access-control-allow-origin" not in server.client.get("/v1/models").headers
    own = server.client.get("/v1/cache/stats", headers={"origin": server.url})
    assert own.status_code == 200
    preflight = server.client.options("/v1/models", headers={"origin": "https://evil.example"})
    check_error(preflight, 403)


def test_a_key_is_asked_for_everywhere_but_where_nothing_is_secret(scripted):
    server = scripted(access=Access(api_key="sesame"))
    get = server.client.get
    for headers in ({}, {"authorization": "Bearer wrong"}, {"x-api-key": "sesam"}):
        for path in ("/v1/models", "/metrics", "/v1/cache/stats", "/nope"):
            check_error(get(path, headers=headers), 401, "invalid_api_key")
    check_error(server.chat("hi"), 401, "invalid_api_key")
    assert not server.service.engine.requests
    for headers in ({"authorization": "Bearer sesame"}, {"x-api-key": "sesame"}):
        assert get("/v1/models", headers=headers).status_code == 200
    for path in ("/", "/health", "/ready"):
        assert get(path).status_code == 200


def test_metrics_count_answers_by_route_status_and_reason(server):
    server.chat("hi")
    server.chat(n=5)
    text = server.client.get("/metrics").text
    for line in (
        'edgekv_http_responses_total{route="/v1/chat/completions",status="200"} 1',
        'edgekv_http_responses_total{route="/v1/chat/completions",status="400"} 1',
        'edgekv_answers_total{reason="stop"} 1',
        "edgekv_requests_in_flight 0",
        'edgekv_time_to_first_token_seconds_bucket{le="+Inf"} 1',
    ):
        assert line in text.splitlines()


def test_a_comment_keeps_a_stream_alive_through_a_long_prompt(scripted, monkeypatch):
    monkeypatch.setattr(sse, "KEEPALIVE_SECONDS", 0.1)
    server = scripted([0.5, "a", 0.5, "b"])
    response = server.chat("hi", stream=True)
    assert response.text.count(": keepalive\n\n") >= 4
    assert events(response)[-1] == "[DONE]"


def test_the_log_names_no_prompt(scripted, caplog):
    caplog.set_level("DEBUG")
    server = scripted([RuntimeError("x")])
    server.chat("the secret word is plum")
    server.chat("the secret word is plum", n=3, strange="plum")
    assert "plum" not in caplog.text
