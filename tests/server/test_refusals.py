"""Every field that cannot be honoured is refused by its name, and the server goes on.

The rows are mlx-lm's bad-input matrix, run live, and public reports against other servers.
"""

import json

import pytest

from tests.server.conftest import check_error

pytestmark = pytest.mark.model

HI = [{"role": "user", "content": "hi"}]
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{"}}
IMAGE = {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/x.png"}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
RIGHT = "right"


@pytest.fixture(scope="module")
def server(served):
    return served


def lives(server):
    """Health and the next request are fine."""
    assert server.client.get("/health").json() == {"status": "ok"}
    assert server.chat("hi", max_tokens=1).json()["usage"]["completion_tokens"] == 1


FIELDS = {
    # max_tokens: the rule table.
    "max_tokens": [-1, 0, 1.5, 2.0, "10", True, [], {}],
    "max_completion_tokens": [-1, 0, 1e9, True, 2**70],
    "temperature": ["1", -0.1, 2.1, True, [0]],
    "top_p": [0, -1, 1.1, "a", True],
    "top_k": [-1, 0.5, True, "5", 2**40],
    "min_p": [-0.1, 1.1, True],
    "repetition_penalty": [0, -1, True, "1"],
    "presence_penalty": [-2.1, 2.1, True],
    "frequency_penalty": [-2.1, 2.1, "0"],
    "seed": [2**70, -(2**70), 1.5, "7", True],
    "stop": [5, [1], [None], [""], "", ["x"] * 17, ["x" * 1025], {}, True],
    "stream": ["yes", 1, []],
    "n": [0, 2, 1.5, True, "1"],
    "logprobs": [2, "true", 1.0],
    "top_logprobs": [5],
    "logit_bias": [
        [],
        5,
        {"999999999": 1},
        {"1e20": 1},
        {"-1": 1},
        {"a": 1},
        {"49152": 1},
        {"5": None},
        {"5": 101},
        {"5": True},
        {"5": "1"},
    ],
    "model": [5, [], {}],
    "response_format": [5, {}, {"type": "xml"}, {"type": "json_schema"}],
    "tools": [5, {}, [5], [{"type": "function"}], [{"type": "x"}], [TOOL, TOOL], [TOOL]],
    "tool_choice": [5, "maybe", "required", {"type": "function", "function": {"name": "g"}}],
    "parallel_tool_calls": ["no", 1],
    "reasoning_effort": ["huge", 5, "high"],
    "chat_template_kwargs": [5, [], {"messages": "x"}, {"nonsense": True}],
    "modalities": [["text", "audio"], "text"],
    "timeout": [0, -1, "5", True],
    "audio": [{"voice": "x"}],
    "functions": [[]],
    "function_call": ["auto"],
    "verbosity": ["low"],
    "adapters": ["/etc/x"],
    "draft_model": ["x"],
    "role_mapping": [{"user": "x"}],
    "xtc_probability": [0.5],
    "mirostat": [2],
    "grammar": ["root ::= x"],
    "web_search_options": [{}],
    "edgekv": [
        5,
        {"window": 0},
        {"window": 10**6},
        {"window": 1.5},
        {"kv_bits": 5},
        {"kv_bits": 8},
        {"sinks": 65},
        {"sinks": -1},
        {"overflow": "maybe"},
        {"unknown": 1},
        {"return_progress": "yes"},
    ],
    "stream_options": [{"include_usage": True}, 5],
}
ROWS = [(key, value) for key, values in FIELDS.items() for value in values]


@pytest.mark.parametrize(("key", "value"), ROWS, ids=lambda x: str(x)[:40])
def test_a_field_that_cannot_be_honoured_is_refused_by_its_name(server, key, value):
    response = server.client.post("/v1/chat/completions", json={"messages": HI, key: value})
    error = check_error(response, 400)
    assert error["type"] == "invalid_request_error"
    assert error["param"].split(".")[0].split("[")[0] in (key, "tools"), error


def test_after_all_of_these_the_server_lives(server):
    lives(server)


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        5,
        "hi",
        {},
        [5],
        [None],
        [{}],
        [{"content": "hi"}],
        [{"role": "user"}],
        [{"role": "user", "content": None}],
        [{"role": "user", "content": 5}],
        [{"role": "user", "content": True}],
        [{"role": "user", "content": [5]}],
        [{"role": "user", "content": ["hi"]}],
        [{"role": "user", "content": [{}]}],
        [{"role": "user", "content": [{"type": "text"}]}],
        [{"role": "user", "content": [{"type": "text", "text": 5}]}],
        [{"role": "user", "content": [IMAGE]}],
        [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}],
        [{"role": "robot", "content": "hi"}],
        [{"role": 5, "content": "hi"}],
        [{"role": "user", "content": "hi", "tool_calls": [CALL]}],
        [*HI, {"role": "assistant", "tool_calls": [CALL]}],
        [*HI, {"role": "assistant", "tool_calls": 5}],
        [*HI, {"role": "assistant", "tool_calls": [{}]}],
        [{"role": "user", "content": "x"}] * 2049,
        [{"role": "user", "content": "x" * (512 * 1024 + 1)}],
    ],
    ids=lambda x: str(x)[:50],
)
def test_messages_that_are_none_are_refused(server, messages):
    response = server.client.post("/v1/chat/completions", json={"messages": messages})
    error = check_error(response, 400)
    assert error["param"].startswith("messages")
    if "image" in str(messages)[:200] or "audio" in str(messages)[:200]:
        assert error["code"] == "unsupported_content"


def test_after_these_messages_the_server_lives(server):
    lives(server)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"text"',
        b"5",
        b"\xff\xfe",
        b'{"messages": [{"role": "user", "content": "\xff"}]}',
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"temperature": NaN}',
        b'{"temperature": Infinity}',
        b'{"temperature": -Infinity}',
        b'{"temperature": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}",
        b"{'messages': 1}",
        b"{} {}",
    ],
    ids=lambda x: str(x)[:40],
)
@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"]
)
def test_a_body_that_is_no_json_object_is_refused(server, path, body):
    response = server.client.post(path, content=body)
    assert response.status_code == 400
    body = response.json()
    assert body["error"]["code"] == "invalid_json"
    assert (body.get("type") == "error") == (path == "/v1/messages")


def test_after_these_bodies_the_server_lives(server):
    lives(server)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"prompt": ""},
        {"prompt": []},
        {"prompt": [""]},
        {"prompt": ["a", "b"]},
        {"prompt": [1, "b"]},
        {"prompt": [-1]},
        {"prompt": [49152]},
        {"prompt": [1.5]},
        {"prompt": [True]},
        {"prompt": [[1], [2]]},
        {"prompt": 5},
        {"prompt": {"a": 1}},
        {"prompt": "x" * (512 * 1024 + 1)},
        {"prompt": "a", "echo": True},
        {"prompt": "a", "suffix": "b"},
        {"prompt": "a", "best_of": 2},
        {"prompt": "a", "logprobs": 21},
        {"prompt": "a", "logprobs": True},
        {"prompt": "a", "n": 2},
    ],
    ids=lambda x: str(x)[:40],
)
def test_completions_refuse_what_they_cannot_do(server, fields):
    check_error(server.client.post("/v1/completions", json=fields), 400)


def test_no_request_names_a_path_or_causes_a_download(server):
    for name in ("/etc/passwd", "../x", "HuggingFaceTB/SmolLM2-135M", "a" * 5000, ""):
        check_error(server.chat(model=name), 404, "model_not_found", "model")
        path = f"/v1/models/{name}" if len(name) < 100 else "/v1/models/x"
        response = server.client.get(path)
        assert response.status_code == (200 if not name else 404)


def test_a_number_at_its_bound_is_taken(server):
    fields = {
        "temperature": 2,
        "top_p": 1,
        "top_k": 10**6,
        "min_p": 1,
        "presence_penalty": -2,
        "frequency_penalty": 2,
        "seed": -(2**63),
        "logit_bias": {"0": -100, "49151": 100},
        "max_tokens": 1,
        "stop": ["a"] * 16,
        "n": 1,
        "logprobs": True,
        "top_logprobs": 20,
        "reasoning_effort": "none",
        "tool_choice": "none",
        "xtc_probability": 0,
        "ignore_eos": False,
    }
    assert server.chat("hi", **fields).status_code == 200


def test_a_template_that_refuses_says_why(scripted):
    template = "{{ raise_exception('roles must alternate, please') }}"
    server = scripted(template=template)
    error = check_error(server.chat("hi"), 400, "template_error", "messages")
    assert "roles must alternate, please" in error["message"]


STRICT = """{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}
{% endif %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}
{% endif %}[{{ m.role }}: {{ m.content }}]{% endfor %}"""


def test_for_a_strict_template_system_text_is_folded_and_neighbours_are_joined(scripted):
    server = scripted(template=STRICT)
    messages = [
        {"role": "system", "content": "S"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b"},
        {"role": "system", "content": "T"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    fields = {"messages": messages}
    assert server.client.post("/v1/chat/completions", json=fields).status_code == 200
    engine = server.service.engine
    text = engine.loaded.tokenizer.decode(engine.requests[-1].prompt)
    assert text == "[user: S\n\nT\n\na\n\nb][assistant: c][user: d]"


def test_json_replies_without_llguidance_are_refused(served, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr(served.service.engine, "__dict__", dict(served.service.engine.__dict__))
    served.service.engine.__dict__.pop("grammar_tokens", None)
    error = check_error(
        served.chat("hi", response_format={"type": "json_object"}), 400, "unsupported"
    )
    assert "edgekv[json]" in error["message"]


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "nonsense"},
        {"$ref": "http://127.0.0.1:1/schema"},
        {"type": "string", "pattern": "(?<=a)b"},
        {"type": "string", "description": "x" * 100_000},
    ],
    ids=lambda x: str(x)[:40],
)
def test_a_schema_that_cannot_be_followed_is_refused(served, schema):
    response_format = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = check_error(served.chat("hi", response_format=response_format), 400)
    assert "schema" in error["message"]
    lives(served)


def test_an_engines_fault_is_500_with_an_id_and_no_traceback(scripted):
    server = scripted([RuntimeError("secret detail")])
    response = server.chat("hi")
    error = check_error(response, 500, "internal")
    assert response.headers["x-request-id"] in error["message"]
    assert "secret" not in error["message"]
    assert "connection" not in response.headers
    for _ in range(3):
        check_error(server.chat("hi"), 500, "internal")


def test_a_fault_behind_the_first_event_is_an_event_and_never_a_reason(scripted):
    server = scripted(["Hel", RuntimeError("secret detail")])
    response = server.chat("hi", stream=True)
    assert response.status_code == 200
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    error = json.loads(lines[-2])["error"]
    assert error["code"] == "internal" and "secret" not in error["message"]
    assert not any('"finish_reason":"' in line for line in lines)
    assert server.idle()
