"""`POST /v1/completions`: text or tokens continued, without a template."""

from collections.abc import Iterator, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from edgekv.conversation import MAX_PROMPT, Prompt, raw_prompt
from edgekv.engine import Prefilled, TokenScore
from edgekv.server.body import read_fields
from edgekv.server.chat import read_stream
from edgekv.server.errors import ApiError, invalid, unsupported
from edgekv.server.fields import Fields
from edgekv.server.generation import Delta, End, Step, Work
from edgekv.server.options import check_n, read_max_tokens, read_options
from edgekv.server.output import Content
from edgekv.server.report import extension, usage
from edgekv.server.service import Service
from edgekv.server.sse import DONE, collect, event, open_stream
from edgekv.tokenizer import Tokenizer


async def completions(request: Request) -> Response:
    """The endpoint."""
    service: Service = request.app.state.service
    fields = await read_fields(request)
    service.check_model(fields.text("model"))
    check_n(fields)
    if fields.integer("best_of", 1, 128) != 1:
        fields.refuse("best_of")
    fields.flag("echo")
    fields.refuse_unless_off("echo")
    fields.refuse("suffix", "tools", "response_format", "messages")
    max_tokens = read_max_tokens(fields, "max_tokens", "max_completion_tokens")
    options = read_options(fields, service.settings.config, max_tokens, service.vocab_size)
    if options.extension.session_id is not None or options.extension.persist:
        raise unsupported("edgekv.session_id: a session is a chat's", "edgekv.session_id")
    scores = fields.integer("logprobs", 0, 20)
    prompt = _read_prompt(fields, service)
    stream, with_usage = read_stream(fields)
    fields.log_unknown()

    def make() -> Work:
        if isinstance(prompt, str):
            tokens = raw_prompt(service.engine.loaded.tokenizer, prompt)
        else:
            tokens = Prompt(tuple(prompt))
        return service.work_of_tokens("cmpl-", tokens, options, None, scores)

    generation = await service.start(make)
    if stream:
        shape = CompletionStream(service, generation.work, with_usage)
        return await open_stream(request, generation, shape)
    return JSONResponse(_whole(service, generation.work, await collect(request, generation)))


def _read_prompt(fields: Fields, service: Service) -> str | Sequence[int]:
    """Text, token ids, or a list of one of either."""
    prompt = fields.take("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and isinstance(prompt[0], str | list):
        prompt = prompt[0]
    if isinstance(prompt, str) and prompt:
        if len(prompt) > MAX_PROMPT:
            raise invalid(
                f"the prompt has {len(prompt):,} characters, over the limit of {MAX_PROMPT:,}",
                "prompt",
                "context_length_exceeded",
            )
        return prompt
    size = service.vocab_size
    whole = isinstance(prompt, list) and all(type(token) is int for token in prompt)
    if not whole or not prompt or not all(0 <= token < size for token in prompt):
        raise fields.wrong("prompt", f"text, or a list of token ids from 0 to {size - 1}")
    assert isinstance(prompt, list)
    return prompt


def _head(service: Service, work: Work) -> dict[str, Any]:
    return {
        "id": work.id,
        "object": "text_completion",
        "created": work.created,
        "model": service.settings.name,
        "system_fingerprint": service.fingerprint,
    }


def _choice(text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:  # noqa: ANN401
    return {"index": 0, "text": text, "logprobs": logprobs, "finish_reason": reason}


def _whole(service: Service, work: Work, steps: Sequence[Step]) -> dict[str, Any]:
    end = steps[-1]
    assert isinstance(end, End)
    deltas = [step for step in steps if isinstance(step, Delta)]
    text = "".join(step.part.text for step in deltas if isinstance(step.part, Content))
    logprobs = Logprobs(service.engine.loaded.tokenizer, work)
    scores = logprobs.of([score for step in deltas for score in step.scores])
    return _head(service, work) | {
        "choices": [_choice(text, scores, end.reason)],
        "usage": usage(end),
        "edgekv": extension(work, end),
    }


class Logprobs:
    """Scores in the form that completions have them, with each token's place in the text."""

    def __init__(self, tokenizer: Tokenizer, work: Work) -> None:
        self._tokenizer = tokenizer
        self._wanted = work.request.scores is not None
        self._offset = 0

    def of(self, scores: Sequence[TokenScore]) -> dict[str, Any] | None:
        """The next tokens' scores."""
        if not self._wanted:
            return None
        tokens = [self._text(score.token) for score in scores]
        offsets = []
        for text in tokens:
            offsets.append(self._offset)
            self._offset += len(text)
        top = [{self._text(token): value for token, value in score.top} for score in scores]
        return {
            "tokens": tokens,
            "token_logprobs": [score.logprob for score in scores],
            "top_logprobs": top,
            "text_offset": offsets,
        }

    def _text(self, token: int) -> str:
        return self._tokenizer.piece(token).decode("utf-8", "replace")


class CompletionStream:
    """As a chat's stream, with text in place of deltas."""

    def __init__(self, service: Service, work: Work, with_usage: bool) -> None:
        self._service, self._work = service, work
        self._with_usage = with_usage
        self._logprobs = Logprobs(service.engine.loaded.tokenizer, work)

    def step(self, step: Step) -> Iterator[str]:
        """The events of a step."""
        match step:
            case Prefilled(done, total):
                if self._work.progress:
                    yield self._chunk([], edgekv={"prefill": {"done": done, "total": total}})
            case Delta(Content(text), scores):
                yield self._chunk([_choice(text, self._logprobs.of(scores), None)])
            case End():
                last = _choice("", None, step.reason)
                yield self._chunk([last], edgekv=extension(self._work, step))
                if self._with_usage:
                    yield self._chunk([], usage=usage(step))
                yield DONE

    def fault(self, fault: ApiError) -> Iterator[str]:
        """A fault behind the first event, and the end."""
        yield event(fault.body())
        yield DONE

    def _chunk(self, choices: Sequence[Any], **extra: object) -> str:
        empty = {"usage": None} if self._with_usage else {}
        return event(_head(self._service, self._work) | {"choices": choices} | empty | extra)
