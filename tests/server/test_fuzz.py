"""Bodies of every kind: each is answered, whole or by the error object, and nothing is left."""

import copy
import json
import os
import random
import string
from pathlib import Path

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.conftest import HERMES, Scripts

pytestmark = pytest.mark.model

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=30),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=8)),
)
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
RIGHT = {
    "/v1/chat/completions": {
        "model": "little",
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": "x", "tool_calls": []},
            {"role": "user", "content": "go on"},
        ],
        "max_tokens": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "seed": 1,
        "stop": ["x", "y"],
        "stream": True,
        "stream_options": {"include_usage": True},
        "logprobs": True,
        "top_logprobs": 1,
        "logit_bias": {"5": 1},
        "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        "tools": [TOOL],
        "tool_choice": "auto",
        "edgekv": {"window": 100, "overflow": "roll", "kv_bits": 4},
    },
    "/v1/completions": {"prompt": ["one"], "max_tokens": 2, "stop": "x", "logprobs": 1},
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "instructions": "x",
        "text": {"format": {"type": "text"}},
        "stream": True,
    },
    "/v1/messages": {
        "max_tokens": 5,
        "system": "x",
        "messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto"},
        "stop_sequences": ["x"],
    },
}


def places(value, path=()):
    """Every place in a body, as the keys that lead there."""
    yield path
    if isinstance(value, dict | list):
        children = value.items() if isinstance(value, dict) else enumerate(value)
        for key, child in list(children):
            yield from places(child, (*path, key))


@st.composite
def bodies(draw):
    path = draw(st.sampled_from(sorted(RIGHT)))
    body = copy.deepcopy(RIGHT[path])
    for _ in range(draw(st.integers(1, 3))):
        *way, last = draw(st.sampled_from([p for p in places(body) if p]))
        holder = body
        for key in way:
            holder = holder[key]
        if draw(st.booleans()):
            holder[last] = draw(ODD)
        else:
            del holder[last]
    return path, body


def is_answered(client, path, content):
    response = client.post(path, content=content)
    if response.status_code == 200:
        assert response.text
        return
    assert 400 <= response.status_code < 500, (response.text, content)
    assert set(response.json()["error"]) == {"message", "type", "param", "code"}


@pytest.fixture(scope="module")
def server(checkpoint):
    with Scripts(checkpoint) as scripts:
        yield scripts.serve(template=HERMES)


FEW = settings(
    max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@FEW
@given(case=bodies())
def test_a_few_hundred_bodies(server, case):
    path, body = case
    is_answered(server.client, path, json.dumps(body).encode())


@FEW
@given(content=st.binary(max_size=60) | st.text(string.printable, max_size=60).map(str.encode))
def test_bytes_of_any_kind(server, content):
    is_answered(server.client, "/v1/chat/completions", content)


def test_nothing_is_left_of_all_these(server):
    assert server.idle()
    assert server.chat("hi").status_code == 200


def resident():
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
def test_twenty_thousand_bodies_and_memory_stays(server):
    """Mutations of right bodies, and of their bytes; memory is compared behind a warm-up."""
    chance = random.Random(7)
    odd = [None, True, 0, -1, 2**70, 1.5, "", "x" * 100, [], {}, [None], {"a": []}, "\ud800"]

    def mutated(path):
        body = copy.deepcopy(RIGHT[path])
        for _ in range(chance.randint(1, 3)):
            *way, last = chance.choice([p for p in places(body) if p])
            holder = body
            for key in way:
                holder = holder[key]
            holder[last] = copy.deepcopy(chance.choice(odd))
        content = bytearray(json.dumps(body).encode())
        if chance.random() < 0.2:
            for _ in range(chance.randint(1, 4)):
                content[chance.randrange(len(content))] = chance.randrange(256)
        return bytes(content)

    before = 0
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for n in range(20_000):
            if n == 4_000:
                before = resident()
            path = chance.choice(sorted(RIGHT))
            is_answered(client, path, mutated(path))
    assert server.idle()
    assert abs(resident() - before) < 0.02 * before, (before, resident())
    assert server.client.get("/health").status_code == 200
