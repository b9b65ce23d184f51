"""What is asked of the engine, and what comes back: a request, and a reply's events."""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from edgekv.cache.policy import CachePolicy
from edgekv.grammar import Grammar
from edgekv.sampling import Sampling

FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Request:
    """One reply to one prompt of token ids: those of the whole conversation, each time.

    What the engine has of their KV, in memory or on disk, is used. session: the id of the stored
    session that KV is written for; without one no byte of it reaches the disk. scores: how many
    of the best tokens' scores to report at each token, None for none at all. grammar: what the
    whole reply must look like.
    """

    prompt: tuple[int, ...]
    policy: CachePolicy
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...] = ()
    session: str | None = None
    scores: int | None = None
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Prefilled:
    """So many tokens of the prompt are read, of so many; those that were cached count as read."""

    done: int
    total: int


@dataclass(frozen=True)
class TokenScore:
    """A token of the reply, its log probability in nats, and the best tokens' at its place.

    As the model has them: before temperature, penalties and cuts.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class Text:
    """New text of the reply, whole characters only, and the tokens that it took."""

    text: str
    n_tokens: int = 1
    scores: tuple[TokenScore, ...] = ()


@dataclass(frozen=True)
class Notice:
    """One line for the user: stored KV was refused, or could not be written."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The end of a reply, with its counts: tokens, seconds, bytes. stop: the string that ended it.

    ttft_s: from the request to the first token, waiting and the reading of stored KV included;
    prefill_s: computing the prompt alone. cached_tokens: how many of the prompt's were not
    computed, for their KV was there. tokens: the ids of the reply, without the one that ended it.
    """

    reason: FinishReason
    prompt_tokens: int
    completion_tokens: int
    evicted_tokens: int
    ttft_s: float
    prefill_s: float
    decode_s: float
    kv_bytes: int
    kv_peak_bytes: int
    cached_tokens: int = 0
    tokens: tuple[int, ...] = ()
    stop: str | None = None

    @property
    def prefill_tps(self) -> float:
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tps(self) -> float:
        """Tokens a second behind the first, which is drawn when the prompt has been read."""
        return (self.completion_tokens - 1) / self.decode_s if self.decode_s else 0.0


Event = Prefilled | Text | Notice | Finished


class Reply:
    """A reply under way: iterate over its events from one other thread; the last is Finished."""

    def __init__(self) -> None:
        self.asked = time.perf_counter()
        self._events: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ask to stop: seen within one token, or one chunk of the prompt."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def put(self, event: Event | BaseException) -> None:
        """Hand an event over, on the engine's thread."""
        self._events.put(event)

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self._events.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if isinstance(event, Finished):
                return
