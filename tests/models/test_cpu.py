"""The one-token way of the CPU backend gives what the plain blocks give, and is what decodes."""

import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten

from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.generate import forward
from edgekv.metal import device
from edgekv.models import cpu
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
        keys, values = (
            mx.concatenate([a, b])
            for a, b in zip(self.held.get(layer, (k[:0],) * 2), (k, v), strict=True)
        )
        self.held[layer] = keys, values
        group = q.shape[1] // k.shape[1]
        keys, values = (mx.repeat(x, group, axis=1).swapaxes(0, 1) for x in (keys, values))
        weights = mx.softmax(q.swapaxes(0, 1) @ keys.swapaxes(1, 2), axis=-1)
        return (weights @ values).swapaxes(0, 1)


def both_ways(config):
    """Hidden states and scores of tokens fed one by one: the plain way, and the model's own."""
    model = build(config, random_weights(config))
    own = model.one_token
    results = []
    for way in (None, own):
        model.one_token = way
        step = Exact()
        hidden = mx.concatenate([model(mx.array([t]), step) for t in TOKENS])
        results.append((np.array(hidden), np.array(model.logits(hidden[-1:]))))
    return own, results


@pytest.mark.skipif(device.has_metal(), reason="the plain way is the fast one on Metal")
@pytest.mark.parametrize("unpacked", [1_000_000, 1000])
@pytest.mark.parametrize("name", FAMILIES)
def test_one_token_equals_the_plain_blocks(name, unpacked, monkeypatch):
    # Small limits send these small matrices the way of large ones: cut, and on both streams.
    monkeypatch.setattr(cpu, "UNPACKED", unpacked)
    monkeypatch.setattr(cpu, "WORTH_SPLITTING", 4 * unpacked)
    own, (plain, fast) = both_ways(config_of(name))
    assert own is not None
    for expected, found in zip(plain, fast, strict=True):
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@pytest.mark.skipif(device.has_metal(), reason="the plain way is the fast one on Metal")
def test_single_tokens_take_the_way_of_the_cpu_and_others_do_not(monkeypatch):
    config = config_of("llama")
    model = build(config, random_weights(config))
    taken = []
    way = cpu.ColumnDecoder.__call__
    monkeypatch.setattr(
        cpu.ColumnDecoder,
        "__call__",
        lambda self, inputs, step: taken.append(inputs.shape[0]) or way(self, inputs, step),
    )
    policy = ModelShape.from_config(config).policy(window=100)
    cache = SequenceCache(policy, Rope(0.5 ** np.arange(16)))
    for n in (20, 1, 2, 1):
        mx.eval(forward(model, cache, mx.array(TOKENS[:n])))
    assert taken == [1, 1]


def test_metal_keeps_the_plain_blocks(monkeypatch):
    config = config_of("llama")
    monkeypatch.setattr(cpu, "has_metal", lambda: True)
    assert build(config, random_weights(config)).one_token is None
