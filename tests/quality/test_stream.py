"""A text far longer than the window: the cache keeps its size, and the model its speech.

Fed fresh means: a new cache that is given, of the same text, no more than a full cache holds
before the first token that counts (n_sink + window tokens), then the tokens that count. Both
caches then see the same window of the same words; they differ in their sinks, which are the
first tokens each was given, and in all that the stream has evicted.
"""

from dataclasses import dataclass, replace
from functools import cached_property

import mlx.core as mx
import numpy as np
import pytest

from edgekv.cache.policy import CachePolicy
from edgekv.evaluation.perplexity import exp_mean, fresh_nll
from edgekv.evaluation.walk import Watch

pytestmark = pytest.mark.model


@dataclass(frozen=True)
class AbsolutePositions(CachePolicy):
    """What the design avoids: sinks are seen from the position in the text, however far."""

    @property
    def last_slot(self) -> int:
        return 10**9


class Stream:
    """The end of a text, read through a window."""

    def __init__(self, loaded, text, window, counted):
        self.loaded, self.text, self.counted = loaded, text, counted
        self.policy = loaded.policy(window)

    def streamed(self, policy):
        """Perplexity of the counted tokens behind all others."""
        cache = self.loaded.cache(policy)
        losses = self.loaded.nll(cache, self.text, skip=len(self.text) - self.counted)
        assert len(losses) == self.counted
        assert cache.nbytes == policy.nbytes
        return exp_mean(losses)

    @cached_property
    def fresh(self):
        n, model, rope = len(self.text), self.loaded.model, self.loaded.rope
        stretch = (n - self.counted, n - 1)
        losses = fresh_nll(model, self.policy, rope, self.text, stretch, Watch())
        assert len(losses) == self.counted
        return exp_mean(losses)


@pytest.fixture(scope="module")
def short(loaded, text):
    return Stream(loaded, text[:2000], window=192, counted=800)


@pytest.fixture(scope="module")
def long(loaded, text):
    return Stream(loaded, text[:20_000], window=512, counted=4000)


def test_a_short_stream_is_as_good_as_the_text_fed_fresh(short):
    assert abs(short.streamed(short.policy) / short.fresh - 1) < 0.05


def test_a_short_stream_without_sinks_is_clearly_worse(short):
    assert short.streamed(replace(short.policy, n_sink=0)) > 1.2 * short.fresh


@pytest.mark.slow
def test_20000_tokens_later_the_model_is_as_good_as_fed_fresh(long):
    assert abs(long.streamed(long.policy) / long.fresh - 1) < 0.05


@pytest.mark.slow
def test_20000_tokens_without_sinks_are_clearly_worse(long):
    assert long.streamed(replace(long.policy, n_sink=0)) > 1.2 * long.fresh


@pytest.mark.slow
def test_20000_tokens_with_absolute_positions_are_far_worse(long):
    policy = AbsolutePositions(long.policy.window, long.policy.layers, long.policy.n_sink)
    assert long.streamed(policy) > 2 * long.fresh


def test_memory_does_not_grow_once_the_window_is_full(loaded, text):
    policy = loaded.policy(256)
    cache = loaded.cache(policy)
    held = []
    for start in range(0, 2048, 256):
        loaded.nll(cache, text[start : start + 256])
        held.append((cache.nbytes, mx.get_active_memory()))
    sizes, active = np.array(held[2:]).T
    assert set(sizes) == {policy.nbytes}
    # Chunks are not all cut alike, so a few small arrays may still be held by the last one.
    assert np.ptp(active) < policy.nbytes / 4


@pytest.mark.slow
def test_a_stream_in_four_bits_is_as_good_as_in_sixteen(loaded, text):
    four, sixteen = (
        exp_mean(loaded.nll(loaded.cache(loaded.policy(508, bits)), text[:8192], skip=512))
        for bits in (4, 16)
    )
    assert four <= 1.01 * sixteen
    assert four != sixteen
