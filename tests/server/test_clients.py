"""The openai client for Python, over loopback, as programs use it."""

import json
from typing import Literal

import openai
import pytest
from pydantic import BaseModel

from tests.server.conftest import HERMES, NAME
from tests.server.test_tools import CALLED, TIME, WEATHER

pytestmark = pytest.mark.model

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
PARIS = "The capital of France is Paris."


def client_of(server, **options):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, **options)


@pytest.fixture
def client(served):
    with client_of(served) as client:
        yield client


def test_chat_and_a_stream_with_usage(client):
    whole = client.chat.completions.create(model=NAME, messages=FRANCE)
    assert whole.choices[0].message.content == PARIS
    stream = client.chat.completions.create(
        model=NAME, messages=FRANCE, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == PARIS
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_the_streaming_assistant_puts_the_same_answer_together(client):
    with client.chat.completions.stream(model=NAME, messages=FRANCE) as stream:
        assert stream.get_final_completion().choices[0].message.content == PARIS


def test_json_schema_is_parsed_into_a_model(client):
    class City(BaseModel):
        size: Literal["small", "large"]

    parsed = client.chat.completions.parse(model=NAME, messages=FRANCE, response_format=City)
    assert parsed.choices[0].message.parsed.size in ("small", "large")


def test_tools_whole_and_streamed(scripted):
    with client_of(scripted(CALLED, HERMES)) as client:
        fields = {"model": NAME, "messages": FRANCE, "tools": [WEATHER, TIME]}
        message = client.chat.completions.create(**fields).choices[0].message
        assert json.loads(message.tool_calls[0].function.arguments) == {"city": "Rome"}
        with client.chat.completions.stream(**fields) as stream:
            calls = stream.get_final_completion().choices[0].message.tool_calls
        assert [call.function.name for call in calls] == ["weather", "time"]


def test_completions_models_and_responses(client):
    text = client.completions.create(model=NAME, prompt="One, two, three,", max_tokens=4)
    assert text.choices[0].text
    assert [model.id for model in client.models.list()] == [NAME]
    assert client.models.retrieve(NAME).owned_by == "edgekv"
    response = client.responses.create(model=NAME, input=FRANCE[0]["content"])
    assert response.output_text == PARIS
    with client.responses.stream(model=NAME, input=FRANCE[0]["content"]) as stream:
        assert stream.get_final_response().output_text == PARIS


def test_faults_are_the_clients_own_exceptions(client):
    with pytest.raises(openai.NotFoundError, match="is not served here") as fault:
        client.chat.completions.create(model="gpt-4o", messages=FRANCE)
    assert fault.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as fault:
        client.chat.completions.create(model=NAME, messages=FRANCE, temperature=9)
    assert (fault.value.param, fault.value.type) == ("temperature", "invalid_request_error")


def test_a_fault_in_a_stream_is_an_exception_too(scripted):
    with client_of(scripted(["a", RuntimeError("x")])) as client:
        stream = client.chat.completions.create(model=NAME, messages=FRANCE, stream=True)
        with pytest.raises(openai.APIError, match="the server failed"):
            list(stream)


def test_the_client_in_process_without_a_socket(served):
    import asyncio

    import httpx

    from edgekv.server.app import make_app
    from edgekv.server.security import Access

    async def ask():
        transport = httpx.ASGITransport(make_app(served.service, Access()))
        http = httpx.AsyncClient(transport=transport, base_url="http://localhost")
        client = openai.AsyncOpenAI(base_url="http://localhost/v1", api_key="x", http_client=http)
        async with client:
            answer = await client.chat.completions.create(model=NAME, messages=FRANCE)
        return answer.choices[0].message.content

    assert asyncio.run(ask()) == PARIS
