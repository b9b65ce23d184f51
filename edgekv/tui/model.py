"""A loaded model that answers conversations. Imported on a thread, since it takes MLX."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from edgekv.cache.policy import CachePolicy
from edgekv.conversation import Prompt, chat_prompt, joined
from edgekv.engine import Engine, Finished, Loaded, Notice, Prefilled, Reply, Request, Text
from edgekv.models.shape import ModelShape
from edgekv.sampling import Sampling
from edgekv.sessions import Message, Store
from edgekv.tui.inbox import Inbox
from edgekv.tui.settings import Settings
from edgekv.tui.thinking import OPEN


class EnginePort(Protocol):
    """What of an engine is used here."""

    def start(self) -> Loaded: ...

    def submit(self, request: Request) -> Reply: ...

    def notices(self) -> list[str]: ...

    def close(self) -> None: ...


MakeEngine = Callable[[Path, Store | None], EnginePort]


@dataclass(frozen=True)
class Asked:
    """A reply under way. thinking: the prompt itself began a thought."""

    reply: Reply
    policy: CachePolicy
    prompt_tokens: int
    thinking: bool


class Model:
    """An engine with the rendering of conversations. Every method may be called on any thread."""

    def __init__(self, name: str, engine: EnginePort, loaded: Loaded) -> None:
        self.name = name
        self.loaded = loaded
        self._engine = engine
        self._told: set[str] = set()
        self._news: list[str] = []

    @property
    def shape(self) -> ModelShape:
        return self.loaded.shape

    def ask(
        self,
        messages: Sequence[Message],
        settings: Settings,
        begun: str = "",
        session: str | None = None,
    ) -> Asked:
        """Have the conversation answered; `begun` is what the reply already says.

        session: the stored session whose KV may be kept on disk.
        Raises what rendering and the policy raise, each an EdgekvError.
        """
        prompt = self._prompt(messages, settings)
        tokens, tokenizer = prompt.tokens, self.loaded.tokenizer
        thinking = tokenizer.decode(tokens[-8:]).rstrip().endswith(OPEN)
        if begun:
            rest = begun.removeprefix(OPEN).lstrip("\n") if thinking else begun
            tokens += tuple(tokenizer.encode(rest))
        policy = settings.policy(self.shape, prompt)
        self._tell_raised(settings)
        most = settings.longest(policy, len(tokens))
        sampling, stops = _sampling(settings), settings.stops
        request = Request(tokens, policy, sampling, most, stops, session=session)
        return Asked(self._engine.submit(request), policy, len(tokens), thinking)

    def policy(self, settings: Settings) -> CachePolicy:
        """The cache policy of a conversation under `settings`, before anything was said."""
        return settings.policy(self.shape, self._prompt([Message(0, "user", "~")], settings))

    def count(self, text: str) -> int:
        """Tokens of a text."""
        return len(self.loaded.tokenizer.encode(text))

    def measure(self, messages: Sequence[Message], settings: Settings) -> list[int]:
        """Tokens of the conversation up to the end of each message, within a few.

        What the template puts around the messages is spread evenly over them.
        """
        if not messages:
            return []
        own = [self.count(message.content) for message in messages]
        users = messages if messages[-1].role == "user" else messages[:-1]
        whole = len(self._prompt(users, settings).tokens) if users else 0
        around = max(0, whole - sum(own[: len(users)])) / max(1, len(users))
        return [round(end) for end in accumulate(size + around for size in own)]

    def notices(self) -> list[str]:
        """What came up with the last reply, as when the disk was full."""
        news, self._news = self._news, []
        return news + self._engine.notices()

    def _tell_raised(self, settings: Settings) -> None:
        """Keys that got more bits than asked for are told of once."""
        text = self.shape.raised(settings.config.k_bits, settings.config.kv_policy)
        if text is not None and text not in self._told:
            self._told.add(text)
            self._news.append(text)

    def close(self) -> None:
        """Stop what is under way and end the engine's thread."""
        self._engine.close()

    def _prompt(self, messages: Sequence[Message], settings: Settings) -> Prompt:
        said = joined([{"role": each.role, "content": each.content} for each in messages])
        if settings.config.system and said[0]["role"] != "system":
            said.insert(0, {"role": "system", "content": settings.config.system})
        values: dict[str, Any] = (
            {} if settings.think is None else {"enable_thinking": settings.think}
        )
        return chat_prompt(self.loaded.tokenizer, said, **values)


def load(
    name: str, path: Path, store: Store | None = None, make_engine: MakeEngine | None = None
) -> Model:
    """Load a model; returns when it is ready. Raises what loading raises.

    store: where KV is kept and found again; closed by the caller, after the model.
    """
    engine = (make_engine or Engine)(path, store)
    return Model(name, engine, engine.start())


def follow(reply: Reply, inbox: Inbox) -> None:
    """Bring the events of a reply to the inbox until it has ended; never raises."""
    try:
        for event in reply:
            match event:
                case Text(text):
                    inbox.write(text)
                case Prefilled(done, total):
                    inbox.reading(done, total)
                case Notice(text):
                    inbox.notice(text)
                case Finished():
                    inbox.end(event)
    except BaseException as error:
        inbox.end(error=error)


def _sampling(settings: Settings) -> Sampling:
    c = settings.config
    return Sampling(c.temp, c.top_p, c.top_k, c.min_p, c.repetition_penalty, c.seed)
