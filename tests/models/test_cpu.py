"""The host's way for one token gives what the plain blocks give, and is what decodes."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from edgekv import blas
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.generate import forward
from edgekv.metal import device
from edgekv.models import cpu
from edgekv.models.few import product
from edgekv.models.gemv import by_vector
from edgekv.models.load import build
from edgekv.models.shape import ModelShape

SHAPE = {
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "intermediate_size": 80,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "vocab_size": 301,
    "rms_norm_eps": 1e-3,
    "max_position_embeddings": 512,
}
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 96},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {},
    "odd inner size": {"intermediate_size": 77, "num_key_value_heads": 9},
}
TOKENS = [int(t) for t in np.random.default_rng(0).integers(0, 301, 30)]


def config_of(name):
    kind = name.split()[0] if name.split()[0] in ("llama", "mistral", "qwen2", "qwen3") else "llama"
    return SHAPE | FAMILIES[name] | {"model_type": kind}


def random_weights(config):
    """Weights of the sizes that a model of that configuration asks for."""
    import importlib

    family = importlib.import_module(f"edgekv.models.{config['model_type']}")
    model = family.Model(family.ModelArgs.from_config(config))
    rng = np.random.default_rng(1)

    def draw(name, shape):
        spread = rng.standard_normal(shape) * (0.2 if len(shape) > 1 else 0.3)
        return mx.array((spread + ("norm" in name)).astype(np.float32))

    return {name: draw(name, a.shape) for name, a in tree_flatten(model.parameters())}


class Exact:
    """Attention over all tokens so far in fp32: the cache's roundings would hide small errors."""

    def __init__(self):
        self.held = {}

    def attend(self, layer, q, k, v):
        q, k, v = (np.array(x).reshape(-1, *x.shape[-2:]) for x in (q, k, v))
        keys, values = (
            np.concatenate([a, b])
            for a, b in zip(self.held.get(layer, (k[:0],) * 2), (k, v), strict=True)
        )
        self.held[layer] = keys, values
        group = q.shape[1] // k.shape[1]
        keys, values = (np.repeat(x, group, axis=1) for x in (keys, values))
        scores = np.einsum("nhd,thd->nht", q, keys)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.einsum("nht,thd->nhd", weights / weights.sum(-1, keepdims=True), values)


class ExactOfMlx(Exact):
    def attend(self, layer, q, k, v):
        return mx.array(super().attend(layer, q, k, v))


def fed(way, rows, step):
    """Hidden states of the tokens, so many at once. Each sees all those fed with it."""
    pieces = [mx.array(TOKENS[at : at + rows]) for at in range(0, len(TOKENS), rows)]
    return mx.concatenate([way(piece, step) for piece in pieces])


@pytest.mark.skipif(device.has_metal(), reason="the plain way is the fast one on Metal")
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", FAMILIES)
def test_the_host_equals_the_plain_blocks(name, rows):
    config = config_of(name)
    model = build(config, random_weights(config))
    found = fed(model.host, rows, Exact())
    expected = fed(model, rows, ExactOfMlx())
    near(found, expected)
    scores = model.logits(expected[-rows:])
    model.host = None
    near(scores, model.logits(expected[-rows:]))


def near(found, expected):
    assert found.shape == expected.shape
    assert found.dtype == mx.float32
    assert mx.abs(found - expected).max() < 1e-4 * mx.abs(expected).max()


@pytest.mark.skipif(device.has_metal(), reason="the plain way is the fast one on Metal")
def test_single_tokens_behind_the_sinks_take_the_way_of_the_host(monkeypatch):
    config = config_of("llama")
    model = build(config, random_weights(config))
    taken = []
    way = cpu.HostDecoder.__call__
    monkeypatch.setattr(
        cpu.HostDecoder,
        "__call__",
        lambda self, inputs, step: taken.append(inputs.item()) or way(self, inputs, step),
    )
    policy = ModelShape.from_config(config).policy(window=100)
    cache = SequenceCache(policy, Rope(0.5 ** np.arange(16)))
    for n in (1, 20, 1, 2, 1):
        mx.eval(forward(model, cache, mx.array(TOKENS[n : 2 * n])))
    assert taken == [TOKENS[1]] * 2


def test_metal_keeps_the_plain_blocks(monkeypatch):
    config = config_of("llama")
    monkeypatch.setattr(cpu, "has_metal", lambda: True)
    assert build(config, random_weights(config)).host is None


@pytest.mark.parametrize("shape", [(7, 5), (1536, 576), (576, 1536), (3, 400_000)])
@pytest.mark.parametrize("rows", [2, 3, 8])
def test_a_product_of_a_few_rows_is_numpys(shape, rows):
    chance = np.random.default_rng(1)
    weight = chance.standard_normal(shape, np.float32)
    x = chance.standard_normal((rows, shape[1]), np.float32)
    assert np.allclose(product(weight, x), x @ weight.T, rtol=1e-4, atol=1e-3 * shape[1] ** 0.5)


@pytest.mark.skipif(device.has_metal(), reason="weights are joined for the host alone")
def test_joined_weights_take_no_memory_of_their_own():
    config = config_of("llama with biases")
    weights = random_weights(config)
    mx.eval(weights)
    total, before = sum(array.nbytes for array in weights.values()), mx.get_active_memory()
    model = build(config, dict(weights))
    assert sum(array.nbytes for array in model.arrays()) == total
    weights.clear()
    assert mx.get_active_memory() <= before * 1.01


@pytest.mark.parametrize("shape", [(1, 1), (7, 5), (576, 1536), (3, 400_000)])
def test_a_product_by_a_vector_is_numpys(shape):
    chance = np.random.default_rng(2)
    weight, x = chance.standard_normal(shape, np.float32), chance.standard_normal(shape[1])
    found = by_vector(weight)(x.astype(np.float32))
    assert found.dtype == np.float32
    assert np.allclose(found, weight @ x, rtol=1e-4, atol=1e-3 * shape[1] ** 0.5)


def test_a_wrong_vector_is_not_read_beyond_its_end():
    if blas.library() is None:
        pytest.skip("numpy computes the products, and checks")
    product = by_vector(np.ones((4, 6), np.float32))
    for wrong in (np.ones(5, np.float32), np.ones(6), np.ones(12, np.float32)[::2]):
        with pytest.raises(AssertionError):
            product(wrong)
