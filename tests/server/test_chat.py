"""Chat completions on the default model."""

import json

import pytest

from tests.server.conftest import NAME, check_error, events

pytestmark = pytest.mark.model

FRANCE = "What is the capital of France?"


def test_a_whole_answer_has_openais_shape(served):
    body = served.chat(FRANCE, max_tokens=20).json()
    assert body["id"].startswith("chatcmpl-")
    assert body["object"] == "chat.completion"
    assert isinstance(body["created"], int)
    assert body["model"] == NAME
    assert body["system_fingerprint"].startswith("edgekv-")
    (choice,) = body["choices"]
    assert choice == {
        "index": 0,
        "message": {
            "role": "assistant",
            "content": "The capital of France is Paris.",
            "refusal": None,
        },
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert body["usage"]["prompt_tokens"] == 37
    assert body["usage"]["completion_tokens"] == 8
    assert body["usage"]["total_tokens"] == 45
    assert body["edgekv"]["stop_detail"] == "eos"
    assert body["edgekv"]["window"] == 512


def test_a_stream_has_one_id_the_role_once_one_reason_usage_and_done(served):
    response = served.chat(FRANCE, stream=True, stream_options={"include_usage": True})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-cache"
    assert response.headers["x-accel-buffering"] == "no"
    assert response.headers["x-request-id"].startswith("req_")
    *chunks, last, done = events(response)
    assert done == "[DONE]"
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 8
    assert {chunk["object"] for chunk in [*chunks, last]} == {"chat.completion.chunk"}
    assert len({(chunk["id"], chunk["created"]) for chunk in [*chunks, last]}) == 1
    assert all(chunk["usage"] is None for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert [delta for delta in deltas if "role" in delta] == deltas[:1]
    assert deltas[-1] == {}
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


def test_usage_is_sent_only_where_it_is_asked_for(served):
    chunks = events(served.chat(FRANCE, stream=True, max_tokens=2))[:-1]
    assert all("usage" not in chunk and chunk["choices"] for chunk in chunks)


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["ital of Fr"]},
        {"stop": "never said"},
        {"temperature": 1.5, "seed": 7, "max_tokens": 12},
        {"temperature": 0.8, "seed": -1, "top_k": 5, "min_p": 0.1, "max_tokens": 8},
    ],
    ids=str,
)
def test_a_stream_and_a_whole_answer_agree(served, fields):
    whole = served.chat(FRANCE, **fields).json()
    *chunks, last, _ = events(
        served.chat(FRANCE, stream=True, stream_options={"include_usage": True}, **fields)
    )
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    text = "".join(delta.get("content") or "" for delta in deltas)
    choice = whole["choices"][0]
    assert text == choice["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == choice["finish_reason"]
    for count in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert last["usage"][count] == whole["usage"][count]


def test_a_stop_string_across_tokens_is_never_let_out_even_in_part(served):
    body = served.chat(FRANCE, stop=["ital of Fr"]).json()
    assert body["choices"][0]["message"]["content"] == "The cap"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["edgekv"]["stop_detail"] == "stop"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/v1/completions", {"prompt": "One, two, three,", "stop": ["our"]}),
        (
            "/v1/chat/completions",
            {
                "messages": [{"role": "user", "content": FRANCE}],
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"schema": {"enum": ["the capital of France"]}},
                },
                "stop": ["ital of"],
            },
        ),
    ],
    ids=["completions", "json"],
)
def test_every_route_and_mode_has_the_same_stops(served, path, fields, stream):
    body = fields | {"max_tokens": 12, "stream": stream}
    response = served.client.post(path, json=body)
    assert response.status_code == 200
    assert fields["stop"][0] not in response.text
    assert '"finish_reason":"stop"' in response.text
    assert '"stop_detail":"stop"' in response.text


def test_a_reply_three_windows_long_ends_where_it_was_asked_to(served):
    ends = {str(token): -100 for token in served.service.engine.loaded.tokenizer.eos_ids}
    fields = {"max_tokens": 51, "logit_bias": ends, "edgekv": {"window": 16}}
    body = served.chat("Go on.", **fields).json()
    assert body["usage"]["completion_tokens"] == 51
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["edgekv"]["evicted_tokens"] > 50


def test_without_max_tokens_a_reply_is_finite(scripted):
    server = scripted()
    server.chat("hi")
    assert server.service.engine.requests[-1].max_tokens == 1024


def test_length_is_the_reason_of_a_reply_that_was_cut(served):
    body = served.chat(FRANCE, max_tokens=2).json()
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 2
    assert body["edgekv"]["stop_detail"] == "max_tokens"


def test_max_completion_tokens_goes_before_max_tokens(served):
    body = served.chat(FRANCE, max_tokens=5, max_completion_tokens=1).json()
    assert body["usage"]["completion_tokens"] == 1


def test_null_is_the_same_as_absent_in_every_field(served):
    fields = [
        "model",
        "max_tokens",
        "max_completion_tokens",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "seed",
        "stop",
        "stream",
        "stream_options",
        "n",
        "logprobs",
        "top_logprobs",
        "logit_bias",
        "response_format",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "reasoning_effort",
        "chat_template_kwargs",
        "user",
        "metadata",
        "store",
        "service_tier",
        "modalities",
        "timeout",
        "edgekv",
        "audio",
        "functions",
        "function_call",
        "prediction",
        "verbosity",
        "web_search_options",
    ]
    body = served.chat(FRANCE, **dict.fromkeys(fields)).json()
    assert body["choices"][0]["message"]["content"] == "The capital of France is Paris."


def test_fields_that_say_nothing_of_the_answer_and_unknown_ones_are_accepted(served):
    body = served.chat(
        FRANCE,
        user="me",
        metadata={"a": "b"},
        store=True,
        service_tier="auto",
        safety_identifier="x",
        modalities=["text"],
        quite_unknown={"x": 1},
        max_tokens=1,
    )
    assert body.status_code == 200


def test_the_same_seed_gives_the_same_answer_and_another_one_another(served):
    def text(seed):
        body = served.chat("Tell me a story.", temperature=1.2, seed=seed, max_tokens=12).json()
        return body["choices"][0]["message"]["content"]

    assert text(7) == text(7) != text(8)


def test_the_identical_request_five_times_gives_identical_text(served):
    texts = {
        served.chat("Name three rivers.", max_tokens=8).json()["choices"][0]["message"]["content"]
        for _ in range(5)
    }
    assert len(texts) == 1


def test_logprobs_come_with_each_token_and_its_rivals(served):
    body = served.chat(FRANCE, max_tokens=4, logprobs=True, top_logprobs=3).json()
    content = body["choices"][0]["logprobs"]["content"]
    assert [token["token"] for token in content] == ["The", " capital", " of", " France"]
    for token in content:
        assert bytes(token["bytes"]).decode() == token["token"]
        top = token["top_logprobs"]
        assert len(top) == 3
        assert top[0] == {key: token[key] for key in ("token", "logprob", "bytes")}
        assert 0 >= top[0]["logprob"] >= top[1]["logprob"] >= top[2]["logprob"]


def test_logprobs_stream_as_they_are_whole(served):
    fields = {"max_tokens": 4, "logprobs": True, "top_logprobs": 1}
    whole = served.chat(FRANCE, **fields).json()["choices"][0]["logprobs"]["content"]
    chunks = events(served.chat(FRANCE, stream=True, **fields))[:-1]
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    streamed = [token for part in parts if part for token in part["content"]]
    assert [t["token"] for t in streamed] == [t["token"] for t in whole]


def test_logit_bias_bans_and_forces_tokens(served):
    (token,) = served.service.engine.loaded.tokenizer.encode(" Paris")
    banned = served.chat(FRANCE, max_tokens=12, logit_bias={str(token): -100}).json()
    assert "Paris" not in banned["choices"][0]["message"]["content"]
    forced = served.chat(FRANCE, max_tokens=3, logit_bias={str(token): 100}).json()
    assert forced["choices"][0]["message"]["content"] == " Paris Paris Paris"


def test_penalties_change_a_repeating_answer(served):
    def text(**penalty):
        fields = {"prompt": "la la la la la la la la", "max_tokens": 10, **penalty}
        return served.client.post("/v1/completions", json=fields).json()["choices"][0]["text"]

    plain = text()
    assert text(frequency_penalty=2) != plain
    assert text(presence_penalty=2) != plain
    assert text(repetition_penalty=2) != plain


def test_json_schema_is_followed(served):
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "size": {"enum": ["small", "large"]},
        },
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    for stream in (False, True):
        response = served.chat(
            FRANCE,
            stream=stream,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "city", "strict": True, "schema": schema},
            },
        )
        if stream:
            deltas = [chunk["choices"][0]["delta"] for chunk in events(response)[:-1]]
            text = "".join(delta.get("content") or "" for delta in deltas)
        else:
            text = response.json()["choices"][0]["message"]["content"]
        answer = json.loads(text)
        assert set(answer) == {"city", "size"}
        assert answer["size"] in ("small", "large")


def test_json_object_is_an_object(served):
    fields = {"response_format": {"type": "json_object"}, "max_tokens": 30}
    body = served.chat("Answer in JSON with the key ok.", **fields).json()
    text = body["choices"][0]["message"]["content"]
    assert text.lstrip().startswith("{")
    if body["choices"][0]["finish_reason"] == "stop":
        assert isinstance(json.loads(text), dict)


def test_a_conversation_far_over_the_window_counts_what_was_sent_and_what_rolled_out(served):
    response = served.chat("The word is plum. " + "a b c d e f g h " * 80, max_tokens=1)
    body = response.json()
    used = body["usage"]["prompt_tokens"]
    assert used > 640
    window = body["edgekv"]["window"] + body["edgekv"]["sinks"] + body["edgekv"]["pinned"]
    assert body["edgekv"]["evicted_tokens"] in (used - window, used - window + 1)


def test_overflow_error_names_both_numbers_and_roll_does_not_mind(served):
    long = "word " * 700
    refused = served.chat(long, edgekv={"overflow": "error"})
    error = check_error(refused, 400, "context_length_exceeded", "messages")
    assert "n_prompt_tokens=" in error["message"] and "n_ctx=516" in error["message"]
    assert served.chat(long, edgekv={"overflow": "roll"}, max_tokens=1).status_code == 200


def test_overflow_error_ends_a_reply_that_would_roll(served):
    extension = {"overflow": "error", "window": 60}
    body = served.chat("Tell me a long story.", edgekv=extension).json()
    assert body["usage"]["total_tokens"] == 64
    assert body["choices"][0]["finish_reason"] == "length"
    assert body["edgekv"]["evicted_tokens"] == 0


def test_a_max_tokens_far_over_the_window_changes_nothing_of_the_prompt(served):
    few = served.chat(FRANCE, max_tokens=8).json()
    many = served.chat(FRANCE, max_tokens=1_000_000).json()
    assert few["usage"]["prompt_tokens"] == many["usage"]["prompt_tokens"]
    assert few["choices"][0]["message"] == many["choices"][0]["message"]


def test_the_extension_chooses_window_sinks_and_bits_within_the_servers(served):
    extension = {"window": 100, "sinks": 8, "kv_bits": 2}
    report = served.chat(FRANCE, max_tokens=1, edgekv=extension).json()["edgekv"]
    assert (report["window"], report["sinks"], report["kv_bits"]) == (100, 8, 2)
    assert report["kv_bytes"] < served.chat(FRANCE, max_tokens=1).json()["edgekv"]["kv_bytes"]


def test_progress_of_a_prompt_is_sent_where_it_is_asked_for(served):
    response = served.chat(
        "plum " * 1100, stream=True, max_tokens=1, edgekv={"return_progress": True}
    )
    done = [
        chunk["edgekv"]["prefill"]["done"]
        for chunk in events(response)[:-1]
        if "prefill" in chunk.get("edgekv", {})
    ]
    assert len(done) >= 2 and done == sorted(done)


def test_parts_are_joined_and_roles_of_openai_are_known(served):
    messages = [
        {"role": "developer", "content": "Answer in one word."},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "What is the capital "},
                {"type": "text", "text": "of France?"},
            ],
        },
    ]
    body = served.client.post(
        "/v1/chat/completions", json={"messages": messages, "max_tokens": 8}
    ).json()
    assert "Paris" in body["choices"][0]["message"]["content"]


def test_characters_of_many_bytes_are_whole_in_a_stream(served):
    text = "👩‍👩‍👧‍👦 🇫🇷 日本語 हिन्दी"
    response = served.chat(f"Repeat exactly: {text}", stream=True, max_tokens=24)
    pieces = []
    for chunk in events(response)[:-1]:
        if chunk["choices"][0]["delta"].get("content"):
            pieces.append(chunk["choices"][0]["delta"]["content"])
    # Only a reply that is cut may end within a character.
    assert "\ufffd" not in "".join(pieces[:-1])
    assert any(ord(character) > 127 for character in "".join(pieces))


def test_the_model_may_be_named_by_its_name_or_alias_or_not_at_all(served):
    for model in (None, NAME):
        assert served.chat(max_tokens=1, model=model).status_code == 200
    error = check_error(served.chat(model="gpt-4o"), 404, "model_not_found", "model")
    assert NAME in error["message"]
