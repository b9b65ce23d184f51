"""A decoder for one token at a time, arranged for MLX's CPU backend.

One token is bound by the memory that its weights are read from, and MLX calls the BLAS for it as
for a batch. Here an activation is a column, weight @ x, which OpenBLAS computes without packing
the weight first: 14.5 GB/s on one core against 9 GB/s on two for x @ weight.T. MLX runs the
operations of one stream on one thread, so the MLP and large products are halved over two
streams, each half wholly on its own: 26 GB/s (mlx 0.32.4, OpenBLAS 0.3.34, two cores).
"""

import mlx.core as mx
import mlx.nn as nn

from edgekv.metal.device import beside, has_metal
from edgekv.models.layers import MLP, Attend, Attention, Decoder, Module, TransformerBlock

UNPACKED = 1_000_000
"""Numbers of a matrix that OpenBLAS still multiplies by its kernel for small ones."""

WORTH_SPLITTING = 4_000_000
"""Numbers of a matrix from which a second stream gains more than meeting it costs (30 us)."""

LEAD = 36_000
"""Numbers of the three weights that the first half takes over, for the second starts later by the
time of waking its thread: 6 % of an MLP of 576 and 1536 features (measured)."""


class Product:
    """weight @ x + bias for a column x, by a view of the weight (rows, columns)."""

    def __init__(self, weight: mx.array, bias: mx.array | None = None) -> None:
        rows, columns = weight.shape
        step = max(1, UNPACKED // columns)
        self._parts = [weight[at : at + step] for at in range(0, rows, step)]
        self._bias = None if bias is None else bias[:, None]
        self._split = weight.size >= WORTH_SPLITTING
        mx.eval(self._parts)

    def __call__(self, x: mx.array, add: mx.array | None = None) -> mx.array:
        """The product, with a column added to it, on the current stream."""
        if len(self._parts) == 1:
            return self._one(x, add)
        out = mx.concatenate([part @ x for part in self._parts])
        return _sum(out, self._bias, add)

    def on_two(self, x: mx.array, add: mx.array | None = None) -> mx.array:
        """The same on both streams, where the weight is large enough for that to be a gain."""
        if not self._split:
            return self(x, add)
        half = len(self._parts) // 2
        with beside():
            second = [part @ x for part in self._parts[half:]]
        out = mx.concatenate([part @ x for part in self._parts[:half]] + second)
        return _sum(out, self._bias, add)

    def _one(self, x: mx.array, add: mx.array | None) -> mx.array:
        first, second = (self._bias, add) if add is None else (add, self._bias)
        if first is None:
            return self._parts[0] @ x
        return _sum(mx.addmm(first, self._parts[0], x), second)


def _sum(x: mx.array, *more: mx.array | None) -> mx.array:
    for one in more:
        if one is not None:
            x = x + one
    return x


def _product(linear: nn.Linear) -> Product:
    return Product(linear.weight, linear.get("bias"))


class ColumnNorm:
    """RMS norm of a column in five operations: 20 us where mx.fast.rms_norm takes 45."""

    def __init__(self, norm: nn.RMSNorm) -> None:
        # x / sqrt(sum / n + eps) is x * sqrt(n) / sqrt(sum + n * eps).
        n = norm.weight.size
        self._weight: mx.array = norm.weight[:, None] * n**0.5
        self._eps = mx.array([[n * norm.eps]])
        mx.eval(self._weight, self._eps)

    def __call__(self, x: mx.array) -> mx.array:
        return x * mx.rsqrt(mx.addmm(self._eps, x.T, x)) * self._weight


class HalvedLinear(Module):
    """A linear layer whose weight is kept as two matrices, each for one half of its inputs."""

    def __init__(self, linear: nn.Module) -> None:
        super().__init__()
        weight = linear["weight"]
        first, second = mx.split(weight, [_cut(*weight.shape)], axis=1)
        self.first, self.second = mx.contiguous(first), mx.contiguous(second)
        self.bias = linear.get("bias")
        mx.eval(self.first, self.second)

    def __call__(self, x: mx.array) -> mx.array:
        cut = self.first.shape[1]
        out = x[:, :cut] @ self.first.T
        return _sum(mx.addmm(out, x[:, cut:], self.second.T), self.bias)


def _cut(outputs: int, inputs: int) -> int:
    """Where to halve an MLP's inner features: the second half waits for its stream to wake up."""
    cut = inputs // 2 + min(LEAD // outputs, inputs // 16)
    return cut - cut % 16 or cut


class _Half:
    """One half of the inner features of an MLP."""

    def __init__(self, mlp: MLP, rows: slice, down: Product) -> None:
        self._gate, self._up = (
            Product(linear.weight[rows], linear["bias"][rows] if "bias" in linear else None)
            for linear in (mlp.gate_proj, mlp.up_proj)
        )
        self._down = down

    def __call__(self, x: mx.array, add: mx.array | None = None) -> mx.array:
        gate = self._gate(x)
        return self._down(gate * mx.sigmoid(gate) * self._up(x), add)


class ColumnMLP:
    """An MLP in two halves that meet once: 0.53 ms where products split one by one take 0.8."""

    def __init__(self, mlp: MLP) -> None:
        down = HalvedLinear(mlp.down_proj)
        mlp.down_proj = down
        cut = down.first.shape[1]
        self._here = _Half(mlp, slice(0, cut), Product(down.first, down.bias))
        self._there = _Half(mlp, slice(cut, None), Product(down.second))

    def __call__(self, x: mx.array, add: mx.array) -> mx.array:
        with beside():
            there = self._there(x)
        return self._here(x, add) + there


class ColumnAttention:
    def __init__(self, attention: Attention) -> None:
        self._plain = attention
        self._q, self._k, self._v, self._o = (
            _product(linear)
            for linear in (attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj)
        )

    def __call__(self, x: mx.array, step: Attend, add: mx.array) -> mx.array:
        plain = self._plain
        with beside():
            k, v = plain.as_keys(self._k(x)), plain.as_values(self._v(x))
        out = step.attend(plain.layer, plain.as_queries(self._q.on_two(x)), k, v)
        return self._o.on_two(out.reshape(-1, 1), add)


class ColumnBlock:
    def __init__(self, block: TransformerBlock) -> None:
        self._attention = ColumnAttention(block.self_attn)
        self._mlp = ColumnMLP(block.mlp)
        self._before, self._between = (
            ColumnNorm(block.input_layernorm),
            ColumnNorm(block.post_attention_layernorm),
        )

    def __call__(self, x: mx.array, step: Attend) -> mx.array:
        x = self._attention(self._before(x), step, x)
        return self._mlp(self._between(x), x)


def add_one_token(model: Decoder) -> None:
    """Give a loaded model its way for single tokens where this device gains from it."""
    if not has_metal() and all(array.dtype == mx.float32 for array in model.arrays()):
        model.one_token = ColumnDecoder(model)


class ColumnDecoder:
    """A plain decoder's blocks and head for one token; weights are shared with it."""

    def __init__(self, model: Decoder) -> None:
        self._embed = model.model.embed_tokens
        self._blocks = [ColumnBlock(layer) for layer in model.model.layers]
        self._norm = ColumnNorm(model.model.norm)
        self._head = Product((model.model.embed_tokens if model.tied else model.lm_head).weight)

    def __call__(self, inputs: mx.array, step: Attend) -> mx.array:
        x = self._embed(inputs).reshape(-1, 1)
        for block in self._blocks:
            x = block(x, step)
        return self._norm(x).reshape(1, -1)

    def logits(self, hidden: mx.array) -> mx.array:
        return self._head.on_two(hidden.reshape(-1, 1)).reshape(1, -1)
