"""The engine: one model, one thread that makes every MLX call, and events out of it.

A lazy MLX array belongs to the thread that made it, and a thread alive in MLX when the
interpreter exits aborts the process, so the thread is never a daemon and `close` joins it.
"""

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import mlx.core as mx

from edgekv import blas
from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.errors import DoesNotFit
from edgekv.events import Event, Finished, Prefilled, Reply, Request, Text, TokenScore
from edgekv.grammar import GrammarTokens, Matcher
from edgekv.loading import open_checkpoint, read_config
from edgekv.metal.device import physical_memory
from edgekv.models.layers import Decoder
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape, check_supported
from edgekv.scheduler import Limits, Load, Scheduler
from edgekv.tokenizer import Tokenizer

__all__ = [
    "Engine",
    "Event",
    "Finished",
    "Limits",
    "Load",
    "Loaded",
    "Prefilled",
    "Reply",
    "Request",
    "Text",
    "TokenScore",
]


@dataclass(frozen=True)
class Loaded:
    """What a client may know of the model; load_s is the seconds that loading took."""

    config: dict[str, Any]
    shape: ModelShape
    tokenizer: Tokenizer
    load_s: float


class Engine:
    """A model on its own thread `edgekv-mlx`. Use as a context manager, or call `close`."""

    def __init__(self, path: Path, limits: Limits | None = None) -> None:
        self._path = path
        self._limits = limits or Limits()
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._loaded: queue.SimpleQueue[Loaded | BaseException] = queue.SimpleQueue()
        self._model: Decoder
        self._rope: Rope
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

    @property
    def load(self) -> Load:
        """What is under way now."""
        return self._scheduler.load

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
            self._scheduler = Scheduler(
                self._model, loaded.tokenizer, self._open_cache, self._matcher, self._limits
            )
            self._loaded.put(loaded)
            while self._take_jobs():
                self._scheduler.step()
            self._scheduler.cancel_all()
        except BaseException as error:
            self._loaded.put(error)
        finally:
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
        # Before the weights are read: a large model of an unknown family must fail fast.
        check_supported(read_config(self._path))
        blas.install()
        checkpoint = open_checkpoint(self._path)
        config = checkpoint.config
        shape = ModelShape.from_config(config)
        self._rope = make_rope(config, shape.head_dim)
        self._model = build(config, checkpoint.weights)
        return Loaded(config, shape, checkpoint.tokenizer, time.perf_counter() - start)

    def _open_cache(self, request: Request) -> SequenceCache:
        _check_memory(request.policy)
        return SequenceCache(request.policy, self._rope)

    def _matcher(self, request: Request) -> Matcher | None:
        if request.grammar is None:
            return None
        return self.grammar_tokens.matcher(request.grammar)

    @cached_property
    def grammar_tokens(self) -> GrammarTokens:
        """The model's tokens for grammars. Raises UnsupportedModel without llguidance."""
        return GrammarTokens(self.loaded.tokenizer, self._model.vocab_size)


def _check_memory(policy: CachePolicy) -> None:
    """Refuse a cache that this machine cannot hold beside the model, before it is allocated."""
    room = physical_memory() - mx.get_active_memory()
    if policy.nbytes > room:
        raise DoesNotFit(
            f"a window of {policy.window:,} tokens takes {policy.nbytes:,} bytes of KV, but "
            f"{max(0, room):,} are left beside the model: lower --window or --kv-bits"
        )
