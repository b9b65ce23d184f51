"""Memory that reading a prompt takes at its height, in tiles smaller than the product's."""

import gc
import tracemalloc

import mlx.core as mx
import pytest

from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.cache.step import make_step
from edgekv.metal import segments
from tests.cache.naive import FREQUENCIES

KV_HEADS, DIM, LAYERS = 4, 32, 2
TILE = 128


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(segments, "TILE", TILE)


def make_policy(window, bits=4):
    return CachePolicy(window, (LayerPolicy(KV_HEADS, DIM, bits, bits),) * LAYERS)


def peak(policy, chunk):
    """Bytes above what was there before, MLX's and numpy's, for one chunk behind a full window.

    MLX lets go of what it is done with a little sooner or later, half a megabyte here.
    """
    gc.collect()
    before = mx.get_active_memory()
    cache = SequenceCache(policy, Rope(FREQUENCIES))
    read(cache, policy.window + 128)
    mx.reset_peak_memory()
    tracemalloc.start()
    read(cache, chunk)
    numpys = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return mx.get_peak_memory() - before + numpys


def read(cache, n):
    q = mx.random.normal((n, 2 * KV_HEADS, DIM))
    step = make_step(cache, n)
    for layer in range(LAYERS):
        out = step.attend(layer, q, q[:, :KV_HEADS], q[:, KV_HEADS:])
        mx.eval(out, *cache.arrays(), cache.pool.blocks(layer))


@pytest.mark.parametrize("chunk", [64, 256, 512])
def test_four_bits_take_no_more_than_sixteen_at_any_chunk(chunk):
    assert peak(make_policy(16 * TILE, 4), chunk) < peak(make_policy(16 * TILE, 16), chunk)


def test_a_longer_window_takes_more_for_its_blocks_but_not_for_reading_them():
    short, long = make_policy(2 * TILE), make_policy(24 * TILE)
    more = peak(long, 64) - peak(short, 64)
    expanded = 22 * TILE * KV_HEADS * DIM * 2 * 4
    assert more - (long.nbytes - short.nbytes) < expanded / 2
