"""Packed weights become the numbers that they stand for, where the host computes on them."""

import mlx.core as mx
import numpy as np
import pytest

from edgekv.metal.device import has_metal
from edgekv.metal.host import view
from edgekv.models import expand as module
from edgekv.models.expand import expand
from edgekv.models.load import build
from tests.models.test_cpu import config_of, random_weights

ATTENTION = "model.layers.0.self_attn"


def packed(modes, columns=64, rows=10, bias=False):
    """Weights of modules {name: (group_size, bits)}, and what MLX's operation makes of them."""
    weights, wanted = {}, {}
    for n, (name, (group, bits)) in enumerate(modes.items()):
        dense = mx.random.normal((rows + n, columns), key=mx.random.key(n))
        parts = mx.quantize(dense, group_size=group, bits=bits)
        parts = (parts[0], *(x.astype(mx.bfloat16) for x in parts[1:]))
        weights |= {
            f"{name}.{key}": x for key, x in zip(("weight", "scales", "biases"), parts, strict=True)
        }
        constants = (x.astype(mx.float32) for x in parts[1:])
        wanted[name] = mx.dequantize(parts[0], *constants, group_size=group, bits=bits)
    return weights, wanted


@pytest.mark.parametrize("at_once", [1, 200, module.AT_ONCE])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_the_numbers_are_those_of_mlx(bits, at_once, monkeypatch):
    monkeypatch.setattr(module, "AT_ONCE", at_once)
    modes = {"lm_head": (64, bits), f"{ATTENTION}.o_proj": (32, 4)}
    weights, wanted = packed(modes)
    norm = mx.ones(3)
    dense = expand(weights | {"model.norm.weight": norm, "lm_head.bias": norm}, modes)
    assert set(dense) == {
        *(f"{name}.weight" for name in modes),
        "model.norm.weight",
        "lm_head.bias",
    }
    for name, array in wanted.items():
        np.testing.assert_array_equal(view(dense[f"{name}.weight"]), view(array))


def test_what_is_computed_together_lies_together_whatever_its_order_and_bits():
    kinds = ("v_proj", "o_proj", "k_proj", "q_proj")
    modes = {f"{ATTENTION}.{kind}": (32, 4 + 4 * n) for n, kind in enumerate(kinds[:2])}
    modes |= {f"{ATTENTION}.{kind}": (64, 4) for kind in kinds[2:]}
    weights, wanted = packed(modes)
    dense = expand(weights, modes)
    q, k, v = (view(dense[f"{ATTENTION}.{kind}.weight"]) for kind in ("q_proj", "k_proj", "v_proj"))
    assert q.ctypes.data + q.nbytes == k.ctypes.data
    assert k.ctypes.data + k.nbytes == v.ctypes.data
    for name, array in wanted.items():
        np.testing.assert_array_equal(view(dense[f"{name}.weight"]), view(array))


@pytest.mark.skipif(has_metal(), reason="weights stay packed")
@pytest.mark.parametrize("plain", ["none", "q_proj", "up_proj"])
def test_the_host_computes_on_the_weights_of_the_model(plain):
    config = config_of("llama") | {"hidden_size": 64, "intermediate_size": 96}
    weights = random_weights(config)
    for name in list(weights):
        module_name = name.removesuffix(".weight")
        if weights[name].ndim == 2 and not module_name.endswith(plain):
            parts = mx.quantize(weights.pop(name), group_size=32, bits=4)
            keys = ("weight", "scales", "biases")
            weights |= {f"{module_name}.{k}": x for k, x in zip(keys, parts, strict=True)}
    model = build(config | {"quantization": {"group_size": 32, "bits": 4}}, weights)
    x = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    for layer, block in zip(model.model.layers, model.host._blocks, strict=True):
        attention, mlp = layer.self_attn, layer.mlp
        for linears, joined in (
            ((attention.q_proj, attention.k_proj, attention.v_proj), block._attention._qkv),
            ((mlp.gate_proj, mlp.up_proj), block._mlp._gate_up),
        ):
            wanted = np.concatenate([view(linear(mx.array(x))) for linear in linears], axis=1)
            np.testing.assert_allclose(joined(x), wanted, rtol=1e-4, atol=1e-4)
            for linear in linears:
                assert np.shares_memory(joined._weight, view(linear["weight"]))
