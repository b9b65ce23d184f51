"""What a model and its KV cache take in memory, known before anything of it is loaded."""

from dataclasses import dataclass
from typing import Any

from edgekv.cache.policy import BITS, CachePolicy, describe, fit_window
from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.models.shape import SAFE_BITS, ModelShape

WINDOWS = tuple(1024 * 2**i for i in range(8))
"""1k to 128k tokens."""

KEY_BIAS = ("qwen2",)
"""Families whose key projections have a bias, from which four-bit keys are known to suffer."""


@dataclass(frozen=True)
class Subject:
    """A model by its numbers; stored and loaded are bytes of weights.

    checked: whether its weights were looked at for keys that four bits would break.
    """

    name: str
    model_type: str
    shape: ModelShape
    stored: int
    loaded: int
    checked: bool = False


@dataclass(frozen=True)
class Advice:
    """The policy that a machine with so much room should run, and why."""

    policy: CachePolicy
    reasons: tuple[str, ...]


def full_cache_nbytes(shape: ModelShape, tokens: int) -> int:
    """Bytes of an fp16 cache that keeps every one of so many tokens."""
    layers = shape.policy(1, k_bits=16, v_bits=16).layers
    return tokens * sum(layer.half_token_nbytes for layer in layers)


def by_bits(shape: ModelShape, window: int) -> dict[int, CachePolicy]:
    """The policies of a window whose keys and values have the same bits, where there is one."""
    found = {}
    for bits in sorted(BITS, reverse=True):
        try:
            found[bits] = shape.policy(window, k_bits=bits, v_bits=bits)
        except InvalidValue:  # a head_dim that cannot be cut into groups
            continue
    return found


def windows(subject: Subject, usable: int | None) -> list[dict[str, Any]]:
    """One row a window: bytes by bits, beside an fp16 cache of all those tokens."""
    rows = []
    for window in WINDOWS:
        sizes = {bits: policy.nbytes for bits, policy in by_bits(subject.shape, window).items()}
        rows.append(
            {
                "window": window,
                "trained": window <= subject.shape.longest_window,
                "fp16_full_bytes": full_cache_nbytes(subject.shape, window),
                "bytes": sizes,
                "fits": {bits: fits(subject, size, usable) for bits, size in sizes.items()},
            }
        )
    return rows


def fits(subject: Subject, kv_nbytes: int, usable: int | None) -> bool | None:
    """Whether weights and KV are within so many bytes; None where nobody knows how many."""
    return None if usable is None else subject.loaded + kv_nbytes <= usable


def advise(subject: Subject, usable: int | None) -> Advice:
    """The decision for a person's own machine: GQA, four-bit KV and a sliding window with sinks.

    Raises DoesNotFit where the weights and the smallest window exceed the usable bytes.
    """
    shape = subject.shape
    k_bits, v_bits, why = _bits(subject)
    policy = shape.policy(k_bits=k_bits, v_bits=v_bits)
    whole = policy.with_window(shape.longest_window)
    reasons = [why]
    if shape.sliding_window is not None and policy.window == shape.sliding_window:
        reasons.append(
            f"the model was trained with a window of {policy.window:,} and sees no further, "
            "so a larger one would change nothing, and it needs no sinks"
        )
        return Advice(_within(policy, subject, usable), tuple(reasons))
    policy = _within(policy, subject, usable)
    reasons.append(_window_reason(policy))
    reasons.append(_recall(subject, policy, whole, usable))
    return Advice(policy, tuple(reasons))


def _bits(subject: Subject) -> tuple[int, int, str]:
    """Bits of keys and values, and why."""
    shape = subject.shape
    share = shape.n_heads // shape.n_kv_heads
    heads = f"{share} query heads share a KV head" if share > 1 else "no heads are shared"
    if 4 not in by_bits(shape, 1):
        return 16, 16, f"{heads}; heads of {shape.head_dim} cannot be cut into groups: 16 bits"
    if subject.model_type in KEY_BIAS and not subject.checked:
        bias = "has a key bias, which in some layers breaks four-bit keys"
        return SAFE_BITS, 4, f"{heads}; {subject.model_type} {bias}: its weights will tell which"
    if shape.sensitive:
        layers = ", ".join(map(str, sorted(shape.sensitive)))
        return 4, 4, f"{heads}; four bits, but for the keys of layer {layers}, with a large bias"
    return 4, 4, f"{heads}; four bits keep the model's distributions close to fp16's"


def _within(policy: CachePolicy, subject: Subject, usable: int | None) -> CachePolicy:
    if fits(subject, policy.nbytes, usable) is not False:
        return policy
    assert usable is not None
    room = usable - subject.loaded
    if room <= 0:
        raise DoesNotFit(
            f"{subject.name}: the weights take {subject.loaded:,} bytes of the {usable:,} that are "
            "usable here: choose a smaller model"
        )
    return fit_window(policy, room, policy.window)


def _window_reason(policy: CachePolicy) -> str:
    return (
        f"a chat goes on for ever in the newest {policy.window:,} tokens and {policy.n_sink} sinks"
    )


def _recall(subject: Subject, policy: CachePolicy, whole: CachePolicy, usable: int | None) -> str:
    """What to choose where all of a long text must be recalled."""
    if whole.window == policy.window:
        return "the window holds all that the model was trained on, so nothing is gained by more"
    if fits(subject, whole.nbytes, usable) is not False:
        return (
            f"where a whole long text must be recalled, take --window {whole.window}: "
            f"{whole.nbytes:,} bytes"
        )
    assert usable is not None
    most = fit_window(policy, usable - subject.loaded, whole.window).window
    return (
        f"full recall of {whole.window:,} tokens does not fit here: at most --window {most}; "
        "keep longer texts outside and ask about parts of them"
    )


def report(
    subject: Subject, chosen: CachePolicy, total: int | None, usable: int | None
) -> dict[str, Any]:
    """All of it as plain values, sizes in bytes: what `edgekv plan --json` prints."""
    shape = subject.shape
    return {
        "model": subject.name,
        "attention": {
            "n_layers": shape.n_layers,
            "n_heads": shape.n_heads,
            "n_kv_heads": shape.n_kv_heads,
            "head_dim": shape.head_dim,
            "context": shape.context,
            "sliding_window": shape.sliding_window,
        },
        "weights": {"stored": subject.stored, "loaded": subject.loaded},
        "memory": {"total": total, "usable": usable},
        "bytes_per_token": {b: p.bytes_per_token for b, p in by_bits(shape, 1).items()},
        "windows": windows(subject, usable),
        "chosen": policy_report(chosen) | {"fits": fits(subject, chosen.nbytes, usable)},
        "advised": _advice_report(subject, usable),
    }


def _advice_report(subject: Subject, usable: int | None) -> dict[str, Any]:
    try:
        advice = advise(subject, usable)
    except DoesNotFit as fault:
        return {"policy": None, "reasons": [str(fault)]}
    return {"policy": policy_report(advice.policy), "reasons": list(advice.reasons)}


def policy_report(policy: CachePolicy) -> dict[str, Any]:
    """A policy as plain values, with its bound in bytes."""
    return {
        "window": policy.window,
        "n_sink": policy.n_sink,
        "pinned": policy.n_pinned,
        "bytes": policy.nbytes,
        "bytes_per_token": policy.bytes_per_token,
        "layers": describe(policy),
    }


def policy_line(policy: dict[str, Any]) -> str:
    """The report of a policy in one line."""
    layers = policy["layers"]
    bits = ", ".join(
        (f"layers {row['layers']} " if len(layers) > 1 else "")
        + f"keys {row['k_bits']} and values {row['v_bits']} bits"
        for row in layers
    )
    pinned = f", {policy['pinned']} pinned" if policy["pinned"] else ""
    return (
        f"window {policy['window']:,}, {policy['n_sink']} sinks{pinned}, {bits}: "
        f"{policy['bytes']:,} bytes"
    )
