"""A Llama GGUF computed by its definition, in numpy and fp32: no cache, no MLX, no code of ours.

The `gguf` package reads and dequantizes. GGUF stores the rows of the query and key projections
so that neighbouring channels form a rotated pair; here they are left in that order.
"""

import gguf
import numpy as np


class NumpyLlama:
    def __init__(self, path):
        reader = gguf.GGUFReader(path)
        fields = {
            name.removeprefix("llama."): field.contents() for name, field in reader.fields.items()
        }
        self.n_layers = fields["block_count"]
        self.n_heads = fields["attention.head_count"]
        self.n_kv_heads = fields["attention.head_count_kv"]
        self.theta = fields["rope.freq_base"]
        self.epsilon = fields["attention.layer_norm_rms_epsilon"]
        self.weights = {
            tensor.name.removesuffix(".weight"): gguf.quants.dequantize(
                tensor.data, tensor.tensor_type
            ).astype(np.float32)
            for tensor in reader.tensors
        }

    def logits(self, tokens):
        """(n, vocab_size), each row given all tokens up to its own."""
        x = self.weights["token_embd"][tokens]
        for layer in range(self.n_layers):
            w = {
                name.removeprefix(f"blk.{layer}."): weight
                for name, weight in self.weights.items()
                if name.startswith(f"blk.{layer}.")
            }
            x = x + self._attention(self._norm(x, w["attn_norm"]), w)
            x = x + self._mlp(self._norm(x, w["ffn_norm"]), w)
        head = self.weights.get("output", self.weights["token_embd"])
        return self._norm(x, self.weights["output_norm"]) @ head.T

    def _norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * weight

    def _mlp(self, x, w):
        gate = x @ w["ffn_gate"].T
        return (gate / (1 + np.exp(-gate)) * (x @ w["ffn_up"].T)) @ w["ffn_down"].T

    def _attention(self, x, w):
        n = len(x)
        q = self._rotate((x @ w["attn_q"].T).reshape(n, self.n_heads, -1))
        k = self._rotate((x @ w["attn_k"].T).reshape(n, self.n_kv_heads, -1))
        v = (x @ w["attn_v"].T).reshape(n, self.n_kv_heads, -1)
        future = np.triu(np.full((n, n), -np.inf, np.float32), 1)
        out = np.empty_like(q)
        for head in range(self.n_heads):
            shared = head * self.n_kv_heads // self.n_heads
            scores = q[:, head] @ k[:, shared].T / np.sqrt(q.shape[-1]) + future
            weights = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = weights / weights.sum(-1, keepdims=True) @ v[:, shared]
        return out.reshape(n, -1) @ w["attn_output"].T

    def _rotate(self, x):
        """Channels 2i and 2i + 1 are a pair, turned by position * theta ** (-2i / head_dim)."""
        dim = x.shape[-1]
        frequencies = float(self.theta) ** (-np.arange(0, dim, 2) / dim)
        angles = np.outer(np.arange(len(x)), frequencies)[:, None]
        pairs = x[..., 0::2] + 1j * x[..., 1::2]
        turned = (pairs * np.exp(1j * angles)).astype(np.complex64)
        return np.stack([turned.real, turned.imag], axis=-1).reshape(x.shape)
