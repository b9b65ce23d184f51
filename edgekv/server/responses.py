"""`POST /v1/responses`: OpenAI's newer shape, without state: whole, or as typed events.

The order of events is that of OpenAI's API reference, "Streaming events".
"""

import secrets
from collections.abc import Iterator, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgekv.engine import Prefilled
from edgekv.server.body import read_fields
from edgekv.server.errors import ApiError, invalid
from edgekv.server.fields import Fields
from edgekv.server.generation import Delta, End, Step, Work
from edgekv.server.messages import (
    Message,
    check_count,
    check_length,
    made_call,
    parse_arguments,
    read_content,
)
from edgekv.server.options import read_format, read_max_tokens, read_options
from edgekv.server.output import Content, Reasoning
from edgekv.server.report import extension
from edgekv.server.service import Question, Service
from edgekv.server.sse import collect, event, open_stream
from edgekv.server.thinking import EFFORTS, think
from edgekv.server.tools import ToolCall, read_tools

ROLES = ("system", "developer", "user", "assistant")


async def responses(request: Request) -> Response:
    """The endpoint."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    service.check_model(fields.text("model"))
    question = _question(fields, service)
    stream = bool(fields.flag("stream"))
    fields.log_unknown()
    generation = await service.start(lambda: service.work_of_chat("resp_", question))
    shape = ResponseStream(service, generation.work)
    if stream:
        return await open_stream(request, generation, shape)
    for step in await collect(request, generation):
        # The events make the response as they go; here nobody reads them.
        for _ in shape.step(step):
            pass
    return JSONResponse(shape.response)


def _question(fields: Fields, service: Service) -> Question:
    fields.accept("include", "truncation", "stream_options")
    fields.refuse(
        "previous_response_id", "conversation", "prompt", "max_tool_calls", "top_logprobs"
    )
    fields.flag("background")
    fields.refuse_unless_off("background")
    tokenizer = service.engine.loaded.tokenizer
    options = read_options(
        fields,
        service.settings.config,
        read_max_tokens(fields, "max_output_tokens"),
        service.vocab_size,
    )
    text, reasoning = fields.nested("text"), fields.nested("reasoning")
    if text is not None:
        text.refuse("verbosity")
    effort = None
    if reasoning is not None:
        reasoning.accept("summary", "generate_summary")
        effort = reasoning.choice("effort", EFFORTS)
    return Question(
        _messages(fields),
        options,
        read_tools(fields, tokenizer),
        None if text is None else read_format(text, "format"),
        template=think(effort, tokenizer, "reasoning.effort"),
    )


def _messages(fields: Fields) -> list[Message]:
    """`instructions` and `input` as the messages of a chat."""
    messages: list[Message] = []
    if instructions := fields.text("instructions"):
        messages.append({"role": "system", "content": instructions})
    given = fields.take("input")
    if isinstance(given, str) and given:
        messages.append({"role": "user", "content": given})
    elif isinstance(given, list) and given:
        check_count(given, "input")
        messages += [m for item in fields.nested_list("input") or [] for m in _item(item)]
    else:
        raise fields.wrong("input", "text, or a list of at least one item")
    check_length(messages)
    return messages


def _item(item: Fields) -> list[Message]:
    kind = item.text("type") or "message"
    item.accept("id", "status")
    match kind:
        case "message":
            role = item.choice("role", ROLES)
            if role is None:
                raise item.required("role")
            role = "system" if role == "developer" else role
            return [{"role": role, "content": read_content(item)}]
        case "function_call":
            name = item.text("name")
            if not name:
                raise item.required("name")
            arguments = item.text("arguments") or "{}"
            where = item.name("arguments")
            call = made_call(item.text("call_id") or "", name, parse_arguments(arguments, where))
            return [{"role": "assistant", "content": "", "tool_calls": [call]}]
        case "function_call_output":
            call_id = item.text("call_id") or ""
            output = read_content(item, key="output")
            return [{"role": "tool", "content": output, "tool_call_id": call_id}]
        case "reasoning":
            # A thought of an earlier turn is not shown to the model again.
            return []
    raise invalid(f"{item.name('type')}: {kind[:64]!r} is not supported", item.name("type"))


class ResponseStream:
    """A response that grows by steps, and the events that tell of each."""

    def __init__(self, service: Service, work: Work) -> None:
        self._work = work
        self._number = 0
        self._open: dict[str, Any] | None = None
        self.response: dict[str, Any] = {
            "id": work.id,
            "object": "response",
            "created_at": work.created,
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": work.request.max_tokens,
            "metadata": {},
            "model": service.settings.name,
            "output": [],
            "parallel_tool_calls": work.tools is None or work.tools.parallel,
            "previous_response_id": None,
            "store": False,
            "temperature": work.request.sampling.temp,
            "text": {"format": {"type": "text"}},
            "tool_choice": "auto",
            "tools": [],
            "top_p": work.request.sampling.top_p,
            "truncation": "disabled",
            "usage": None,
        }

    def step(self, step: Step) -> Iterator[str]:
        """The events of a step."""
        if self._number == 0:
            yield self._event("response.created", response=self.response)
            yield self._event("response.in_progress", response=self.response)
        match step:
            case Prefilled(done, total):
                if self._work.progress:
                    yield self._event("edgekv.prefill", done=done, total=total)
            case Delta(Content(text)):
                yield from self._text("message", "output_text", text)
            case Delta(Reasoning(text)):
                yield from self._text("reasoning", "reasoning_text", text)
            case Delta(ToolCall() as call):
                yield from self._call(call)
            case End():
                yield from self._end(step)

    def fault(self, fault: ApiError) -> Iterator[str]:
        """A fault behind the first event."""
        error = fault.body()["error"]
        self.response |= {"status": "failed", "error": error}
        told = {key: error[key] for key in ("code", "message", "param")}
        yield self._event("error", **told, error=error)
        yield self._event("response.failed", response=self.response)

    def _event(self, kind: str, **values: object) -> str:
        number, self._number = self._number, self._number + 1
        return event({"type": kind, "sequence_number": number} | values, kind)

    @property
    def _place(self) -> dict[str, Any]:
        """Which item of the output an event is about."""
        item = self.response["output"][-1]
        return {"item_id": item["id"], "output_index": len(self.response["output"]) - 1}

    def _text(self, kind: str, part: str, text: str) -> Iterator[str]:
        if self._open is None or self._open["type"] != kind:
            yield from self._close()
            yield from self._begin(kind, part)
        assert self._open is not None
        self._open["content"][0]["text"] += text
        extra: dict[str, Any] = {"logprobs": []} if part == "output_text" else {}
        place = self._place | {"content_index": 0, "delta": text}
        yield self._event(f"response.{part}.delta", **place, **extra)

    def _begin(self, kind: str, part: str) -> Iterator[str]:
        prefix = "msg_" if kind == "message" else "rs_"
        head = {"type": kind, "id": _id(prefix), "status": "in_progress"}
        shown: dict[str, Any] = {"role": "assistant"} if kind == "message" else {"summary": []}
        content: dict[str, Any] = {"type": part, "text": ""}
        content |= {"annotations": [], "logprobs": []} if kind == "message" else {}
        yield from self._add(head | shown | {"content": []})
        assert self._open is not None
        yield self._event(
            "response.content_part.added", **self._place, content_index=0, part=dict(content)
        )
        self._open["content"].append(content)

    def _add(self, item: dict[str, Any]) -> Iterator[str]:
        self.response["output"].append(item)
        self._open = item
        yield self._event("response.output_item.added", **_without_id(self._place), item=item)

    def _close(self) -> Iterator[str]:
        item = self._open
        if item is None:
            return
        if item["type"] != "function_call":
            part = item["content"][0]
            place = self._place | {"content_index": 0}
            kind = part["type"]
            extra: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
            yield self._event(f"response.{kind}.done", **place, text=part["text"], **extra)
            yield self._event("response.content_part.done", **place, part=part)
        item["status"] = "completed"
        yield self._event("response.output_item.done", **_without_id(self._place), item=item)
        self._open = None

    def _call(self, call: ToolCall) -> Iterator[str]:
        yield from self._close()
        head = {"type": "function_call", "id": _id("fc_"), "status": "in_progress"}
        yield from self._add(head | {"call_id": call.id, "name": call.name, "arguments": ""})
        assert self._open is not None
        name = "response.function_call_arguments"
        yield self._event(f"{name}.delta", **self._place, delta=call.arguments)
        self._open["arguments"] = call.arguments
        done = self._place | {"name": call.name, "arguments": call.arguments}
        yield self._event(f"{name}.done", **done)
        yield from self._close()

    def _end(self, end: End) -> Iterator[str]:
        yield from self._close()
        cut = end.reason == "length"
        status = "incomplete" if cut else "completed"
        self.response |= {
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "usage": _usage(end),
            "edgekv": extension(self._work, end),
        }
        yield self._event(f"response.{status}", response=self.response)


def _id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(12)}"


def _without_id(place: Mapping[str, Any]) -> dict[str, Any]:
    return {"output_index": place["output_index"]}


def _usage(end: End) -> dict[str, Any]:
    finished = end.finished
    return {
        "input_tokens": finished.prompt_tokens,
        "input_tokens_details": {"cached_tokens": finished.cached_tokens},
        "output_tokens": finished.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": end.reasoning_tokens},
        "total_tokens": finished.prompt_tokens + finished.completion_tokens,
    }
