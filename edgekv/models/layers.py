"""The parts that the decoder families share. Rows are tokens: every activation is (n, features)."""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Protocol, Self

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from edgekv.errors import DamagedFile
from edgekv.metal.gate import gated
from edgekv.metal.host import Floats

FEW = 8
"""Rows up to which weights are read faster on the host than through MLX's CPU backend."""


class Attend(Protocol):
    """A step of the cache: stores keys and values, returns attention (see cache/step.py)."""

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array) -> mx.array: ...


class HostAttend(Protocol):
    """The same on the host (see cache/host.py)."""

    def attend(self, layer: int, q: Floats, k: Floats, v: Floats) -> Floats: ...


class Host(Protocol):
    """A decoder's way to compute a few tokens on the host, from the same weights."""

    def __call__(self, inputs: mx.array, step: HostAttend) -> mx.array: ...

    def logits(self, hidden: mx.array) -> mx.array: ...


@dataclass
class DecoderArgs:
    """The configuration keys that every family has, under the names its config.json gives them."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    vocab_size: int
    rms_norm_eps: float
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    tie_word_embeddings: bool = False

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Self:
        """Take the known keys. Raises DamagedFile where one without a default is missing."""
        known = {f.name for f in fields(cls)}
        try:
            return cls(**{k: v for k, v in config.items() if k in known})
        except TypeError as error:
            raise DamagedFile(f"configuration of {config.get('model_type')}: {error}") from error

    @property
    def kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def dim(self) -> int:
        return self.head_dim or self.hidden_size // self.num_attention_heads


@dataclass(frozen=True)
class Variant:
    """How a family's blocks differ: biases of the projections, norms on queries and keys."""

    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False


class Module(nn.Module):
    """A module with a typed constructor: mlx annotates neither of these two."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def arrays(self) -> list[mx.array]:
        """All parameters."""
        leaves = tree_flatten(self.parameters(), destination={})  # type: ignore[no-untyped-call]
        assert isinstance(leaves, dict)
        return list(leaves.values())


class Attention(Module):
    def __init__(self, args: DecoderArgs, variant: Variant, layer: int) -> None:
        super().__init__()
        self.layer = layer
        self.n_heads, self.n_kv_heads, self.head_dim = (
            args.num_attention_heads,
            args.kv_heads,
            args.dim,
        )
        self.scale: float = args.dim**-0.5
        queries, keys = self.n_heads * self.head_dim, self.n_kv_heads * self.head_dim
        self.q_proj = nn.Linear(args.hidden_size, queries, bias=variant.qkv_bias)
        self.k_proj = nn.Linear(args.hidden_size, keys, bias=variant.qkv_bias)
        self.v_proj = nn.Linear(args.hidden_size, keys, bias=variant.qkv_bias)
        self.o_proj = nn.Linear(queries, args.hidden_size, bias=variant.o_bias)
        self.normed = variant.qk_norm
        if variant.qk_norm:
            self.q_norm = nn.RMSNorm(self.head_dim, eps=args.rms_norm_eps)
            self.k_norm = nn.RMSNorm(self.head_dim, eps=args.rms_norm_eps)

    def __call__(self, x: mx.array, step: Attend) -> mx.array:
        k, v = self.as_keys(self.k_proj(x)), self.as_values(self.v_proj(x))
        out = step.attend(self.layer, self.as_queries(self.q_proj(x)), k, v)
        mixed: mx.array = self.o_proj(out.reshape(x.shape[0], -1))
        return mixed

    def as_queries(self, q: mx.array) -> mx.array:
        """Projected tokens (n, features) as (n, n_heads, head_dim), normed and scaled."""
        q = q.reshape(-1, self.n_heads, self.head_dim)
        if self.normed:
            q = self.q_norm(q)
        return q * self.scale

    def as_keys(self, k: mx.array) -> mx.array:
        """Projected tokens (n, features) as (n, n_kv_heads, head_dim), normed."""
        k = k.reshape(-1, self.n_kv_heads, self.head_dim)
        if self.normed:
            k = self.k_norm(k)
        return k

    def as_values(self, v: mx.array) -> mx.array:
        return v.reshape(-1, self.n_kv_heads, self.head_dim)


class MLP(Module):
    def __init__(self, args: DecoderArgs, bias: bool) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(args.hidden_size, args.intermediate_size, bias=bias)
        self.up_proj = nn.Linear(args.hidden_size, args.intermediate_size, bias=bias)
        self.down_proj = nn.Linear(args.intermediate_size, args.hidden_size, bias=bias)

    def __call__(self, x: mx.array) -> mx.array:
        out: mx.array = self.down_proj(gated(self.gate_proj(x), self.up_proj(x)))
        return out


class TransformerBlock(Module):
    def __init__(self, args: DecoderArgs, variant: Variant, layer: int) -> None:
        super().__init__()
        self.self_attn = Attention(args, variant, layer)
        self.mlp = MLP(args, variant.mlp_bias)
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, x: mx.array, step: Attend) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), step)
        return x + self.mlp(self.post_attention_layernorm(x))


class DecoderModel(Module):
    def __init__(self, args: DecoderArgs, variant: Variant) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [
            TransformerBlock(args, variant, layer) for layer in range(args.num_hidden_layers)
        ]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, inputs: mx.array, step: Attend) -> mx.array:
        *_, out = self.by_layer(inputs, step)
        return out

    def by_layer(self, inputs: mx.array, step: Attend) -> Iterator[mx.array]:
        """What each block gives, one after another, and at last the hidden states."""
        x = self.embed_tokens(inputs)
        for layer in self.layers:
            x = layer(x, step)
            yield x
        yield self.norm(x)


class Decoder(Module):
    """A decoder with its output head; parameter names are those of the published weights."""

    def __init__(self, args: DecoderArgs, variant: Variant) -> None:
        super().__init__()
        self.tied = args.tie_word_embeddings
        self.vocab_size = args.vocab_size
        self.model = DecoderModel(args, variant)
        if not self.tied:
            self.lm_head = nn.Linear(args.hidden_size, args.vocab_size, bias=False)
        self.host: Host | None = None
        """Takes up to FEW tokens where there is one (see models/cpu.py)."""

    def __call__(self, inputs: mx.array, step: Attend) -> mx.array:
        """Token ids (n,) to hidden states (n, hidden_size)."""
        return self.model(inputs, step)

    def logits(self, hidden: mx.array) -> mx.array:
        """Hidden states (n, hidden_size) to scores (n, vocab_size) in fp32."""
        if self.host is not None and hidden.shape[0] <= FEW:
            return self.host.logits(hidden)
        head = self.model.embed_tokens.as_linear if self.tied else self.lm_head
        scores: mx.array = head(hidden)
        return scores.astype(mx.float32)

    def sanitize(self, weights: dict[str, mx.array]) -> dict[str, mx.array]:
        """The weights this model has a place for; a tied model may be published with its head."""
        if not self.tied:
            return weights
        return {k: v for k, v in weights.items() if not k.startswith("lm_head.")}
