"""From scores to a token: penalties, then temperature, then the cuts, then a seeded draw."""

import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import mlx.core as mx

from edgekv.errors import InvalidValue

Sampler = Callable[[mx.array], mx.array]


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen. Every range is checked here, before MLX sees a number.

    temp 0 takes the best token; top_p, top_k and min_p cut the tempered distribution, in the
    order top_k, top_p, min_p; 0 (top_k, min_p) and 1 (top_p, repetition_penalty) are off.
    repetition_penalty looks at the prompt and the reply, presence_penalty and frequency_penalty
    at the reply alone. logit_bias: token ids, and what is added to their scores.
    """

    temp: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()

    def __post_init__(self) -> None:
        _check("temp", self.temp, 0.0, 100.0)
        _check("top_p", self.top_p, 0.0, 1.0, above=True)
        _check("min_p", self.min_p, 0.0, 1.0)
        _check("repetition_penalty", self.repetition_penalty, 0.0, 100.0, above=True)
        _check("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _check("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.top_k < 0:
            raise InvalidValue(f"top_k must be 0 or more, got {self.top_k}")
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise InvalidValue(f"seed must be from 0 to 2**64 - 1, got {self.seed}")


def _check(name: str, value: float, low: float, high: float, above: bool = False) -> None:
    inside = low < value <= high if above else low <= value <= high
    if not (math.isfinite(value) and inside):
        bound = f"above {low:g} and at most {high:g}" if above else f"from {low:g} to {high:g}"
        raise InvalidValue(f"{name} must be {bound}, got {value}")


def fresh_seed() -> int:
    """A seed for a request that names none."""
    return secrets.randbits(64)


def make_sampler(sampling: Sampling, seed: int) -> Sampler:
    """A function from scores (vocab_size,) in fp32 to a token id (1,), with a generator of its own.

    The same seed gives the same draws, whatever else the process samples.
    """
    if sampling.temp == 0:
        return lambda logits: mx.argmax(logits, axis=-1, keepdims=True)
    key = mx.random.key(seed)

    def draw(logits: mx.array) -> mx.array:
        nonlocal key
        key, this = mx.random.split(key)
        cut = _cut(logits / sampling.temp, sampling)
        return mx.random.categorical(cut, key=this)[None]

    return draw


def _cut(logits: mx.array, sampling: Sampling) -> mx.array:
    """Scores with the tokens that may not be drawn at minus infinity."""
    if 0 < sampling.top_k < logits.shape[-1]:
        smallest = mx.min(mx.topk(logits, sampling.top_k))
        logits = mx.where(logits < smallest, -mx.inf, logits)
    if sampling.top_p < 1:
        logits = _top_p(logits, sampling.top_p)
    if sampling.min_p > 0:
        # p >= min_p * p_max, in scores.
        logits = mx.where(logits < mx.max(logits) + math.log(sampling.min_p), -mx.inf, logits)
    return logits


def _top_p(logits: mx.array, top_p: float) -> mx.array:
    """Keep the fewest best tokens whose probabilities reach top_p, always the best one."""
    ascending = mx.sort(logits)
    # What a token and all better ones hold: its own share is counted by the exclusive sum below.
    better = 1 - mx.cumsum(mx.softmax(ascending))
    smallest = mx.min(mx.where(better < top_p, ascending, mx.inf))
    return mx.where(logits < mx.minimum(smallest, ascending[-1]), -mx.inf, logits)


class Adjustment(Protocol):
    """A change of the scores (vocab_size,) that may depend on what was said."""

    def observe(self, token: mx.array) -> None:
        """A token (1,) that has been drawn, possibly not computed yet."""
        ...

    def __call__(self, logits: mx.array) -> mx.array: ...


def make_adjustments(
    sampling: Sampling, prompt: Sequence[int], vocab_size: int
) -> list[Adjustment]:
    """Those that a request asks for, in the order they are made."""
    adjustments: list[Adjustment] = []
    if sampling.repetition_penalty != 1:
        adjustments.append(RepetitionPenalty(sampling.repetition_penalty, prompt, vocab_size))
    if sampling.presence_penalty or sampling.frequency_penalty:
        adjustments.append(
            CountPenalty(sampling.presence_penalty, sampling.frequency_penalty, vocab_size)
        )
    if sampling.logit_bias:
        adjustments.append(Bias(sampling.logit_bias, vocab_size))
    return adjustments


class RepetitionPenalty:
    """Scores of tokens already in the text divided (or multiplied, below zero) by a factor.

    Source: Keskar et al., CTRL, arXiv 1909.05858, section 4.1, in the sign-aware form in use.
    """

    def __init__(self, penalty: float, tokens: Sequence[int], vocab_size: int) -> None:
        self._penalty = penalty
        seen = mx.zeros((vocab_size,), mx.bool_)
        if tokens:
            seen[mx.array(list(tokens))] = True
        self._seen = seen

    def observe(self, token: mx.array) -> None:
        self._seen[token] = True

    def __call__(self, logits: mx.array) -> mx.array:
        factor = self._penalty
        penalized = mx.where(logits > 0, logits / factor, logits * factor)
        return mx.where(self._seen, penalized, logits)


class CountPenalty:
    """Scores of tokens already in the reply lowered: once for being there, and for each time.

    Source: OpenAI, API reference, presence_penalty and frequency_penalty.
    """

    def __init__(self, presence: float, frequency: float, vocab_size: int) -> None:
        self._presence, self._frequency = presence, frequency
        self._counts = mx.zeros((vocab_size,))

    def observe(self, token: mx.array) -> None:
        self._counts = self._counts.at[token].add(1.0)

    def __call__(self, logits: mx.array) -> mx.array:
        seen = self._presence * (self._counts > 0)
        return logits - seen - self._frequency * self._counts


class Bias:
    """A constant added to the scores of some tokens."""

    def __init__(self, biases: Sequence[tuple[int, float]], vocab_size: int) -> None:
        bias = mx.zeros((vocab_size,))
        bias[mx.array([token for token, _ in biases])] = mx.array([value for _, value in biases])
        self._bias = bias

    def observe(self, token: mx.array) -> None:
        """Nothing changes with what is said."""

    def __call__(self, logits: mx.array) -> mx.array:
        return logits + self._bias
