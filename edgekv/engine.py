"""The engine: one model, one thread that makes every MLX call, and events out of it.

A lazy MLX array belongs to the thread that made it, and a thread alive in MLX when the
interpreter exits aborts the process, so the thread is never a daemon and `close` joins it.
"""

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import mlx.core as mx

from edgekv import blas
from edgekv.cache.rope import Rope
from edgekv.events import (
    Event,
    Finished,
    FinishReason,
    Notice,
    Prefilled,
    Reply,
    Request,
    Text,
    TokenScore,
)
from edgekv.grammar import GrammarTokens, Matcher
from edgekv.loading import open_checkpoint
from edgekv.models.guard import guarded
from edgekv.models.layers import Decoder
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape, check_supported
from edgekv.scheduler import Limits, Load, Scheduler
from edgekv.sessions import Store
from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.fingerprint import fingerprint
from edgekv.sessions.reuse import Reuse
from edgekv.threads import make_threads
from edgekv.tokenizer import Tokenizer

__all__ = [
    "Engine",
    "Event",
    "Finished",
    "FinishReason",
    "Limits",
    "Load",
    "Loaded",
    "Notice",
    "Prefilled",
    "Reply",
    "Request",
    "Text",
    "TokenScore",
]

T = TypeVar("T")


@dataclass(frozen=True)
class Loaded:
    """What a client may know of the model; load_s is the seconds that loading took."""

    config: dict[str, Any]
    shape: ModelShape
    tokenizer: Tokenizer
    load_s: float


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
        self._scheduler: Scheduler
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

    def submit(self, request: Request, reply: Reply | None = None) -> Reply:
        """Queue a request; its events go to the reply that is given, or to the one returned."""
        reply = reply or Reply()
        self._jobs.put(lambda: self._scheduler.add(request, reply))
        return reply

    def limit(self, limits: Limits) -> None:
        """How much may be under way at a time, from the next request on."""
        self._scheduler.limits = limits

    @property
    def load(self) -> Load:
        """What is under way now."""
        return self._scheduler.load

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
        """Stop the replies under way, then the thread; returns when it has ended."""
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
            loaded = self._load()
            assert self._reuse is not None
            self._scheduler = Scheduler(
                self._model,
                loaded.tokenizer,
                self._reuse,
                self._matcher,
                self.notices,
            )
            self._loaded.put(loaded)
            while self._take_jobs():
                self._threads.adapt()
                self._scheduler.step()
            self._scheduler.cancel_all()
        except BaseException as error:
            self._loaded.put(error)
        finally:
            if self._reuse is not None:
                self._reuse.close()
            # A thread that ends with MLX streams of its own races with the interpreter's exit:
            # 9 of 30 processes that did nothing else aborted (mlx 0.32.4), none that cleared them.
            mx.clear_streams()

    def _take_jobs(self) -> bool:
        """Do what is queued, waiting for it where there is nothing else to do; False is the end."""
        while self._scheduler.idle or not self._jobs.empty():
            job = self._jobs.get()
            if job is None:
                return False
            job()
        return True

    def _load(self) -> Loaded:
        start = time.perf_counter()
        blas.install()
        self._threads = make_threads()
        # Before the weights are read: a large model of an unknown family must fail fast.
        checkpoint = open_checkpoint(self._path, check_supported)
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

    def _matcher(self, request: Request) -> Matcher | None:
        if request.grammar is None:
            return None
        return self.grammar_tokens.matcher(request.grammar)

    @cached_property
    def grammar_tokens(self) -> GrammarTokens:
        """The model's tokens for grammars. Raises UnsupportedModel without llguidance."""
        return GrammarTokens(self.loaded.tokenizer, self._model.vocab_size)
