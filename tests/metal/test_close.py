"""The block-close kernel writes the bits that its twin writes."""

import itertools

import mlx.core as mx
import numpy as np
import pytest

from edgekv.metal import fused, packed
from edgekv.metal.kernels import PACKED
from tests.metal.cases import Template

HEADS, BLOCKS = 2, 2
BITS = (2, 3, 4, 8)


def ordinary(rng, shape):
    return rng.standard_normal(shape) * np.exp(rng.standard_normal(shape[-1])) + 1


def extreme(rng, shape):
    """The whole range of fp16: subnormal, huge, infinite, constant and of one sign."""
    x = rng.standard_normal(shape) * 10.0 ** rng.integers(-7, 5, shape)
    x[..., 0] = 0.25
    x[..., 1] = np.abs(x[..., 1])
    x[:, :, 3] = -65504
    x[:, :, 4, ::2] = np.inf
    x[:, :, 5, 1::7] = -np.inf
    return x


def halfway(rng, shape):
    """Numbers between two codes: ties must be rounded to even, as mx.round does."""
    return rng.integers(0, 31, shape) / 2.0


def blocks(draw, head_dim, seed=0):
    rng = np.random.default_rng(seed)
    shape = (BLOCKS, HEADS, 64, head_dim)
    with np.errstate(over="ignore"):
        return [mx.array(draw(rng, shape).astype(np.float16)) for _ in range(2)]


def assert_same_bits(keys, values, template):
    layer = template.layer
    args = (keys, values, layer.k_bits, layer.v_bits, layer.v_group)
    found, wanted = fused.close(*args), packed.close(*args)
    pairs = zip((*found[0], *found[1]), (*wanted[0], *wanted[1]), strict=True)
    for name, (f, w) in zip(PACKED, pairs, strict=True):
        assert f.shape == w.shape and f.dtype == w.dtype
        differing = np.array(f.view(mx.uint8)) != np.array(w.view(mx.uint8))
        assert not differing.any(), f"{differing.sum()} bytes of {name} differ"


@pytest.mark.parametrize("draw", [ordinary, extreme, halfway])
def test_every_bit_is_the_twins(host, draw):
    templates = [
        Template(head_dim, k_bits=k_bits, v_bits=v_bits)
        for head_dim, (k_bits, v_bits) in itertools.product(
            fused.HEAD_DIMS, [(4, 4), (2, 8), (3, 2), (8, 3)]
        )
    ]
    calls = [(*blocks(draw, t.head_dim, seed), t) for seed, t in enumerate(templates)]
    host.prepare([lambda call=call: assert_shapes(*call) for call in calls])
    for call in calls:
        assert_same_bits(*call)


def assert_shapes(keys, values, template):
    layer = template.layer
    fused.close(keys, values, layer.k_bits, layer.v_bits, layer.v_group)


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_a_view_into_the_recent_tokens_is_read_where_it_lies(host, order):
    host.order = order
    template = Template(64)
    hot = mx.array(np.random.default_rng(5).standard_normal((2, HEADS, 132, 64), np.float32))
    hot = hot.astype(mx.float16)
    assert_same_bits(hot[:1, :, 68:], hot[1:, :, 68:], template)
    read = host.traffic["edgekv_close"].counts["keys"]
    # From the first number of the view to its last, the other tokens in between unread.
    assert read.size > HEADS * 64 * 64 * 2 and set(read[: 64 * 128]) == {1}
    assert read.sum() == HEADS * 64 * 64 * 2
