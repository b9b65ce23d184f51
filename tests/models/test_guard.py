"""A model with one huge constant key channel, as Qwen2.5 has: seen, raised, and told of."""

import json
import subprocess

import mlx.core as mx
import numpy as np
import pytest

from edgekv.cache.block import close
from edgekv.cache.policy import LayerPolicy
from edgekv.cache.rope import Rope
from edgekv.metal.packed import expand
from edgekv.metal.rotary import rotate
from edgekv.models.guard import score_error, sensitive_layers
from tests.loading.files import VOCAB, tiny_config, write_folder

FREQUENCIES = 1e6 ** (-np.arange(32) / 32)
ROPE = Rope(FREQUENCIES)
FAST, SLOW = 3, 28
"""Pairs of channels: one turns by 17 radians in a block, the other by less than a thousandth."""


def bias(channel, size, layer_width=128):
    found = np.zeros(layer_width)
    found[channel] = size
    return found.reshape(2, 64)


@pytest.mark.parametrize("channel", [FAST, 12, SLOW])
@pytest.mark.parametrize("bits", [4, 8])
def test_the_error_is_that_of_scores_over_a_quantized_block(channel, bits):
    """Keys of the constant and a little noise, unit queries: the error the product's codes make."""
    rng = np.random.default_rng(0)
    constant = bias(channel, 200.0)
    keys = constant[None, :, None] + rng.normal(0, 0.01, (50, 2, 64, 64))
    keys = rotate(mx.array(keys.astype(np.float32)), ROPE.for_keys(np.arange(64)))
    stored = close(keys, keys, LayerPolicy(2, 64, k_bits=bits, v_bits=16))
    error = np.array(expand(stored.keys, 64, mx.float32).swapaxes(-1, -2) - keys)[:, 0]
    queries = rng.normal(0, 1, (50, 64, 1))
    found = (error @ queries / 8).std()
    # Beside the constant's error there is that of the noise, and that of fp16 constants.
    assert found == pytest.approx(score_error(constant, ROPE, bits), rel=0.5, abs=0.02)


def test_only_a_large_constant_in_a_fast_channel_is_sensitive():
    biases = [None, bias(FAST, 100), bias(SLOW, 300), bias(FAST + 32, 100), bias(FAST, 10)]
    assert sensitive_layers(biases, ROPE) == {1, 3}
    ordinary = np.random.default_rng(0).normal(0, 2, (2, 64))
    assert sensitive_layers([ordinary], ROPE) == set()


def random_qwen2(layers=2, channel=FAST, size=100.0):
    rng = np.random.default_rng(0)
    config = tiny_config(
        model_type="qwen2", hidden_size=256, intermediate_size=256, num_hidden_layers=layers,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, rope_theta=1e6,
        max_position_embeddings=4096,
    )  # fmt: skip

    def matrix(rows, columns=256, spread=1.0):
        return mx.array(rng.normal(0, spread * columns**-0.5, (rows, columns)).astype(np.float32))

    weights = {"model.norm.weight": mx.ones(256)}
    weights |= {"model.embed_tokens.weight": matrix(VOCAB), "lm_head.weight": matrix(VOCAB)}
    for i in range(layers):
        rows = {"self_attn.q_proj": 256, "self_attn.k_proj": 128, "self_attn.v_proj": 128}
        rows |= dict.fromkeys(("self_attn.o_proj", *(f"mlp.{x}_proj" for x in MLP)), 256)
        for name, n in rows.items():
            spread = 1.5 if name[-6:] in ("q_proj", "k_proj") else 1.0
            weights[f"model.layers.{i}.{name}.weight"] = matrix(n, spread=spread)
        for name, n in list(rows.items())[:3]:
            weights[f"model.layers.{i}.{name}.bias"] = mx.zeros(n)
        for name in ("input", "post_attention"):
            weights[f"model.layers.{i}.{name}_layernorm.weight"] = mx.ones(256)
    huge = mx.array(bias(channel, size).ravel().astype(np.float32))
    weights["model.layers.0.self_attn.k_proj.bias"] = huge
    return config, weights


MLP = ("gate", "up", "down")


@pytest.fixture(scope="module")
def biased(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("biased") / "model", *random_qwen2())


def divergence(edgekv, folder, *options):
    result = edgekv("eval", "kld", "-m", folder, "--tokens", 400, "--json", *options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout), result.stderr


def test_without_the_guard_the_failure_is_visible_and_with_it_gone(edgekv, biased, tmp_path):
    four = tmp_path / "four.toml"
    four.write_text("k_bits = 4\nv_bits = 4\n")
    broken, quiet = divergence(edgekv, biased, "--kv-policy", four)
    guarded, told = divergence(edgekv, biased)
    assert broken["kld_mean"] > 5 * guarded["kld_mean"]
    assert broken["top1"] < guarded["top1"] - 0.05
    assert "large constant" not in quiet
    assert "edgekv: keys of layer 0 have a large constant part that 4 bits would break" in told
    assert [row["k_bits"] for row in guarded["policy"]["layers"]] == [8, 4]


def test_a_run_tells_of_it_in_one_line_and_takes_what_was_planned(edgekv, biased):
    def run(*options):
        return edgekv(
            "run", "-m", biased, "--raw", "--max-tokens", 2, "--json", "word", *options,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip

    result = run()
    assert len(result.stderr.splitlines()) == 1 and "kept in 8 bits" in result.stderr
    planned = json.loads(edgekv("plan", biased, "--json").stdout)
    assert json.loads(result.stdout)["kv"]["bytes"] == planned["chosen"]["bytes"]
    assert "keys of layer 0" in planned["advised"]["reasons"][0]
    assert run("--k-bits", 8).stderr == ""
    bits = json.loads(run("--kv-bits", 16).stdout)["kv"]
    assert (bits["k_bits"], bits["v_bits"]) == (16, 16)


def test_a_slow_channel_is_left_as_it_is(edgekv, tmp_path):
    folder = write_folder(tmp_path / "slow", *random_qwen2(channel=SLOW, size=300.0))
    found, told = divergence(edgekv, folder)
    assert "large constant" not in told and len(found["policy"]["layers"]) == 1
    assert found["kld_mean"] < 0.06


def test_a_chat_tells_of_it_once_and_takes_bits_by_layer_at_their_word(edgekv, biased, tmp_path):
    template = {"chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}"}
    (biased / "tokenizer_config.json").write_text(json.dumps(template))
    four = tmp_path / "four.toml"
    four.write_text("k_bits = 4\nv_bits = 4\n")
    chat = ("chat", "--plain", "--no-persist", "-m", biased, "--max-tokens", 2)
    told = edgekv(*chat, stdin=None, input="word\nmore\n")
    assert told.returncode == 0 and told.stderr.count("kept in 8 bits") == 1
    quiet = edgekv(*chat, "--kv-policy", four, stdin=None, input="word\n")
    assert quiet.returncode == 0 and "kept in 8 bits" not in quiet.stderr
    four.write_text("k_bits = [4]\nv_bits = 4\n")
    refused = edgekv(*chat, "--kv-policy", four, stdin=None, input="word\n")
    assert "has 1 numbers, but the model has 2 layers" in refused.stderr
