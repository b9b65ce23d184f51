"""Our models against mlx-lm's with the same weights, and the default model against numpy."""

from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten, tree_map
from mlx_lm.models import llama, qwen2, qwen3

from edgekv.cache.sequence import SequenceCache
from edgekv.generate import chunks, decode, forward, prefill
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape
from edgekv.sampling import Sampling, make_sampler
from tests.models.numpy_llama import NumpyLlama
from tests.quality.measure import TEXT, load

VOCAB = 97
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@dataclass(frozen=True)
class Family:
    """How a family is configured here, and mlx-lm's module for it."""

    module: Any
    config: dict[str, Any]


def family(module, model_type, heads, kv_heads, **keys):
    base = {
        "model_type": model_type,
        "hidden_size": 16 * heads,
        "num_hidden_layers": 3,
        "intermediate_size": 96,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    return Family(module, base | keys)


FAMILIES = {
    "llama": family(llama, "llama", 4, 4),
    "llama-tied-gqa3": family(llama, "llama", 6, 2, tie_word_embeddings=True),
    "llama-llama3-rope": family(llama, "llama", 7, 1, rope_scaling=LLAMA3),
    "llama-linear-rope": family(
        llama, "llama", 6, 2, rope_scaling={"type": "linear", "factor": 2.5}
    ),
    "llama-yarn-rope": family(llama, "llama", 6, 2, rope_scaling=YARN),
    "llama-biases": family(llama, "llama", 4, 2, attention_bias=True, mlp_bias=True),
    "mistral": family(llama, "mistral", 8, 2, head_dim=32),
    "qwen2": family(qwen2, "qwen2", 7, 1, rope_theta=1e6, tie_word_embeddings=True),
    "qwen2-yarn-rope": family(qwen2, "qwen2", 6, 2, rope_scaling=YARN),
    "qwen3": family(qwen3, "qwen3", 6, 2, head_dim=32, tie_word_embeddings=True),
    "qwen3-untied": family(qwen3, "qwen3", 7, 7, head_dim=64),
}


def random_weights(theirs):
    rng = np.random.default_rng(5)

    def draw(array):
        if array.ndim == 1:
            return mx.array(rng.normal(1.0, 0.2, array.shape).astype(np.float32))
        # Scores of a deviation near one: attention is uneven, so positions matter, and yet not
        # so sharp that the rounding of keys to fp16 decides.
        spread = array.shape[-1] ** -0.5
        return mx.array(rng.normal(0.0, spread, array.shape).astype(np.float32))

    return tree_map(draw, theirs.parameters())


@pytest.fixture(scope="module", params=FAMILIES)
def pair(request):
    config = FAMILIES[request.param].config
    module = FAMILIES[request.param].module
    theirs = module.Model(module.ModelArgs.from_dict(config))
    theirs.update(random_weights(theirs))
    ours = build(config, dict(tree_flatten(theirs.parameters())))
    return config, ours, theirs


@pytest.fixture(scope="module")
def tokens():
    return np.random.default_rng(2).integers(0, VOCAB, 203).tolist()


def unbounded(config, n):
    shape = ModelShape.from_config(config)
    policy = shape.policy(max(n, 128), k_bits=16, v_bits=16)
    return SequenceCache(policy, make_rope(config, shape.head_dim))


def logits_in_pieces(model, cache, tokens, sizes):
    outs = []
    for first, last in zip(np.cumsum([0, *sizes[:-1]]), np.cumsum(sizes), strict=True):
        hidden = forward(model, cache, mx.array(tokens[first:last]))
        outs.append(np.array(model.logits(hidden)))
        mx.eval(*cache.arrays())
    return np.concatenate(outs)


def errors(found, wanted):
    """The relative error of each position, in the norm over the vocabulary."""
    return np.linalg.norm(found - wanted, axis=-1) / np.linalg.norm(wanted, axis=-1)


def assert_close(found, wanted):
    """1e-3 relative over the whole text, and no position far from it.

    Keys and values are fp16 in the cache: numpy's own forward with nothing but keys and values
    rounded to fp16 is as far from fp32 (3.4e-4 over the text, 2.4e-3 at the worst position).
    """
    assert np.linalg.norm(found - wanted) < 1e-3 * np.linalg.norm(wanted)
    assert np.median(errors(found, wanted)) < 1e-3
    assert errors(found, wanted).max() < 5e-3


@pytest.mark.parametrize(
    "sizes", [[203], [1] * 203, [37, 1, 101, 64], [3, 130, 70]], ids=["whole", "ones", "odd", "big"]
)
def test_logits_are_those_of_mlx_lm(pair, tokens, sizes):
    config, ours, theirs = pair
    wanted = np.array(theirs(mx.array(tokens)[None]))[0]
    found = logits_in_pieces(ours, unbounded(config, len(tokens)), tokens, sizes)
    assert_close(found, wanted)


def test_greedy_continuation_is_that_of_mlx_lm(pair, tokens):
    config, ours, theirs = pair
    prompt = tokens[:75]
    cache = unbounded(config, len(tokens))
    sampler = make_sampler(Sampling(temp=0), seed=0)
    found = list(decode(ours, cache, prefill(ours, cache, prompt), sampler, None, 64))
    # The reference sees what was produced: it agrees with every token or it continued otherwise.
    wanted = np.array(theirs(mx.array(prompt + found[:-1])[None]))[0, len(prompt) - 1 :]
    best, second = np.sort(wanted, axis=-1)[:, ::-1][:, :2].T
    # Random weights give near-ties, in which the rounding of keys to fp16 decides.
    clear = best - second > 0.02
    assert clear.sum() > 48
    assert (wanted.argmax(axis=-1) == found)[clear].all()
    assert (wanted[range(64), found] > best - 0.02).all()


def test_quantized_weights_give_the_logits_of_mlx_lm(tokens):
    config = family(llama, "llama", 6, 2, head_dim=32).config | {"hidden_size": 64}
    theirs = llama.Model(llama.ModelArgs.from_dict(config))
    theirs.update(random_weights(theirs))
    nn.quantize(theirs, group_size=32, bits=4)
    quantized = config | {"quantization": {"group_size": 32, "bits": 4}}
    ours = build(quantized, dict(tree_flatten(theirs.parameters())))
    wanted = np.array(theirs(mx.array(tokens)[None]))[0]
    found = logits_in_pieces(ours, unbounded(config, 203), tokens, [100, 103])
    assert_close(found, wanted)


@pytest.fixture(scope="module")
def reference(default_model):
    return NumpyLlama(default_model)


@pytest.mark.model
def test_the_default_model_agrees_with_numpy_on_512_tokens(default_model, reference):
    loaded = load(default_model)
    tokens = loaded.tokenizer.encode(TEXT.read_text("utf-8")[:4000])[:512]
    cache = loaded.cache(loaded.policy(512, bits=16))
    sizes = list(chunks(0, 512, cache.policy.n_sink))
    found = logits_in_pieces(loaded.model, cache, tokens, sizes)
    assert len(found) == 512
    assert_close(found, reference.logits(tokens))


@pytest.mark.model
def test_the_default_model_continues_as_numpy_does_for_64_tokens(default_model, reference):
    loaded = load(default_model)
    prompt = loaded.tokenizer.encode(TEXT.read_text("utf-8")[:4000])[:192]
    cache = loaded.cache(loaded.policy(512, bits=16))
    sampler = make_sampler(Sampling(temp=0), seed=0)
    logits = prefill(loaded.model, cache, prompt)
    found = list(decode(loaded.model, cache, logits, sampler, None, 64))
    # The reference sees what was produced: it agrees with every token or it continued otherwise.
    best = reference.logits(prompt + found[:-1])[len(prompt) - 1 :].argmax(axis=-1)
    assert best.tolist() == found
