"""Answers that are given up: by their client, by a cancel, by a deadline, by a full queue."""

import threading
import time

import httpx
import pytest

from edgekv.server import sse
from tests.server.conftest import check_error, events

pytestmark = pytest.mark.model

SLOW = [x for i in range(100) for x in (0.02, f"{i} ")]


def streaming(server, text="hi", **fields):
    messages = [{"role": "user", "content": text}]
    body = {"messages": messages, "stream": True, **fields}
    return server.client.stream("POST", "/v1/chat/completions", json=body)


def test_a_client_that_leaves_its_stream_ends_the_reply_within_two_tokens(scripted):
    server = scripted(SLOW)
    with streaming(server) as response:
        lines = (line for line in response.iter_lines() if '"content":"4 "' in line)
        next(lines)
    assert server.idle(2)
    assert server.service.engine.cancelled_after <= 4 + 1 + 3


def test_a_client_that_leaves_before_a_whole_answer_ends_the_reply(scripted):
    server = scripted(SLOW)
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            f"{server.url}/v1/chat/completions",
            json={"messages": [{"role": "user", "content": "hi"}]},
            timeout=0.3,
        )
    assert server.idle(2)
    assert server.service.engine.cancelled_after < 40


def test_a_client_that_leaves_in_the_queue_or_in_a_prompt_is_never_answered(served):
    long = "plum " * 6_000
    before = served.service.engine.load.completion_tokens

    def ask(seconds):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(
                f"{served.url}/v1/chat/completions",
                json={"messages": [{"role": "user", "content": long}]},
                timeout=seconds,
            )

    threads = [threading.Thread(target=ask, args=(1.0,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert served.idle(20)
    assert served.service.engine.load.completion_tokens == before
    assert served.service.engine.load.waiting == 0


def test_one_that_leaves_does_not_disturb_another(served):
    def text(response):
        deltas = [chunk["choices"][0]["delta"] for chunk in events(response)[:-1]]
        return "".join(delta.get("content") or "" for delta in deltas)

    alone = text(served.chat("Count to twenty.", stream=True, max_tokens=12))
    with streaming(served, "Tell me a story.", max_tokens=60) as other:
        found = []
        beside = threading.Thread(
            target=lambda: found.append(served.chat("Count to twenty.", stream=True, max_tokens=12))
        )
        beside.start()
        for n, _ in enumerate(other.iter_lines()):
            if n == 8:
                break
    beside.join()
    assert text(found[0]) == alone
    assert served.idle()


def test_a_request_is_cancelled_by_its_id_and_gives_what_there_is(scripted):
    server = scripted(SLOW)
    with streaming(server) as response:
        lines = response.iter_lines()
        first = next(line for line in lines if '"content":"3 "' in line)
        request_id = first.split('"id":"')[1].split('"')[0]
        with httpx.Client(base_url=server.url) as client:
            done = client.post(f"/v1/requests/{request_id}/cancel")
            assert done.json() == {"id": request_id, "cancelled": True}
            rest = [line for line in lines if line]
            assert rest[-1] == "data: [DONE]"
            assert '"finish_reason":"stop"' in rest[-2]
            assert '"stop_detail":"cancelled"' in rest[-2]
            gone = client.post(f"/v1/requests/{request_id}/cancel")
    check_error(gone, 404, "request_not_found")


def test_a_deadline_is_504_or_an_event_in_an_open_stream(scripted):
    server = scripted(SLOW)
    check_error(server.chat("hi", timeout=0.2), 504, "timeout")
    *_, fault, done = events(server.chat("hi", timeout=0.2, stream=True))
    assert fault["error"]["type"] == "timeout_error" and done == "[DONE]"
    assert server.idle()


def test_a_full_queue_is_503_with_a_time_to_come_back(scripted):
    server = scripted(SLOW, running=1, queue=1)
    with streaming(server) as first, streaming_thread(server):
        wait_for(lambda: server.service.in_flight == 2)
        with httpx.Client(base_url=server.url) as client:
            response = client.post(
                "/v1/chat/completions", json={"messages": [{"role": "user", "content": "hi"}]}
            )
            error = check_error(response, 503, "overloaded")
            assert error["type"] == "server_error"
            assert int(response.headers["retry-after"]) > 0
            assert client.get("/health").status_code == 200
        first.close()
    assert server.idle(30)


class streaming_thread:
    """A second client, in a thread, that reads its stream to the end."""

    def __init__(self, server):
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        url = f"{server.url}/v1/chat/completions"
        self._thread = threading.Thread(target=lambda: httpx.post(url, json=body, timeout=60))

    def __enter__(self):
        self._thread.start()

    def __exit__(self, *fault):
        self._thread.join()


def wait_for(condition, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_client_that_takes_nothing_for_too_long_is_dropped(scripted, monkeypatch):
    monkeypatch.setattr(sse, "SEND_SECONDS", 0.3)
    server = scripted(["x" * 100_000] * 400)
    with streaming(server):
        wait_for(lambda: server.service.in_flight == 0, 20)


def test_two_hundred_connections_opened_and_dropped(scripted):
    import socket

    server = scripted()
    port = int(server.url.rsplit(":", 1)[1])
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(200)]
    for i, connection in enumerate(connections):
        if i % 2:
            connection.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    assert server.client.get("/health").status_code == 200
    for connection in connections:
        connection.close()
    assert server.idle()
    assert server.chat("hi").status_code == 200
