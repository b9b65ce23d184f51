import mlx.core as mx
import numpy as np
import pytest

from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.pool import BlockPool
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.cache.step import make_step
from edgekv.errors import DoesNotFit
from edgekv.metal.tile import BLOCK
from tests.cache.naive import FREQUENCIES

DIM, KV_HEADS, HEADS = 32, 2, 4


def make(window=200, n_sink=4, n_pinned=0, bits=16, pool=None):
    policy = CachePolicy(window, (LayerPolicy(KV_HEADS, DIM, bits, bits),), n_sink, n_pinned)
    return SequenceCache(policy, Rope(FREQUENCIES), pool)


def random_tokens(n, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((n, HEADS, DIM), (n, KV_HEADS, DIM), (n, KV_HEADS, DIM))
    return [mx.array(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def feed(cache, n, seed=0):
    out = make_step(cache, n).attend(0, *random_tokens(n, seed))
    mx.eval(out, *cache.arrays())
    return np.array(out)


@pytest.mark.parametrize("step", [1, 5, 64])
def test_64_to_127_tokens_stay_open_once_there_are_as_many(step):
    cache = make()
    while cache.length < 600:
        feed(cache, step)
        behind_sinks = cache.length - 4
        if behind_sinks >= BLOCK:
            assert BLOCK <= cache.recent_tokens < 2 * BLOCK
        assert cache.closed * BLOCK + cache.recent_tokens == max(0, behind_sinks)


def test_the_oldest_block_is_given_back_when_no_window_reaches_it():
    cache = make(window=129)
    assert cache.policy.ring_blocks == 2
    feed(cache, 4 + 3 * BLOCK)
    assert (cache.closed, cache.ring_start, cache.pool.n_free) == (2, 0, 0)
    feed(cache, BLOCK)
    assert (cache.closed, cache.ring_start, cache.pool.n_free) == (3, 1, 0)


def test_pinned_blocks_are_never_evicted():
    cache = make(window=128, n_pinned=2 * BLOCK)
    feed(cache, 1000)
    assert len(cache.pinned) == 2
    assert cache.ring_start == cache.closed - cache.policy.ring_blocks > 2


def test_tokens_out_of_every_reach_are_counted_as_evicted():
    cache = make(window=100, n_sink=4)
    counts = [cache.evicted_tokens for _ in range(107) if feed(cache, 1) is not None]
    assert counts == [0] * 104 + [1, 2, 3]


def test_nothing_changes_when_a_shared_pool_is_full():
    cache = make()
    pool = BlockPool(1, cache.policy.layers)
    first, second = make(pool=pool), make(pool=pool)
    feed(first, 4 + 2 * BLOCK)
    feed(second, 4 + BLOCK)
    for n in (BLOCK, 1000):
        with pytest.raises(DoesNotFit, match="pool of 1 blocks is full"):
            make_step(second, n)
        assert (second.length, second.closed, len(second.ring)) == (4 + BLOCK, 0, 0)
    first.free()
    feed(second, BLOCK)
    assert second.closed == 1


def test_a_fork_and_its_origin_go_separate_ways():
    origin, expected = make(bits=4, pool=None), make(bits=4)
    origin.pool = BlockPool(8, origin.policy.layers)
    for cache in (origin, expected):
        feed(cache, 180, seed=1)
    fork = origin.fork()
    assert origin.pool.n_free == 8 - 1
    feed(fork, 90, seed=2)
    for seed in range(3, 80):
        np.testing.assert_array_equal(feed(origin, 1, seed), feed(expected, 1, seed))


def test_a_fork_continues_as_its_origin_does():
    origin = make(bits=4)
    origin.pool = BlockPool(8, origin.policy.layers)
    feed(origin, 180)
    fork = origin.fork()
    assert fork.nbytes == origin.nbytes
    for seed in range(100):
        np.testing.assert_array_equal(feed(origin, 1, seed), feed(fork, 1, seed))


def test_blocks_come_back_to_the_pool_with_their_last_holder():
    origin = make()
    origin.pool = BlockPool(8, origin.policy.layers)
    feed(origin, 400)
    fork = origin.fork()
    taken = origin.pool.n_blocks - origin.pool.n_free
    assert taken == origin.policy.ring_blocks
    origin.free()
    assert origin.pool.n_free == 8 - taken
    fork.free()
    assert origin.pool.n_free == 8


def test_a_freed_cache_starts_anew():
    used, fresh = make(bits=4), make(bits=4)
    feed(used, 500, seed=7)
    used.free()
    assert (used.length, used.closed, used.evicted_tokens, used.recent_tokens) == (0, 0, 0, 0)
    np.testing.assert_array_equal(feed(used, 300), feed(fresh, 300))


@pytest.mark.parametrize("taken", [1, 20, 33])
def test_tokens_taken_back_leave_no_trace(taken):
    cache, expected = make(bits=4), make(bits=4)
    feed(cache, 290)
    feed(expected, 290)
    feed(cache, taken, seed=5)
    cache.trim(taken)
    assert cache.length == expected.length
    assert cache.closed == expected.closed
    for seed in range(30, 60):
        np.testing.assert_array_equal(feed(cache, 1, seed), feed(expected, 1, seed))


def test_a_block_closed_by_tokens_taken_back_stays_closed():
    cache = make()
    feed(cache, 290)
    feed(cache, 34)
    cache.trim(34)
    assert (cache.length, cache.closed, cache.recent_tokens) == (290, 4, 30)


def test_closed_tokens_are_not_taken_back():
    cache = make()
    feed(cache, 4 + 2 * BLOCK + 10)
    assert cache.closed == 1
    assert cache.can_trim(BLOCK + 10)
    assert not cache.can_trim(BLOCK + 11)
    with pytest.raises(AssertionError, match="cannot take 75 of 142 tokens back"):
        cache.trim(BLOCK + 11)


def test_everything_is_taken_back_while_nothing_is_closed():
    cache, fresh = make(), make()
    feed(cache, 100, seed=3)
    assert not cache.can_trim(101)
    assert not cache.can_trim(-1)
    cache.trim(100)
    np.testing.assert_array_equal(feed(cache, 150), feed(fresh, 150))


@pytest.mark.parametrize("window", [2, 64, 65, 66, 100, 129, 130, 193])
@pytest.mark.parametrize("length", [300, 310, 350, 363, 400])
def test_64_tokens_can_always_be_taken_back(window, length):
    cache = make(window=window)
    feed(cache, length)
    assert cache.can_trim(BLOCK)


def test_a_hundred_million_tokens_later_the_answers_are_the_same_to_the_bit():
    near, far = make(window=150, bits=4), make(window=150, bits=4)
    for cache in (near, far):
        feed(cache, 500)
    # An even number of blocks, since a block's place among the recent ones is its parity.
    far.closed += 2_000_000
    far.length += 2_000_000 * BLOCK
    for n in (1, 1, 70, 1, 200, 1):
        np.testing.assert_array_equal(feed(near, n, seed=n), feed(far, n, seed=n))
    assert far.evicted_tokens - near.evicted_tokens == 2_000_000 * BLOCK
