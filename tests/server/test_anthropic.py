"""Anthropic's messages: shape, events, tools, counting, and its errors around the one object."""

import pytest

from tests.server.conftest import HERMES, THINKING, events

pytestmark = pytest.mark.model

TOOL = {"name": "f", "description": "F.", "input_schema": {"type": "object", "properties": {}}}


def ask(server, path="/v1/messages", **fields):
    messages = [{"role": "user", "content": "hi"}]
    body = {"model": "little", "max_tokens": 50, "messages": messages, **fields}
    return server.client.post(path, json=body)


def test_a_whole_message(scripted):
    body = ask(scripted()).json()
    assert body["id"].startswith("msg_")
    assert (body["type"], body["role"], body["model"]) == ("message", "assistant", "little")
    assert body["content"] == [{"type": "text", "text": "Hello"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    assert body["usage"]["output_tokens"] == 2 and body["usage"]["input_tokens"] > 5


def test_the_events_of_a_message(scripted):
    response = ask(scripted(), stream=True)
    names = [line[7:] for line in response.text.splitlines() if line.startswith("event: ")]
    found = events(response)
    assert names == [event["type"] for event in found]
    assert names == [
        "message_start",
        "ping",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert found[0]["message"]["content"] == []
    assert found[2]["content_block"] == {"type": "text", "text": ""}
    assert found[3]["delta"] == {"type": "text_delta", "text": "Hel"}
    assert found[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}
    assert found[-2]["usage"]["output_tokens"] == 2


def test_stop_sequences_and_length_are_told_apart(served):
    question = [{"role": "user", "content": "What is the capital of France?"}]
    body = ask(served, messages=question, stop_sequences=["ital of Fr"]).json()
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", "ital of Fr")
    assert body["content"][0]["text"] == "The cap"
    assert ask(served, messages=question, max_tokens=1).json()["stop_reason"] == "max_tokens"


def test_thoughts_and_calls_are_blocks(scripted):
    pieces = ["<think>hm</think>", "So.", '<tool_call>{"name": "f", "arguments": {"a": 1}}']
    server = scripted([*pieces, "</tool_call>"], THINKING)
    body = ask(server, tools=[TOOL]).json()
    assert [block["type"] for block in body["content"]] == ["thinking", "text", "tool_use"]
    assert body["content"][2]["input"] == {"a": 1}
    assert body["stop_reason"] == "tool_use"
    found = events(ask(server, tools=[TOOL], stream=True))
    starts = [e["content_block"]["type"] for e in found if e["type"] == "content_block_start"]
    assert starts == ["thinking", "text", "tool_use"]
    assert [e["index"] for e in found if e["type"] == "content_block_stop"] == [0, 1, 2]
    parts = [e["delta"] for e in found if e["type"] == "content_block_delta"]
    assert parts[-1] == {"type": "input_json_delta", "partial_json": '{"a": 1}'}


def test_results_of_tools_are_messages_to_the_template(scripted):
    server = scripted(template=HERMES)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "Rome?"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"b": 2}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": [{"type": "text", "text": "sunny"}],
                },
                {"type": "text", "text": "And?"},
            ],
        },
    ]
    assert ask(server, messages=messages, system="Be brief.", tools=[TOOL]).status_code == 200
    engine = server.service.engine
    text = engine.loaded.tokenizer.decode(engine.requests[-1].prompt)
    order = ["Be brief.", "Rome?", "I look.", '{"b": 2}', "sunny", "And?"]
    assert [text.index(word) for word in order] == sorted(text.index(word) for word in order)
    assert "hm" not in text


def test_tokens_are_counted_as_the_answer_counts_them(served):
    fields = {"system": [{"type": "text", "text": "Be brief."}]}
    counted = ask(served, "/v1/messages/count_tokens", **fields).json()
    usage = ask(served, **fields, max_tokens=1).json()["usage"]
    assert counted["input_tokens"] == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"max_tokens": None}, 400),
        ({"max_tokens": 0}, 400),
        ({"messages": []}, 400),
        ({"messages": [{"role": "system", "content": "x"}]}, 400),
        ({"messages": [{"role": "user", "content": []}]}, 400),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, 400),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, 400),
        ({"system": 5}, 400),
        ({"model": "claude"}, 404),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, 400),
        ({"tools": [{"name": "f"}]}, 400),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, 400),
        ({"tool_choice": {"type": "any"}}, 400),
        ({"tool_choice": {}}, 400),
        ({"stop_sequences": [1]}, 400),
        ({"temperature": 3}, 400),
    ],
    ids=lambda x: str(x)[:50],
)
def test_what_cannot_be_honoured_is_refused_in_both_shapes(served, fields, status):
    response = ask(served, **fields)
    assert response.status_code == status, response.text
    body = response.json()
    assert body["type"] == "error"
    assert set(body["error"]) == {"message", "type", "param", "code"}


def test_a_fault_in_a_stream_is_an_error_event(scripted):
    response = ask(scripted(["a", RuntimeError("secret")]), stream=True)
    assert "event: error\n" in response.text and "secret" not in response.text
    assert events(response)[-1]["type"] == "error"
