"""The model behind the routes: what a request comes to, and who may be served now."""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from typing import Any, Literal, TypeVar

from edgekv import __version__
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.config import Config
from edgekv.conversation import Prompt, chat_prompt
from edgekv.engine import Engine, Request
from edgekv.errors import EdgekvError, TemplateError
from edgekv.grammar import Grammar
from edgekv.server.errors import ApiError, from_fault, invalid, not_found, overloaded, unsupported
from edgekv.server.generation import Generation, LoopReply, Work
from edgekv.server.messages import Message, folded
from edgekv.server.metrics import Metrics
from edgekv.server.options import Extension, Options
from edgekv.server.output import THINK
from edgekv.server.recording import Recording
from edgekv.server.tools import ToolUse
from edgekv.sessions import Store

T = TypeVar("T")


@dataclass(frozen=True)
class Settings:
    """What a server was started with.

    name: the model's, in answers; aliases: other names it is asked for by. policy: the cache of a
    request that asks for no other, and the most that one may ask for. queue: requests that may
    wait beside those that run. kv_budget: bytes of all together, to be shown.
    """

    name: str
    config: Config
    policy: CachePolicy
    aliases: frozenset[str] = frozenset()
    overflow: Literal["roll", "error"] = "roll"
    pin_system: bool = True
    running: int = 4
    queue: int = 32
    kv_budget: int = 0


@dataclass(frozen=True)
class Question:
    """A conversation, and how the answer is to be made."""

    messages: Sequence[Message]
    options: Options
    tools: ToolUse | None = None
    grammar: Grammar | None = None
    scores: int | None = None
    template: Mapping[str, object] = field(default_factory=dict)


class Service:
    """Owned by the server's event loop, but for `work_of…`, which are for threads beside it."""

    def __init__(self, engine: Engine, settings: Settings, store: Store | None = None) -> None:
        self.engine, self.settings = engine, settings
        self.store = store if store is not None and store.writable else None
        self.metrics = Metrics()
        self.started = int(time.time())
        self.closing = False
        self._under_way: dict[str, Generation] = {}
        self._admitted = 0
        self.fingerprint = "edgekv-" + _digest(settings.name, settings.policy)

    @property
    def vocab_size(self) -> int:
        """Tokens that the model has a score for."""
        size: int = self.engine.loaded.config["vocab_size"]
        return size

    @property
    def in_flight(self) -> int:
        """Requests that were let in and are not answered yet."""
        return self._admitted

    def check_model(self, name: str | None) -> None:
        """Raises ApiError for a model that is not the one served: nothing is ever loaded."""
        known = {self.settings.name, *self.settings.aliases}
        if name is not None and name not in known:
            raise not_found(
                f"the model {name[:100]!r} is not served here; served: {self.settings.name}",
                "model_not_found",
                "model",
            )

    async def start(self, make: Callable[[], Work]) -> Generation:
        """Let a request in; whoever starts one closes it. Raises ApiError (503 when full)."""
        if self.closing:
            raise ApiError(503, "server_error", "shutting_down", "the server is shutting down")
        if self._admitted >= self.settings.running + self.settings.queue:
            raise overloaded(f"{self._admitted} requests are under way: try again later")
        self._admitted += 1
        try:
            work = await self.beside(make)
            reply = LoopReply()
            self.engine.submit(work.request, reply)
        except BaseException:
            self._admitted -= 1
            raise
        generation = Generation(work, reply, self._closed)
        self._under_way[work.id] = generation
        return generation

    async def beside(self, work: Callable[[], T]) -> T:
        """Do work on a thread beside the loop. Raises ApiError."""
        try:
            return await asyncio.to_thread(work)
        except EdgekvError as fault:
            raise from_fault(fault) from fault

    def _closed(self, generation: Generation) -> None:
        self._admitted -= 1
        del self._under_way[generation.work.id]
        if generation.work.recording is not None:
            generation.work.recording.release()
        self.metrics.answered(generation)

    def cancel(self, request_id: str) -> None:
        """Raises ApiError (404) for a request that is not under way."""
        generation = self._under_way.get(request_id)
        if generation is None:
            raise not_found(f"no request {request_id[:100]!r} is under way", "request_not_found")
        generation.cancel("cancelled")

    def shut_down(self) -> None:
        """Take no more requests, and end those under way."""
        self.closing = True
        for generation in list(self._under_way.values()):
            generation.cancel("shutdown")

    def work_of_chat(self, prefix: str, question: Question) -> Work:
        """An answer to a conversation. Raises ApiError, EdgekvError."""
        tools = question.tools
        template = self._thinking(question)
        prompt = self._prompt(question, template)
        grammar = question.grammar or (tools.grammar() if tools else None)
        source = self._template_source
        thinks = THINK in source
        thinking = thinks and self._opens_thought(prompt)
        if grammar is not None and thinking:
            raise unsupported("this model begins with a thought, which no schema describes")
        work = self.work_of_tokens(prefix, prompt, question.options, grammar, question.scores)
        recording = self._record(question.options.extension)
        session = None if recording is None else recording.session.id
        return replace(
            work,
            request=replace(work.request, session=session),
            tools=tools,
            thinks=thinks,
            thinking=thinking,
            recording=recording,
            messages=question.messages,
        )

    def _record(self, asked: Extension) -> Recording | None:
        """The session that an answer is kept in, where that is asked for."""
        wanted = asked.session_id is not None if asked.persist is None else asked.persist
        if not wanted:
            return None
        if self.store is None:
            raise unsupported(
                "edgekv.session_id: this server keeps no sessions", "edgekv.session_id"
            )
        return Recording(self.store, asked.session_id, self.settings.name)

    def count_tokens(self, question: Question) -> int:
        """How many tokens a conversation is. Raises ApiError, EdgekvError."""
        return len(self._prompt(question, self._thinking(question)).tokens)

    @property
    def _template_source(self) -> str:
        template = self.engine.loaded.tokenizer.chat_template
        return template.source if template else ""

    def _thinking(self, question: Question) -> Mapping[str, object]:
        """A reply in a given form has no place for a thought, where a model can do without one."""
        constrained = question.grammar or (question.tools and question.tools.forced)
        if constrained and "enable_thinking" in self._template_source:
            return {**question.template, "enable_thinking": False}
        return question.template

    def _prompt(self, question: Question, template: Mapping[str, object]) -> Prompt:
        tokenizer = self.engine.loaded.tokenizer
        tools = None
        if question.tools is not None:
            tools = [tool.for_template() for tool in question.tools.tools]
        try:
            return chat_prompt(tokenizer, question.messages, tools, **template)
        except TemplateError as refused:
            simpler = folded(question.messages)
            if simpler == list(question.messages):
                raise
            try:
                return chat_prompt(tokenizer, simpler, tools, **template)
            except TemplateError:
                raise refused from None

    def _opens_thought(self, prompt: Prompt) -> bool:
        tail = self.engine.loaded.tokenizer.decode(prompt.tokens[-8:])
        return tail.rstrip().endswith(THINK)

    def work_of_tokens(
        self,
        prefix: str,
        prompt: Prompt,
        options: Options,
        grammar: Grammar | None = None,
        scores: int | None = None,
    ) -> Work:
        """An answer to a prompt. Raises ApiError, EdgekvError."""
        if grammar is not None:
            self.engine.grammar_tokens.check(grammar)
        policy = self._policy(options.extension, prompt)
        request = Request(
            prompt.tokens,
            policy,
            options.sampling,
            self._room(options, policy, len(prompt.tokens)),
            options.stops,
            scores=scores,
            grammar=grammar,
        )
        return Work(
            f"{prefix}{secrets.token_hex(12)}",
            int(time.time()),
            request,
            seconds=options.seconds,
            progress=options.extension.return_progress,
        )

    def _policy(self, asked: Extension, prompt: Prompt) -> CachePolicy:
        default = self.settings.policy
        window = self._capped("window", asked.window, default.window)
        layers = default.layers
        if asked.kv_bits is not None:
            most = max(self.settings.config.k_bits, self.settings.config.v_bits)
            bits = self._capped("kv_bits", asked.kv_bits, most)
            layers = tuple(_with_bits(layer, bits, most) for layer in layers)
        n_sink = default.n_sink if asked.n_sink is None else asked.n_sink
        policy = CachePolicy(window, layers, n_sink)
        return policy.with_pinned(prompt.pinned(n_sink)) if self.settings.pin_system else policy

    @staticmethod
    def _capped(name: str, asked: int | None, most: int) -> int:
        if asked is not None and asked > most:
            raise invalid(
                f"edgekv.{name}: this server allows up to {most}, got {asked}", f"edgekv.{name}"
            )
        return most if asked is None else asked

    def _room(self, options: Options, policy: CachePolicy, n_prompt: int) -> int:
        """How long the answer may become. Raises ApiError where nothing may roll out."""
        if (options.extension.overflow or self.settings.overflow) == "roll":
            return options.max_tokens
        n_ctx = policy.last_slot + 1
        if n_prompt >= n_ctx:
            raise invalid(
                f"the prompt does not fit: n_prompt_tokens={n_prompt}, n_ctx={n_ctx}",
                "messages",
                "context_length_exceeded",
            )
        return min(options.max_tokens, n_ctx - n_prompt)


def _with_bits(layer: LayerPolicy, bits: int, most: int) -> LayerPolicy:
    """Keys that need more bits than any setting asks for keep them."""
    return replace(layer, k_bits=bits if layer.k_bits <= most else layer.k_bits, v_bits=bits)


def _digest(*facts: Any) -> str:  # noqa: ANN401 - whatever has a repr
    return sha256(repr((__version__, *facts)).encode()).hexdigest()[:12]
