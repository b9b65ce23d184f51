"""`POST /v1/chat/completions`: OpenAI's chat, as its API reference and its clients have it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgekv.engine import Prefilled, TokenScore
from edgekv.server.body import read_fields
from edgekv.server.errors import ApiError, unsupported
from edgekv.server.fields import Fields
from edgekv.server.generation import Delta, End, Step, Work
from edgekv.server.messages import read_messages
from edgekv.server.options import (
    check_n,
    read_format,
    read_logprobs,
    read_max_tokens,
    read_options,
)
from edgekv.server.output import Content, Reasoning
from edgekv.server.report import extension, usage
from edgekv.server.service import Question, Service
from edgekv.server.sse import DONE, collect, event, open_stream
from edgekv.server.thinking import read_thinking
from edgekv.server.tools import ToolCall, read_tools
from edgekv.tokenizer import Tokenizer


async def chat(request: Request) -> Response:
    """The endpoint."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    service.check_model(fields.text("model"))
    question = read_question(fields, service)
    stream, with_usage = read_stream(fields)
    fields.log_unknown()
    generation = await service.start(lambda: service.work_of_chat("chatcmpl-", question))
    if stream:
        shape = ChatStream(service, generation.work, with_usage)
        return await open_stream(request, generation, shape)
    return JSONResponse(whole(service, generation.work, await collect(request, generation)))


def read_question(fields: Fields, service: Service) -> Question:
    """What is asked. Raises ApiError."""
    tokenizer = service.engine.loaded.tokenizer
    check_n(fields)
    fields.refuse("audio", "web_search_options", "verbosity", "best_of", "echo", "suffix")
    if fields.take("modalities") not in (None, ["text"]):
        raise unsupported('modalities: this model writes text: ["text"]', "modalities")
    options = read_options(
        fields,
        service.settings.config,
        read_max_tokens(fields, "max_completion_tokens", "max_tokens"),
        service.vocab_size,
    )
    return Question(
        read_messages(fields),
        options,
        read_tools(fields, tokenizer),
        read_format(fields, "response_format"),
        read_logprobs(fields),
        read_thinking(fields, tokenizer),
    )


def read_stream(fields: Fields) -> tuple[bool, bool]:
    """Whether to stream, and whether with a chunk of usage."""
    stream = bool(fields.flag("stream"))
    options = fields.nested("stream_options")
    if options is None:
        return stream, False
    if not stream:
        raise fields.wrong("stream_options", "to be absent without stream")
    options.accept("include_obfuscation")
    return stream, bool(options.flag("include_usage"))


def whole(service: Service, work: Work, steps: Sequence[Step]) -> dict[str, Any]:
    """A chat completion."""
    parts = [step.part for step in steps if isinstance(step, Delta)]
    end = steps[-1]
    assert isinstance(end, End)
    calls = [part for part in parts if isinstance(part, ToolCall)]
    content = "".join(part.text for part in parts if isinstance(part, Content))
    message: dict[str, Any] = {
        "role": "assistant",
        "content": None if calls and not content else content,
        "refusal": None,
    }
    if thought := "".join(part.text for part in parts if isinstance(part, Reasoning)):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = [_call(call) for call in calls]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(service, work, [s for x in steps for s in _scores(x)]),
        "finish_reason": end.reason,
    }
    return _head(service, work, "chat.completion") | {
        "choices": [choice],
        "usage": usage(end),
        "edgekv": extension(work, end),
    }


def _head(service: Service, work: Work, kind: str) -> dict[str, Any]:
    return {
        "id": work.id,
        "object": kind,
        "created": work.created,
        "model": service.settings.name,
        "system_fingerprint": service.fingerprint,
    }


def _call(call: ToolCall) -> dict[str, Any]:
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _scores(step: Step) -> Sequence[TokenScore]:
    return step.scores if isinstance(step, Delta) else ()


def _logprobs(service: Service, work: Work, scores: Sequence[TokenScore]) -> Any:  # noqa: ANN401
    if work.request.scores is None:
        return None
    tokenizer = service.engine.loaded.tokenizer
    return {"content": [_token(tokenizer, score) for score in scores], "refusal": None}


def _token(tokenizer: Tokenizer, score: TokenScore) -> dict[str, Any]:
    top = [_scored(tokenizer, token, logprob) for token, logprob in score.top]
    return _scored(tokenizer, score.token, score.logprob) | {"top_logprobs": top}


def _scored(tokenizer: Tokenizer, token: int, logprob: float) -> dict[str, Any]:
    piece = tokenizer.piece(token)
    text = piece.decode("utf-8", "replace")
    return {"token": text, "logprob": logprob, "bytes": list(piece)}


class ChatStream:
    """One id and one time in every chunk; the role first, the reason once, usage if asked for."""

    def __init__(self, service: Service, work: Work, with_usage: bool) -> None:
        self._service, self._work = service, work
        self._with_usage = with_usage
        self._opened = False
        self._calls = 0

    def step(self, step: Step) -> Iterator[str]:
        """The events of a step."""
        if not self._opened:
            self._opened = True
            yield self._chunk({"role": "assistant", "content": ""})
        match step:
            case Prefilled(done, total):
                if self._work.progress:
                    yield self._chunk({}, edgekv={"prefill": {"done": done, "total": total}})
            case Delta(part, scores):
                yield from self._delta(part, scores)
            case End():
                yield self._chunk({}, step.reason, edgekv=extension(self._work, step))
                if self._with_usage:
                    yield event(self._frame([]) | {"usage": usage(step)})
                yield DONE

    def fault(self, fault: ApiError) -> Iterator[str]:
        """A fault behind the first event, and the end."""
        yield event(fault.body())
        yield DONE

    def _delta(
        self, part: Content | Reasoning | ToolCall, scores: Sequence[TokenScore]
    ) -> Iterator[str]:
        match part:
            case Content(text):
                yield self._chunk({"content": text}, scores=scores)
            case Reasoning(text):
                yield self._chunk({"reasoning_content": text}, scores=scores)
            case ToolCall():
                index, self._calls = self._calls, self._calls + 1
                begun = _call(part) | {"function": {"name": part.name, "arguments": ""}}
                yield self._chunk({"tool_calls": [{"index": index} | begun]})
                rest = {"index": index, "function": {"arguments": part.arguments}}
                yield self._chunk({"tool_calls": [rest]})

    def _chunk(
        self,
        delta: Mapping[str, Any],
        reason: str | None = None,
        scores: Sequence[TokenScore] = (),
        **extra: object,
    ) -> str:
        logprobs = _logprobs(self._service, self._work, scores) if scores else None
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return event(self._frame([choice]) | extra)

    def _frame(self, choices: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        frame = _head(self._service, self._work, "chat.completion.chunk") | {"choices": choices}
        return frame | {"usage": None} if self._with_usage else frame
