"""Tools over HTTP, for the two ways that families write calls, and thoughts kept apart."""

import json

import pytest

from tests.server.conftest import HERMES, LLAMA, THINKING, check_error, events

pytestmark = pytest.mark.model

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
TIME = {"type": "function", "function": {"name": "time"}}
CALLED = ["Let me", " see.<tool", '_call>\n{"name": "weather", "argu', 'ments": {"city": "Rome"}}']
CALLED += ["\n</tool_call>", '<tool_call>{"name": "time", "arguments": {}}</tool_call>']


def test_calls_are_a_whole_answers_message(scripted):
    server = scripted(CALLED, HERMES)
    choice = server.chat(tools=[WEATHER, TIME]).json()["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["content"] == "Let me see."
    first, second = choice["message"]["tool_calls"]
    assert first["id"].startswith("call_") and first["id"] != second["id"]
    assert first["type"] == "function"
    assert first["function"] == {"name": "weather", "arguments": '{"city": "Rome"}'}
    assert second["function"]["name"] == "time"


def test_calls_stream_with_id_and_name_first_and_arguments_behind(scripted):
    server = scripted(CALLED, HERMES)
    *chunks, done = events(server.chat(tools=[WEATHER, TIME], stream=True))
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    text = "".join(delta.get("content") or "" for delta in deltas)
    assert text == "Let me see." and done == "[DONE]"
    calls = {}
    for piece in (piece for delta in deltas for piece in delta.get("tool_calls", [])):
        call = calls.setdefault(piece["index"], [])
        assert ("id" in piece) == (not call) == ("name" in piece["function"])
        call.append(piece["function"]["arguments"])
    assert [json.loads("".join(call)) for call in calls.values()] == [{"city": "Rome"}, {}]
    assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_length_goes_before_tool_calls(scripted):
    server = scripted(CALLED, HERMES)
    server.service.engine.reason = "length"
    assert server.chat(tools=[WEATHER]).json()["choices"][0]["finish_reason"] == "length"


def test_one_call_alone_where_several_are_not_wanted(scripted):
    server = scripted(CALLED, HERMES)
    choice = server.chat(tools=[WEATHER, TIME], parallel_tool_calls=False).json()["choices"][0]
    assert [call["function"]["name"] for call in choice["message"]["tool_calls"]] == ["weather"]
    assert choice["finish_reason"] == "tool_calls"


def test_a_call_of_llamas_is_an_object_with_parameters(scripted):
    server = scripted(['{"name": "weather", ', '"parameters": {"city": "Rome"}}'], LLAMA)
    message = server.chat(tools=[WEATHER]).json()["choices"][0]["message"]
    assert message["content"] is None
    assert message["tool_calls"][0]["function"]["arguments"] == '{"city": "Rome"}'


def test_what_is_no_call_of_a_known_tool_stays_text(scripted):
    text = '<tool_call>{"name": "other"}</tool_call>'
    choice = scripted([text], HERMES).chat(tools=[WEATHER]).json()["choices"][0]
    assert choice["message"]["content"] == text
    assert choice["finish_reason"] == "stop"


def test_tool_choice_none_leaves_tools_out(scripted):
    server = scripted(CALLED, HERMES)
    message = server.chat(tools=[WEATHER], tool_choice="none").json()["choices"][0]["message"]
    assert "tool_calls" not in message
    engine = server.service.engine
    assert "weather" not in engine.loaded.tokenizer.decode(engine.requests[-1].prompt)


def test_the_template_sees_the_tools_and_arguments_as_objects(scripted):
    server = scripted(["ok"], HERMES)
    call = {
        "id": "call_1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
    }
    messages = [
        {"role": "user", "content": "Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    body = {"messages": messages, "tools": [WEATHER]}
    assert server.client.post("/v1/chat/completions", json=body).status_code == 200
    engine = server.service.engine
    text = engine.loaded.tokenizer.decode(engine.requests[-1].prompt)
    assert "The weather of a city." in text
    assert '"arguments": {"city": "Rome"}' in text
    assert "sunny" in text


def test_a_model_without_tools_in_its_template_refuses_them(served):
    check_error(served.chat(tools=[WEATHER]), 400, "unsupported", "tools")


def test_thought_and_answer_are_kept_apart(scripted):
    server = scripted(["<th", "ink>\nhm, ", "so</think>\n\n", "Yes."], THINKING)
    message = server.chat().json()["choices"][0]["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm, so", "Yes.")
    body = server.chat().json()
    assert body["usage"]["completion_tokens_details"]["reasoning_tokens"] == 3
    deltas = [chunk["choices"][0]["delta"] for chunk in events(server.chat(stream=True))[:-1]]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == "hm, so"
    assert "".join(d.get("content") or "" for d in deltas) == "Yes."


def test_a_thought_that_used_all_tokens_is_no_answer(scripted):
    server = scripted(["<think>", "hm, "], THINKING)
    server.service.engine.reason = "length"
    choice = server.chat().json()["choices"][0]
    assert choice["message"]["content"] == ""
    assert choice["message"]["reasoning_content"] == "hm, "
    assert choice["finish_reason"] == "length"


def test_thinking_is_switched_off_as_the_template_has_it(scripted):
    server = scripted(["Yes."], THINKING)
    engine = server.service.engine
    for fields in (
        {"reasoning_effort": "none"},
        {"chat_template_kwargs": {"enable_thinking": False}},
    ):
        assert server.chat(**fields).status_code == 200
        assert engine.loaded.tokenizer.decode(engine.requests[-1].prompt).count("think") == 2
    assert server.chat(reasoning_effort="high").status_code == 200
    assert "think" not in engine.loaded.tokenizer.decode(engine.requests[-1].prompt)


@pytest.fixture
def hermes(served):
    """The real model, with a template that has tools."""
    from edgekv.template import ChatTemplate

    tokenizer = served.service.engine.loaded.tokenizer
    own = tokenizer.chat_template
    tokenizer.chat_template = ChatTemplate(HERMES, None, None)
    yield served
    tokenizer.chat_template = own


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str
)
def test_a_forced_call_is_made_whatever_the_model_would_say(hermes, choice):
    body = hermes.chat("Hello!", tools=[WEATHER], tool_choice=choice).json()["choices"][0]
    (call,) = body["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"])["city"] in ("Paris", "Rome")
    assert body["finish_reason"] == "tool_calls"
