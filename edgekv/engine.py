"""The engine: one model, one thread that makes every MLX call, and events out of it.

A lazy MLX array belongs to the thread that made it, and a thread alive in MLX when the
interpreter exits aborts the process, so the thread is never a daemon and `close` joins it.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeVar

import mlx.core as mx

from edgekv import blas
from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.errors import DoesNotFit
from edgekv.generate import Cancelled, decode, prefill
from edgekv.loading import open_checkpoint, read_config
from edgekv.metal.device import physical_memory
from edgekv.models.guard import guarded
from edgekv.models.layers import Decoder
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape, check_supported
from edgekv.sampling import RepetitionPenalty, Sampling, fresh_seed, make_sampler
from edgekv.sessions import Store
from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.fingerprint import fingerprint
from edgekv.sessions.reuse import Reuse, Tracked
from edgekv.stops import StopFilter
from edgekv.tokenizer import Tokenizer

T = TypeVar("T")
FinishReason = Literal["stop", "length", "cancelled"]


@dataclass(frozen=True)
class Loaded:
    """What a client may know of the model; load_s is the seconds that loading took."""

    config: dict[str, Any]
    shape: ModelShape
    tokenizer: Tokenizer
    load_s: float


@dataclass(frozen=True)
class Request:
    """One reply to one prompt of token ids: those of the whole conversation, each time.

    What the engine has of their KV, in memory or on disk, is used. session: the id of the stored
    session that KV is written for; without one no byte of it reaches the disk.
    """

    prompt: tuple[int, ...]
    policy: CachePolicy
    sampling: Sampling
    max_tokens: int
    stops: tuple[str, ...] = ()
    session: str | None = None


@dataclass(frozen=True)
class Prefilled:
    """So many tokens of the prompt are read, of so many; those that were cached count as read."""

    done: int
    total: int


@dataclass(frozen=True)
class Text:
    """New text of the reply, whole characters only."""

    text: str


@dataclass(frozen=True)
class Notice:
    """One line for the user: stored KV was refused, or could not be written."""

    text: str


@dataclass(frozen=True)
class Finished:
    """The end of a reply, with its counts: tokens, seconds, bytes.

    cached_tokens: how many of the prompt's were not computed, for their KV was there. tokens:
    the ids of the reply, without the one that ended it.
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

    @property
    def prefill_tps(self) -> float:
        computed = self.prompt_tokens - self.cached_tokens
        return computed / self.prefill_s if self.prefill_s else 0.0

    @property
    def decode_tps(self) -> float:
        """Tokens a second behind the first, whose time is the prompt's."""
        return (self.completion_tokens - 1) / self.decode_s if self.decode_s else 0.0


Event = Prefilled | Text | Notice | Finished


class Reply:
    """A reply under way: iterate over its events from one other thread; the last is Finished."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Ask to stop: seen within one token, or one chunk of the prompt."""
        self._cancelled.set()

    @property
    def cancelled(self) -> bool:
        return self._cancelled.is_set()

    def put(self, event: Event | BaseException) -> None:
        self._events.put(event)

    def __iter__(self) -> Iterator[Event]:
        while True:
            event = self._events.get()
            if isinstance(event, BaseException):
                raise event
            yield event
            if isinstance(event, Finished):
                return


class Engine:
    """A model on its own thread `edgekv-mlx`. Use as a context manager, or call `close`.

    store: where KV is looked for and, for requests that name a session of it, written. It stays
    the caller's, to be closed after the engine.
    """

    def __init__(self, path: Path, store: Store | None = None) -> None:
        self._path = path
        self._store = store
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loaded: queue.SimpleQueue[Loaded | BaseException] = queue.SimpleQueue()
        self._notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._model: Decoder
        self._reuse: Reuse | None = None
        self._current: Reply | None = None
        self._thread = threading.Thread(target=self._run, name="edgekv-mlx", daemon=False)

    def start(self) -> Loaded:
        """Load the model; returns when it is ready. Raises what loading raises."""
        self._thread.start()
        self.loaded = self._wait_loaded()
        return self.loaded

    def _wait_loaded(self) -> Loaded:
        try:
            loaded = self._loaded.get()
        except BaseException:
            self.close()
            raise
        if isinstance(loaded, BaseException):
            self.close()
            raise loaded
        return loaded

    def submit(self, request: Request) -> Reply:
        """Queue a request; replies are made one after another."""
        reply = Reply()
        self._jobs.put(lambda: self._answer(request, reply))
        return reply

    def notices(self) -> list[str]:
        """What the user should be told that came after the last reply, as when a disk was full."""
        found = []
        while not self._notices.empty():
            found.append(self._notices.get())
        return found

    def call(self, job: Callable[[Decoder, Rope], T]) -> "Future[T]":
        """Queue a piece of work with the model for the MLX thread; its result or its fault."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(job(self._model, self._rope))
            except BaseException as error:
                future.set_exception(error)

        self._jobs.put(run)
        return future

    def close(self) -> None:
        """Stop the reply under way, then the thread; returns when it has ended."""
        if self._current is not None:
            self._current.cancel()
        self._jobs.put(None)
        self._thread.join()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self) -> None:
        try:
            self._loaded.put(self._load())
            while (job := self._jobs.get()) is not None:
                job()
        except BaseException as error:
            self._loaded.put(error)
        finally:
            if self._reuse is not None:
                self._reuse.close()
            # A thread that ends with MLX streams of its own races with the interpreter's exit:
            # 9 of 30 processes that did nothing else aborted (mlx 0.32.4), none that cleared them.
            mx.clear_streams()

    def _load(self) -> Loaded:
        start = time.perf_counter()
        # Before the weights are read: a large model of an unknown family must fail fast.
        check_supported(read_config(self._path))
        blas.install()
        checkpoint = open_checkpoint(self._path)
        config = checkpoint.config
        shape = ModelShape.from_config(config)
        self._rope = make_rope(config, shape.head_dim)
        shape = guarded(shape, checkpoint.weights, self._rope)
        self._model = build(config, checkpoint.weights)
        self._reuse = self._make_reuse(self._rope)
        return Loaded(config, shape, checkpoint.tokenizer, time.perf_counter() - start)

    def _make_reuse(self, rope: Rope) -> Reuse:
        if self._store is None:
            return Reuse("", rope, self._notices.put)
        model = f"{fingerprint(self._path, self._store)} mlx {version('mlx')}"
        return Reuse(model, rope, self._notices.put, BlockFiles(self._store))

    def _answer(self, request: Request, reply: Reply) -> None:
        self._current = reply
        try:
            reply.put(self._generate(request, reply))
        except BaseException as error:
            reply.put(error)
        finally:
            self._current = None

    def _generate(self, request: Request, reply: Reply) -> Finished:
        _check_memory(request.policy)
        assert self._reuse is not None
        start = time.perf_counter()
        sequence = self._reuse.begin(request.prompt, request.policy, request.session)
        tally = _Tally(sequence.cache, len(request.prompt), sequence.cached_tokens, start)
        reason = self._reply(request, reply, sequence, tally)
        finished = tally.finished(reason)
        self._reuse.end(sequence)
        self._pass_on_notices(reply)
        return finished

    def _pass_on_notices(self, reply: Reply) -> None:
        for text in self.notices():
            reply.put(Notice(text))

    def _reply(
        self, request: Request, reply: Reply, sequence: Tracked, tally: "_Tally"
    ) -> FinishReason:
        assert self._reuse is not None
        reuse, cached = self._reuse, sequence.cached_tokens
        self._pass_on_notices(reply)

        def progress(done: int, total: int) -> None:
            tally.measure()
            reuse.keep(sequence)
            reply.put(Prefilled(cached + done, cached + total))

        rest = request.prompt[cached:]
        try:
            logits = prefill(self._model, sequence.cache, rest, progress, lambda: reply.cancelled)
        except Cancelled:
            return "cancelled"
        return self._stream(request, reply, sequence, logits, tally)

    def _stream(
        self,
        request: Request,
        reply: Reply,
        sequence: Tracked,
        logits: mx.array,
        tally: "_Tally",
    ) -> FinishReason:
        """Decode, turn tokens into text, and say why it ended."""
        sampling, tokenizer = request.sampling, self.loaded.tokenizer
        seed = fresh_seed() if sampling.seed is None else sampling.seed
        penalty = None
        if sampling.repetition_penalty != 1:
            penalty = RepetitionPenalty(
                sampling.repetition_penalty, request.prompt, logits.shape[-1]
            )
        sampler = make_sampler(sampling, seed)
        detokenizer, stops = tokenizer.detokenizer(), StopFilter(request.stops)
        reason: FinishReason = "length"
        assert self._reuse is not None
        tokens = decode(self._model, sequence.cache, logits, sampler, penalty, request.max_tokens)
        for token in tokens:
            tally.token()
            sequence.tokens.append(token)
            self._reuse.keep(sequence)
            if token in tokenizer.eos_ids:
                reason = "stop"
                break
            tally.said.append(token)
            _show(reply, stops.add(detokenizer.add(token)))
            if stops.stopped or reply.cancelled:
                reason = "stop" if stops.stopped else "cancelled"
                break
        _show(reply, stops.add(detokenizer.finish()) + stops.finish())
        return "stop" if stops.stopped else reason


def _show(reply: Reply, text: str) -> None:
    if text:
        reply.put(Text(text))


class _Tally:
    """Counts and times of one reply."""

    def __init__(
        self, cache: SequenceCache, prompt_tokens: int, cached_tokens: int, start: float
    ) -> None:
        self._cache = cache
        self._prompt_tokens = prompt_tokens
        self._cached_tokens = cached_tokens
        self._start = start
        self._first: float | None = None
        self._tokens = 0
        self.said: list[int] = []
        self._peak = cache.nbytes

    def measure(self) -> None:
        self._peak = max(self._peak, self._cache.nbytes)

    def token(self) -> None:
        if self._first is None:
            self._first = time.perf_counter()
        self._tokens += 1

    def finished(self, reason: FinishReason) -> Finished:
        self.measure()
        now = time.perf_counter()
        first = self._first or now
        return Finished(
            reason=reason,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._tokens,
            evicted_tokens=self._cache.evicted_tokens,
            ttft_s=first - self._start,
            prefill_s=first - self._start,
            decode_s=now - first,
            kv_bytes=self._cache.nbytes,
            kv_peak_bytes=self._peak,
            cached_tokens=self._cached_tokens,
            tokens=tuple(self.said),
        )


def _check_memory(policy: CachePolicy) -> None:
    """Refuse a cache that this machine cannot hold beside the model, before it is allocated."""
    room = physical_memory() - mx.get_active_memory()
    if policy.nbytes > room:
        raise DoesNotFit(
            f"a window of {policy.window:,} tokens takes {policy.nbytes:,} bytes of KV, but "
            f"{max(0, room):,} are left beside the model: lower --window or --kv-bits"
        )
