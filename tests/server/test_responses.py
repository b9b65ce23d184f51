"""OpenAI's responses: shape, events in order, and the same text streamed and whole."""

import pytest

from tests.server.conftest import HERMES, THINKING, check_error, events

pytestmark = pytest.mark.model

TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}


def ask(server, **fields):
    return server.client.post("/v1/responses", json={"input": "hi", **fields})


def test_a_whole_response(scripted):
    body = ask(scripted(), instructions="Be brief.").json()
    assert body["object"] == "response" and body["status"] == "completed"
    (message,) = body["output"]
    assert message["role"] == "assistant" and message["status"] == "completed"
    assert message["content"] == [
        {"type": "output_text", "text": "Hello", "annotations": [], "logprobs": []}
    ]
    assert body["usage"]["output_tokens"] == 2
    assert body["usage"]["input_tokens_details"] == {"cached_tokens": 0}


def test_the_events_of_a_response_come_in_openais_order(scripted):
    found = events(ask(scripted(), stream=True))
    assert [event["type"] for event in found] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    assert "".join(e["delta"] for e in found if e["type"].endswith("delta")) == "Hello"
    assert found[0]["response"]["status"] == "in_progress" and not found[0]["response"]["output"]
    assert found[-1]["response"]["output"][0]["content"][0]["text"] == "Hello"


def test_thought_text_and_calls_are_items_of_their_own(scripted):
    pieces = ["<think>", "hm</think>", "So:", '<tool_call>{"name": "f", "arguments": {"a": 1}}']
    server = scripted([*pieces, "</tool_call>"], THINKING)
    body = ask(server, tools=[TOOL]).json()
    assert [item["type"] for item in body["output"]] == ["reasoning", "message", "function_call"]
    call = body["output"][2]
    assert (call["name"], call["arguments"]) == ("f", '{"a": 1}')
    found = events(ask(server, tools=[TOOL], stream=True))
    kinds = [event["type"] for event in found]
    assert "response.reasoning_text.delta" in kinds
    at = kinds.index("response.function_call_arguments.delta")
    assert kinds[at - 1 : at + 3] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]


def test_a_cut_response_is_incomplete(scripted):
    server = scripted()
    server.service.engine.reason = "length"
    body = ask(server, max_output_tokens=2).json()
    assert body["status"] == "incomplete"
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events(ask(server, stream=True))[-1]["type"] == "response.incomplete"


def test_items_of_an_earlier_turn_are_a_conversation(scripted):
    server = scripted(template=HERMES)
    items = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "input_text", "text": "Rome?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"b": 2}'},
        {"type": "function_call_output", "call_id": "c", "output": "sunny"},
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Sunny.", "annotations": []}],
        },
        {"role": "user", "content": "Thanks"},
    ]
    assert ask(server, input=items, tools=[TOOL]).status_code == 200
    engine = server.service.engine
    text = engine.loaded.tokenizer.decode(engine.requests[-1].prompt)
    assert [word in text for word in ("Be brief.", "Rome?", '{"b": 2}', "sunny", "Sunny.")] == [
        True
    ] * 5


@pytest.mark.parametrize(
    "fields",
    [
        {"input": ""},
        {"input": []},
        {"input": 5},
        {"input": None},
        {"input": [{"type": "item_reference", "id": "x"}]},
        {"input": [{"role": "robot", "content": "x"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
        {"input": [{"type": "function_call", "name": "f", "arguments": "{"}]},
        {"previous_response_id": "resp_1"},
        {"conversation": "c"},
        {"background": True},
        {"max_output_tokens": 0},
        {"reasoning": {"effort": "high"}},
        {"text": {"format": {"type": "xml"}}},
        {"text": {"verbosity": "low"}},
        {"tools": [{"type": "web_search"}]},
        {"instructions": 5},
    ],
    ids=lambda x: str(x)[:50],
)
def test_what_cannot_be_honoured_is_refused(served, fields):
    check_error(ask(served, **fields), 400)


def test_a_fault_in_a_stream_fails_the_response(scripted):
    found = events(ask(scripted(["a", RuntimeError("secret")]), stream=True))
    assert [event["type"] for event in found[-2:]] == ["error", "response.failed"]
    assert found[-1]["response"]["status"] == "failed"
