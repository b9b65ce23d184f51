import mlx.core as mx
import numpy as np
import pytest

from edgekv.cache.host import HostStep
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.cache.step import make_step, takes_one
from tests.cache.naive import FREQUENCIES, attention

DIM, KV_HEADS, GROUP = 32, 2, 2


def make_policy(window, n_sink=4, n_pinned=0, k_bits=16, v_bits=16, n_layers=1):
    layer = LayerPolicy(KV_HEADS, DIM, k_bits, v_bits)
    return CachePolicy(window, (layer,) * n_layers, n_sink, n_pinned)


def random_tokens(n, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((n, KV_HEADS * GROUP, DIM), (n, KV_HEADS, DIM), (n, KV_HEADS, DIM))
    q, k, v = (rng.standard_normal(shape) for shape in shapes)
    return tuple(x.astype(np.float32) for x in (q * 0.4, k + rng.standard_normal(DIM), v))


def feed(cache, tokens, sizes, on_host=False):
    """Outputs of the tokens fed in chunks of the given sizes, the last one repeated."""
    outs, start, sizes = [], cache.length, list(sizes)
    first = start
    while start < first + len(tokens[0]):
        size = min(sizes.pop(0) if len(sizes) > 1 else sizes[0], first + len(tokens[0]) - start)
        rows = slice(start - first, start - first + size)
        if on_host and takes_one(cache, size):
            out = HostStep(cache).attend(0, *(x[rows] for x in tokens))
        else:
            step = make_step(cache, size)
            out = step.attend(0, *(mx.array(x[rows]) for x in tokens))
            mx.eval(out, *cache.arrays())
        assert cache.nbytes == cache.policy.nbytes
        outs.append(np.array(out))
        start += size
    return np.concatenate(outs)


def assert_close(out, expected):
    """Equal to 1e-4, but where a rotated key of the tokens a row sees lies between two fp16
    numbers and the two sides round it differently: that is half a thousandth of one channel."""
    errors = np.abs(out - expected).reshape(len(out), -1).max(axis=1)
    assert np.mean(errors < 1e-4) > 0.95 and errors.max() < 5e-4


CHUNKINGS = [([n], False) for n in (1, 7, 64, 100, 400)] + [([1], True)]
CHUNKINGS += [(sizes, host) for sizes in ([3, 1, 200, 1], [130, 1]) for host in (False, True)]


@pytest.mark.parametrize(("sizes", "on_host"), CHUNKINGS)
@pytest.mark.parametrize(
    ("window", "n_sink", "n_pinned"),
    [
        (512, 4, 0),
        (128, 4, 0),
        (128, 0, 0),
        (150, 4, 64),
        (129, 3, 128),
        (65, 4, 0),
        (64, 1, 0),
        (63, 4, 0),
        (1, 4, 0),
        (1, 0, 0),
        (200, 64, 64),
    ],
)
def test_attention_equals_the_masked_reference(window, n_sink, n_pinned, sizes, on_host):
    policy = make_policy(window, n_sink, n_pinned)
    tokens = random_tokens(400)
    out = feed(SequenceCache(policy, Rope(FREQUENCIES)), tokens, sizes, on_host)
    assert_close(out, attention(*tokens, policy))


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("sizes", [[1], [64], [300], [90, 1, 33], [100, 1]])
@pytest.mark.parametrize(("k_bits", "v_bits"), [(4, 4), (8, 3), (2, 16), (16, 2), (3, 8)])
def test_quantized_attention_depends_on_the_tokens_alone(k_bits, v_bits, sizes, on_host):
    policy = make_policy(150, 4, 64, k_bits, v_bits)
    tokens = random_tokens(300, seed=1)
    out = feed(SequenceCache(policy, Rope(FREQUENCIES)), tokens, sizes, on_host)
    assert np.abs(out - attention(*tokens, policy)).max() < 1e-4


@pytest.mark.parametrize("bits", [4, 16])
def test_the_host_does_not_write_over_a_block_that_is_not_made_yet(bits):
    policy = make_policy(200, n_sink=4, k_bits=bits, v_bits=bits)
    tokens = random_tokens(600)
    outs = []
    for waits in (False, True):
        cache = SequenceCache(policy, Rope(FREQUENCIES))
        made = []
        for start in range(len(tokens[0])):
            one = tuple(x[start : start + 1] for x in tokens)
            # Tokens 131, 259 and so on close a block, here by the plain step.
            if takes_one(cache, 1) and start % 128 != 3:
                made.append(HostStep(cache).attend(0, *one))
            else:
                made.append(make_step(cache, 1).attend(0, *map(mx.array, one)))
                mx.eval(made[-1], cache.arrays(), cache.pool.blocks(0) if waits else [])
        outs.append(np.concatenate([np.array(out) for out in made]))
    np.testing.assert_array_equal(*outs)
