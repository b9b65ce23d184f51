"""A decoder for one token of each of a few sequences in numpy, for machines without Metal.

Few tokens are bound by the memory that weights are read from. MLX's CPU backend hands every
product to the BLAS as one for many rows, 9 GB/s of weights where numpy's matrix-by-vector product
reads 24 (two cores), and a small operation takes it 5 us where numpy takes 1.
"""

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from edgekv.metal.device import has_metal
from edgekv.metal.host import Floats, view
from edgekv.models.few import product
from edgekv.models.layers import MLP, Attention, Decoder, HostAttend, TransformerBlock


def add_host(model: Decoder) -> None:
    """Give a loaded model its way for single tokens where this device gains from it."""
    if not has_metal() and all(array.dtype == mx.float32 for array in model.arrays()):
        model.host = HostDecoder(model)


def _floats(array: mx.array) -> Floats:
    floats: Floats = view(array)
    return floats


class HostLinear:
    """x @ weight.T + bias for a few rows x, on the layer's own weight."""

    def __init__(self, linear: nn.Module) -> None:
        self._weight = _floats(linear["weight"])
        self._bias = _floats(linear["bias"]) if "bias" in linear else None

    def __call__(self, x: Floats) -> Floats:
        out: Floats = (self._weight @ x[0])[None] if len(x) == 1 else product(self._weight, x)
        return out if self._bias is None else out + self._bias


class HostNorm:
    """RMS norm of the last axis (Zhang and Sennrich, arXiv 1910.07467)."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        # x / sqrt(sum / n + eps) is x * sqrt(n) / sqrt(sum + n * eps).
        n = np.float32(norm.weight.size)
        self._weight, self._eps = _floats(norm.weight) * np.sqrt(n), n * np.float32(norm.eps)

    def __call__(self, x: Floats) -> Floats:
        total = np.vecdot(x, x)[..., None]
        normed: Floats = x * (self._weight / np.sqrt(total + self._eps))
        return normed


class HostAttention:
    def __init__(self, attention: Attention) -> None:
        self._layer, self._head_dim = attention.layer, attention.head_dim
        self._scale = np.float32(attention.scale)
        self._q, self._k, self._v, self._o = (
            HostLinear(linear)
            for linear in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        )
        self._q_norm = HostNorm(attention.q_norm) if attention.normed else _same
        self._k_norm = HostNorm(attention.k_norm) if attention.normed else _same

    def __call__(self, x: Floats, step: HostAttend) -> Floats:
        shape = len(x), -1, self._head_dim
        q, k, v = (one(x).reshape(shape) for one in (self._q, self._k, self._v))
        out = step.attend(self._layer, self._q_norm(q) * self._scale, self._k_norm(k), v)
        return self._o(out.reshape(len(x), -1))


def _same(x: Floats) -> Floats:
    return x


class HostMLP:
    def __init__(self, mlp: MLP) -> None:
        self._gate, self._up, self._down = (
            HostLinear(linear) for linear in (mlp.gate_proj, mlp.up_proj, mlp.down_proj)
        )

    def __call__(self, x: Floats) -> Floats:
        gate = self._gate(x)
        # exp overflows to infinity below -88, and the gate is then zero, as it should be.
        with np.errstate(over="ignore"):
            return self._down(gate / (1 + np.exp(-gate)) * self._up(x))


class HostBlock:
    def __init__(self, block: TransformerBlock) -> None:
        self._attention, self._mlp = HostAttention(block.self_attn), HostMLP(block.mlp)
        self._before = HostNorm(block.input_layernorm)
        self._between = HostNorm(block.post_attention_layernorm)

    def __call__(self, x: Floats, step: HostAttend) -> Floats:
        x = x + self._attention(self._before(x), step)
        return x + self._mlp(self._between(x))


class HostDecoder:
    """A plain decoder's blocks and head for a few rows; the weights are the model's own memory."""

    def __init__(self, model: Decoder) -> None:
        self._embed = _floats(model.model.embed_tokens.weight)
        self._blocks = [HostBlock(layer) for layer in model.model.layers]
        self._norm = HostNorm(model.model.norm)
        self._head = HostLinear(model.model.embed_tokens if model.tied else model.lm_head)

    def __call__(self, inputs: mx.array, step: HostAttend) -> mx.array:
        """Token ids (n,) to hidden states (n, hidden_size)."""
        x = self._embed[view(inputs)]
        for block in self._blocks:
            x = block(x, step)
        return mx.array(self._norm(x))

    def logits(self, hidden: mx.array) -> mx.array:
        """Hidden states (n, hidden_size) to scores (n, vocab_size)."""
        return mx.array(self._head(_floats(hidden)))
