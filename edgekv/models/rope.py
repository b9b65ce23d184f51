"""Frequencies of a model's rotary embedding, from the `rope_*` keys of its configuration."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.cache.rope import Rope
from edgekv.errors import DamagedFile, UnsupportedModel

Frequencies = NDArray[np.float64]
Scaled = tuple[Frequencies, float]


def make_rope(config: dict[str, Any], head_dim: int) -> Rope:
    """The rotary embedding of a configuration, in the old form of its keys or the new.

    Raises UnsupportedModel for a scaling it does not know, DamagedFile for missing numbers.
    """
    # `rope_parameters` holds what used to be `rope_theta` and `rope_scaling`.
    scaling = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(scaling.get("rope_theta") or config.get("rope_theta") or 10000.0)
    frequencies = theta ** (-np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind not in _SCALINGS:
        known = ", ".join(sorted(_SCALINGS))
        raise UnsupportedModel(f"rope scaling {kind!r} is not supported; supported are {known}")
    try:
        return Rope(*_SCALINGS[kind](frequencies, scaling, config))
    except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise DamagedFile(f"configuration: rope scaling {kind!r} is incomplete: {error}") from error


def _default(f: Frequencies, scaling: dict[str, Any], config: dict[str, Any]) -> Scaled:
    return f, 1.0


def _linear(f: Frequencies, scaling: dict[str, Any], config: dict[str, Any]) -> Scaled:
    return f / float(scaling["factor"]), 1.0


def _factors(f: Frequencies, scaling: dict[str, Any], config: dict[str, Any]) -> Scaled:
    """GGUF's form of Llama 3's scaling: a divisor for each frequency."""
    divisors = np.asarray(scaling["factors"], dtype=np.float64)
    if divisors.shape != f.shape:
        raise ValueError(f"{divisors.shape} factors for {f.shape} frequencies")
    return f / divisors, 1.0


def _llama3(f: Frequencies, scaling: dict[str, Any], config: dict[str, Any]) -> Scaled:
    """Slow frequencies are divided, fast ones kept, those between interpolated.

    Source: the Llama 3.1 model card's reference `apply_scaling`.
    """
    factor = float(scaling["factor"])
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    turns = float(scaling["original_max_position_embeddings"]) * f / (2 * math.pi)
    keep = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return f * (keep + (1 - keep) / factor), 1.0


def _yarn(f: Frequencies, scaling: dict[str, Any], config: dict[str, Any]) -> Scaled:
    """YaRN (arXiv 2309.00071): interpolation by parts, and a factor on the attention."""
    factor = float(scaling["factor"])
    trained = float(
        scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]
    )
    turns = trained * f / (2 * math.pi)
    dims = np.arange(len(f), dtype=np.float64)
    # The frequencies are a geometric row, so the place of a number of turns is a logarithm.
    fast, slow = (
        math.log(turns[0] / float(scaling.get(key, default))) / math.log(f[0] / f[1])
        for key, default in (("beta_fast", 32), ("beta_slow", 1))
    )
    fast, slow = max(math.floor(fast), 0), min(math.ceil(slow), 2 * len(f) - 1)
    ramp = np.clip((dims - fast) / max(slow - fast, 0.001), 0.0, 1.0)
    attention = scaling.get("attention_factor") or 0.1 * math.log(factor) + 1.0
    return f * ((1 - ramp) + ramp / factor), float(attention)


_SCALINGS: dict[str, Callable[[Frequencies, dict[str, Any], dict[str, Any]], Scaled]] = {
    "default": _default,
    "factors": _factors,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
