"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API, text and tools.

Source of shapes and events: Anthropic, API reference, "Messages" and "Streaming messages".
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgekv.engine import Prefilled
from edgekv.server.body import read_fields
from edgekv.server.errors import ApiError, invalid
from edgekv.server.fields import Fields
from edgekv.server.generation import Delta, End, Step, Work
from edgekv.server.messages import Message, check_count, check_length, made_call, read_content
from edgekv.server.options import read_max_tokens, read_options, read_stops
from edgekv.server.output import Content, Part, Reasoning
from edgekv.server.report import extension
from edgekv.server.service import Question, Service
from edgekv.server.sse import collect, event, open_stream
from edgekv.server.thinking import think
from edgekv.server.tools import ToolCall, ToolUse, read_tool, use_tools
from edgekv.tokenizer import Tokenizer

_CHOICES = {"auto": "auto", "any": "required", "tool": "named", "none": "none"}


async def messages(request: Request) -> Response:
    """The endpoint."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    max_tokens = read_max_tokens(fields, "max_tokens")
    if max_tokens is None:
        raise fields.required("max_tokens")
    question = _question(fields, service, max_tokens)
    stream = bool(fields.flag("stream"))
    fields.log_unknown()
    generation = await service.start(lambda: service.work_of_chat("msg_", question))
    if stream:
        return await open_stream(request, generation, MessageStream(service, generation.work))
    steps = await collect(request, generation)
    return JSONResponse(_whole(service, generation.work, steps))


async def count_tokens(request: Request) -> Response:
    """How many tokens a conversation is."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    question = _question(fields, service, None)
    count = await service.beside(lambda: service.count_tokens(question))
    return JSONResponse({"input_tokens": count})


def _question(fields: Fields, service: Service, max_tokens: int | None) -> Question:
    service.check_model(fields.text("model"))
    fields.accept("metadata", "service_tier", "betas")
    fields.refuse("container", "mcp_servers", "context_management", "output_config", "stop")
    tokenizer = service.engine.loaded.tokenizer
    stops = read_stops(fields, "stop_sequences")
    options = read_options(fields, service.settings.config, max_tokens, service.vocab_size)
    tools = _tools(fields, tokenizer)
    return Question(
        _messages(fields),
        options.with_stops(stops),
        tools,
        template=_thinking(fields, tokenizer),
    )


def _thinking(fields: Fields, tokenizer: Tokenizer) -> dict[str, Any]:
    given = fields.nested("thinking")
    if given is None:
        return {}
    kind = given.choice("type", ("enabled", "disabled", "adaptive"))
    given.accept("budget_tokens", "display")
    effort = {"enabled": "medium", "disabled": "none"}.get(kind or "")
    return think(effort, tokenizer, "thinking")


def _tools(fields: Fields, tokenizer: Tokenizer) -> ToolUse | None:
    tools = []
    for one in fields.nested_list("tools") or []:
        one.choice("type", ("custom",))
        one.accept("cache_control")
        tools.append(read_tool(one, "input_schema"))
    given = fields.nested("tool_choice")
    if given is None:
        return use_tools(tools, "auto", None, True, tokenizer)
    kind = given.choice("type", tuple(_CHOICES))
    if kind is None:
        raise given.required("type")
    parallel = not given.flag("disable_parallel_tool_use")
    return use_tools(tools, _CHOICES[kind], given.text("name"), parallel, tokenizer)


def _messages(fields: Fields) -> list[Message]:
    found: list[Message] = []
    system = read_content(fields, optional=True, key="system")
    if system:
        found.append({"role": "system", "content": system})
    given = fields.nested_list("messages")
    if not given:
        raise fields.wrong("messages", "a list with a message in it")
    check_count(given, "messages")
    for one in given:
        role = one.choice("role", ("user", "assistant"))
        if role is None:
            raise one.required("role")
        found += _blocks(one, role)
    check_length(found)
    return found


def _blocks(message: Fields, role: str) -> list[Message]:
    """A message's blocks: results of tools are messages of their own to a template."""
    if isinstance(message.take("content"), str):
        return [{"role": role, "content": read_content(message)}]
    results: list[Message] = []
    text, calls = [], []
    for block in message.nested_list("content") or []:
        block.accept("cache_control", "citations")
        match block.text("type"):
            case "text":
                text.append(_required(block, "text"))
            case "tool_use":
                arguments = block.nested("input")
                values = {} if arguments is None else arguments.values
                calls.append(made_call(block.text("id") or "", _required(block, "name"), values))
            case "tool_result":
                content = read_content(block, optional=True)
                call_id = _required(block, "tool_use_id")
                results.append({"role": "tool", "content": content, "tool_call_id": call_id})
            case "thinking" | "redacted_thinking":
                # A thought of an earlier turn is not shown to the model again.
                continue
            case kind:
                name = block.name("type")
                raise invalid(
                    f"{name}: this model reads text alone, got {str(kind)[:64]!r}",
                    name,
                    "unsupported_content",
                )
    own: Message = {"role": role, "content": "".join(text)}
    if calls:
        own["tool_calls"] = calls
    if not (text or calls or results):
        raise message.wrong("content", "text, or a list of at least one block")
    return [*results, own] if text or calls else results


def _required(block: Fields, key: str) -> str:
    value = block.text(key)
    if value is None:
        raise block.required(key)
    return value


def _usage(end: End) -> dict[str, Any]:
    """Anthropic counts what was read from a cache apart from the rest of the input."""
    finished = end.finished
    return {
        "input_tokens": finished.prompt_tokens - finished.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": finished.cached_tokens,
        "output_tokens": finished.completion_tokens,
    }


def _ending(end: End) -> dict[str, Any]:
    reasons = {"length": "max_tokens", "tool_calls": "tool_use", "stop": "end_turn"}
    stop = end.finished.stop if end.detail == "stop" else None
    reason = reasons[end.reason] if stop is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": stop}


def _head(service: Service, work: Work) -> dict[str, Any]:
    return {
        "id": work.id,
        "type": "message",
        "role": "assistant",
        "model": service.settings.name,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
    }


def _block(part: Part) -> dict[str, Any]:
    """A part's block before anything is in it."""
    match part:
        case Content():
            return {"type": "text", "text": ""}
        case Reasoning():
            return {"type": "thinking", "thinking": "", "signature": ""}
        case ToolCall():
            return {"type": "tool_use", "id": part.id, "name": part.name, "input": {}}


def _whole(service: Service, work: Work, steps: Sequence[Step]) -> dict[str, Any]:
    end = steps[-1]
    assert isinstance(end, End)
    blocks: list[dict[str, Any]] = []
    for step in steps:
        if not isinstance(step, Delta):
            continue
        block = _block(step.part)
        if isinstance(step.part, ToolCall):
            blocks.append(block | {"input": json.loads(step.part.arguments)})
            continue
        if not blocks or blocks[-1]["type"] != block["type"]:
            blocks.append(block)
        blocks[-1]["text" if isinstance(step.part, Content) else "thinking"] += step.part.text
    head = _head(service, work) | {"content": blocks} | _ending(end)
    return head | {"usage": _usage(end), "edgekv": extension(work, end)}


class MessageStream:
    """Blocks one behind another, each opened, filled and closed by events of its own."""

    def __init__(self, service: Service, work: Work) -> None:
        self._service, self._work = service, work
        self._opened = False
        self._index = -1
        self._kind: str | None = None

    def step(self, step: Step) -> Iterator[str]:
        """The events of a step."""
        if not self._opened:
            self._opened = True
            counts = {"input_tokens": len(self._work.request.prompt), "output_tokens": 0}
            head = _head(self._service, self._work) | {"usage": counts}
            yield _event("message_start", message=head)
        match step:
            case Prefilled():
                yield _event("ping")
            case Delta(part):
                yield from self._part(part)
            case End():
                yield from self._close()
                yield _event(
                    "message_delta",
                    delta=_ending(step),
                    usage=_usage(step),
                    edgekv=extension(self._work, step),
                )
                yield _event("message_stop")

    def fault(self, fault: ApiError) -> Iterator[str]:
        """A fault behind the first event."""
        yield event(fault.body("/v1/messages"), "error")

    def _part(self, part: Part) -> Iterator[str]:
        block = _block(part)
        if block["type"] != self._kind or isinstance(part, ToolCall):
            yield from self._close()
            self._index, self._kind = self._index + 1, block["type"]
            yield _event("content_block_start", index=self._index, content_block=block)
        match part:
            case Content(text):
                delta = {"type": "text_delta", "text": text}
            case Reasoning(text):
                delta = {"type": "thinking_delta", "thinking": text}
            case ToolCall():
                delta = {"type": "input_json_delta", "partial_json": part.arguments}
        yield _event("content_block_delta", index=self._index, delta=delta)

    def _close(self) -> Iterator[str]:
        if self._kind is not None:
            self._kind = None
            yield _event("content_block_stop", index=self._index)


def _event(kind: str, **values: object) -> str:
    return event({"type": kind} | values, kind)
