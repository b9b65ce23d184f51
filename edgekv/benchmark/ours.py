"""edgekv's own speed: prompts of several lengths, and the time of a token along a stream."""

import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from edgekv.benchmark.contest import Row, Task
from edgekv.benchmark.contestant import process_peak, prompts, rates, words
from edgekv.benchmark.resume import resume
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.engine import Engine
from edgekv.generate import decode, prefill
from edgekv.metal.tile import BLOCK
from edgekv.models.layers import Decoder
from edgekv.sampling import Sampling, make_sampler

ROUNDS, TURN = 8, 8
"""How often both caches of the flatness test take their turn, and tokens of one turn."""


def policy_setting(policy: CachePolicy) -> dict[str, Any]:
    """A policy as plain values, to be handed to a process."""
    layers = [[x.n_kv_heads, x.head_dim, x.k_bits, x.v_bits] for x in policy.layers]
    return {"window": policy.window, "n_sink": policy.n_sink, "layers": layers}


def _policy(setting: Mapping[str, Any]) -> CachePolicy:
    layers = tuple(LayerPolicy(*layer) for layer in setting["layers"])
    return CachePolicy(setting["window"], layers, setting["n_sink"])


def measure(setting: Mapping[str, Any], task: Task) -> Any:  # noqa: ANN401 - rows, or one
    """The rows of a contestant; of a setting with `stream`, its flatness, with `resume`, that."""
    policy, path = _policy(setting), Path(task.model)
    with Engine(path) as engine:
        tokens = engine.loaded.tokenizer.encode(words())
        given = prompts(tokens, task.contexts)
        if stream := setting.get("stream"):
            return engine.call(lambda m, rope: flatness(m, rope, policy, tokens, stream)).result()
        if not setting.get("resume"):
            return engine.call(
                lambda m, rope: [_row(m, rope, policy, t, task.answer) for t in given]
            ).result()
    return resume(path, policy, max(given, key=len))


def _row(
    model: Decoder, rope: Rope, policy: CachePolicy, tokens: Sequence[int], answer: int
) -> Row:
    cache = SequenceCache(policy, rope)

    def stream(tokens: Sequence[int], n: int) -> Iterator[int]:
        logits = prefill(model, cache, tokens)
        yield from decode(model, cache, logits, make_sampler(Sampling(temp=0), 0), None, n)

    # The first pass of a process builds what later ones find ready.
    rates(stream, tokens[:70], 3)
    cache.free()
    mx.reset_peak_memory()
    return rates(stream, tokens, answer) | {
        "kv_bytes": cache.nbytes,
        "peak_bytes": mx.get_peak_memory(),
        "process_peak_bytes": process_peak(),
    }


def flatness(
    model: Decoder, rope: Rope, policy: CachePolicy, tokens: list[int], stream: int
) -> dict[str, Any]:
    """Milliseconds a token when the window has just filled, and at the end of a stream.

    Two caches, at the two places, take turns of a few tokens, so that whatever else the machine
    does falls on both; both stand at the same place of their block.
    """
    filled = policy.n_sink + -(-policy.window // BLOCK) * BLOCK + 2 * BLOCK
    end = filled + max(1, (stream - filled) // BLOCK) * BLOCK
    early, late = (SequenceCache(policy, rope) for _ in range(2))
    writers = [
        _Writer(model, cache, text)
        for cache, text in zip((early, late), prompts(tokens, (filled, end)), strict=True)
    ]
    for writer in writers:
        writer.turn(TURN)
    times = [[t for w in pair for t in w] for pair in _turns(writers)]
    first, last = (statistics.median(one) * 1e3 for one in times)
    return {
        "positions": [filled, end],
        "token_ms": [first, last],
        "ratio": last / first,
        "kv_bytes": [early.nbytes, late.nbytes],
    }


def _turns(writers: Sequence["_Writer"]) -> list[list[list[float]]]:
    taken = [[writer.turn(TURN) for writer in writers] for _ in range(ROUNDS)]
    return [[turn[i] for turn in taken] for i in range(len(writers))]


class _Writer:
    """Goes on writing behind a prompt, and times its tokens."""

    def __init__(self, model: Decoder, cache: SequenceCache, tokens: Sequence[int]) -> None:
        greedy = make_sampler(Sampling(temp=0), 0)
        most = (ROUNDS + 1) * TURN + 1
        self._tokens = decode(model, cache, prefill(model, cache, tokens), greedy, None, most)

    def turn(self, n: int) -> list[float]:
        """Seconds of each of the next n tokens."""
        times = [time.perf_counter()]
        for _ in range(n):
            next(self._tokens)
            times.append(time.perf_counter())
        return [b - a for a, b in zip(times, times[1:], strict=False)]
