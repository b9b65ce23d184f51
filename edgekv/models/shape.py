"""What a configuration says of a model's attention, read without loading anything."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from edgekv.cache.bits import read_bits
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.models import ARCHITECTURES

SAFE_BITS = 8
"""Bits for keys that four would break (see models/guard.py)."""

DEFAULT_WINDOW = 4096
"""Tokens kept where nobody says otherwise, if the model was trained on as many."""


def check_supported(config: dict[str, Any]) -> str:
    """The model_type of a configuration. Raises UnsupportedModel for one that has no module."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise UnsupportedModel(f"architecture {kind!r} is not supported; supported are {known}")
    return str(kind)


@dataclass(frozen=True)
class ModelShape:
    """The numbers that the cache's size follows from."""

    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    context: int
    sliding_window: int | None = None
    sensitive: frozenset[int] = frozenset()
    """Layers whose keys must not have fewer than 8 bits, known once the weights are read."""

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "ModelShape":
        """Read a Hugging Face configuration. Raises DamagedFile where a number is missing."""
        n_heads = _number(config, "num_attention_heads")
        n_kv_heads = config.get("num_key_value_heads") or n_heads
        head_dim = config.get("head_dim") or _number(config, "hidden_size") // n_heads
        if n_heads % n_kv_heads:
            raise DamagedFile(
                f"configuration: {n_heads} attention heads cannot share {n_kv_heads} KV heads"
            )
        return cls(
            n_layers=_number(config, "num_hidden_layers"),
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            context=config.get("max_position_embeddings") or DEFAULT_WINDOW,
            sliding_window=_sliding_window(config),
        )

    @property
    def longest_window(self) -> int:
        """The longest window that the model was trained for."""
        return min(self.context, self.sliding_window or self.context)

    @property
    def default_window(self) -> int:
        return min(self.context, DEFAULT_WINDOW)

    def policy(
        self,
        window: int | None = None,
        n_sink: int = 4,
        k_bits: int = 4,
        v_bits: int = 4,
        n_pinned: int = 0,
        kv_policy: str | None = None,
    ) -> CachePolicy:
        """The cache policy of a sequence; a model with a smaller window of its own keeps that.

        Such a model was trained without sinks, so it gets none. Keys of sensitive layers get
        eight bits at the least. kv_policy: a file of bits by layer, which is taken at its word.
        Raises InvalidValue.
        """
        plain, safe = (
            LayerPolicy(self.n_kv_heads, self.head_dim, bits, v_bits)
            for bits in (k_bits, max(k_bits, SAFE_BITS))
        )
        layers = tuple(safe if i in self.sensitive else plain for i in range(self.n_layers))
        if kv_policy is not None:
            bits = read_bits(Path(kv_policy), self.n_layers)
            layers = tuple(replace(plain, k_bits=k, v_bits=v) for k, v in bits)
        window = self.default_window if window is None else window
        if self.sliding_window is not None and self.sliding_window <= window:
            return CachePolicy(self.sliding_window, layers, n_sink=0, n_pinned=n_pinned)
        return CachePolicy(window, layers, n_sink, n_pinned)

    def raised(self, k_bits: int, kv_policy: str | None) -> str | None:
        """What to tell a user who gets more bits for keys than asked for; None without any."""
        if not self.sensitive or k_bits >= SAFE_BITS or kv_policy is not None:
            return None
        layers = ", ".join(map(str, sorted(self.sensitive)))
        return (
            f"keys of layer {layers} have a large constant part that {k_bits} bits would break: "
            f"they are kept in {SAFE_BITS} bits"
        )


def _number(config: dict[str, Any], key: str) -> int:
    value = config.get(key)
    if not isinstance(value, int) or value < 1:
        raise DamagedFile(f"configuration: {key} must be a positive whole number, got {value!r}")
    return value


def _sliding_window(config: dict[str, Any]) -> int | None:
    """The window every layer was trained with, if any (Qwen2 switches its own off by a flag)."""
    if config.get("use_sliding_window") is False:
        return None
    window: int | None = config.get("sliding_window")
    return window
