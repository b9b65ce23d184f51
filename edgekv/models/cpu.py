"""A decoder for one token of each of a few sequences in numpy, for machines without Metal.

Few tokens are bound by the memory that weights are read from. MLX's CPU backend hands every
product to the BLAS as one for many rows, 9 GB/s of weights where numpy's matrix-by-vector product
reads 24 (two cores), and a small operation takes it 5 us where numpy takes 1.
"""

from collections.abc import Sequence
from itertools import accumulate

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from edgekv.metal.device import has_metal
from edgekv.metal.gate import gated_on_host
from edgekv.metal.host import Floats, view
from edgekv.models.few import product
from edgekv.models.gemv import by_vector
from edgekv.models.layers import MLP, Attention, Decoder, HostAttend, TransformerBlock


def add_host(model: Decoder) -> None:
    """Give a loaded model its way for single tokens where this device gains from it."""
    if not has_metal() and all(array.dtype == mx.float32 for array in model.arrays()):
        model.host = HostDecoder(model)
        # The weights that were joined into larger arrays.
        mx.clear_cache()


def _floats(array: mx.array) -> Floats:
    floats: Floats = view(array)
    return floats


class HostLinear:
    """x @ weight.T + bias for a few rows x; of several layers, their outputs side by side.

    It computes on the layers' own weights: those of several layers are parts of one array, since
    one product over all of it reads it faster than a product for each (two cores).
    """

    def __init__(self, *linears: nn.Module) -> None:
        self._weight = _joined(linears)
        self._by_vector = by_vector(self._weight)
        biases = [_floats(linear["bias"]) for linear in linears if "bias" in linear]
        assert len(biases) in (0, len(linears))
        self._bias = np.concatenate(biases) if biases else None

    def __call__(self, x: Floats) -> Floats:
        out: Floats = self._by_vector(x[0])[None] if len(x) == 1 else product(self._weight, x)
        return out if self._bias is None else out + self._bias


def _joined(linears: Sequence[nn.Module]) -> Floats:
    """The weights of layers in one array, which theirs are parts of, or are made so."""
    weights = [_floats(linear["weight"]) for linear in linears]
    rows, columns = sum(map(len, weights)), weights[0].shape[1]
    if not _one_behind_another(weights):
        whole = mx.concatenate([linear["weight"] for linear in linears])
        parts = mx.split(whole, list(accumulate(len(weight) for weight in weights[:-1])))
        for linear, part in zip(linears, parts, strict=True):
            linear["weight"] = part
        mx.eval(whole, parts)
        return _floats(whole)
    return np.lib.stride_tricks.as_strided(weights[0], (rows, columns))


def _one_behind_another(weights: Sequence[Floats]) -> bool:
    """Whether they lie in memory as the parts of one array would."""
    begins = [weight.ctypes.data for weight in weights]
    ends = [begin + weight.nbytes for begin, weight in zip(begins, weights, strict=True)]
    return begins[1:] == ends[:-1] and all(weight.flags.c_contiguous for weight in weights)


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
        self._qkv = HostLinear(attention.q_proj, attention.k_proj, attention.v_proj)
        self._o = HostLinear(attention.o_proj)
        n_heads, n_kv_heads = attention.n_heads, attention.n_kv_heads
        self._heads = [n_heads, n_heads + n_kv_heads]
        self._q_norm = HostNorm(attention.q_norm) if attention.normed else _same
        self._k_norm = HostNorm(attention.k_norm) if attention.normed else _same

    def __call__(self, x: Floats, step: HostAttend) -> Floats:
        heads = self._qkv(x).reshape(len(x), -1, self._head_dim)
        q, k, v = np.split(heads, self._heads, axis=1)
        out = step.attend(self._layer, self._q_norm(q) * self._scale, self._k_norm(k), v)
        return self._o(out.reshape(len(x), -1))


def _same(x: Floats) -> Floats:
    return x


class HostMLP:
    def __init__(self, mlp: MLP) -> None:
        self._gate_up = HostLinear(mlp.gate_proj, mlp.up_proj)
        self._down = HostLinear(mlp.down_proj)

    def __call__(self, x: Floats) -> Floats:
        gate, up = np.split(self._gate_up(x), 2, axis=-1)
        return self._down(gated_on_host(gate, up))


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
