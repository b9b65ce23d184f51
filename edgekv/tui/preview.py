"""What a change of the cache's policy costs and gives, said before it is made."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edgekv.cache.policy import CachePolicy
from edgekv.tui.figures import size, thousands
from edgekv.tui.occupancy import Occupancy

Quality = Mapping[tuple[int, int], float]
"""Mean KL divergence to fp16 in nats, measured, by (key bits, value bits)."""


@dataclass(frozen=True)
class Preview:
    """rows: (what, now, then). notes: what follows from the change."""

    rows: Sequence[tuple[str, str, str]]
    notes: Sequence[str]


def preview(
    now: CachePolicy,
    then: CachePolicy,
    tokens: int,
    prefill_tps: float = 0.0,
    quality: Quality | None = None,
) -> Preview:
    """Compare two policies for a conversation of `tokens`; prefill_tps 0 is unknown."""
    before, after = Occupancy(now, tokens), Occupancy(then, tokens)
    rows = [
        ("KV memory", size(now.nbytes), size(then.nbytes)),
        ("a token takes", size(now.bytes_per_token), size(then.bytes_per_token)),
        ("tokens it can see", thousands(now.last_slot + 1), thousands(then.last_slot + 1)),
        ("of this chat forgotten", thousands(before.evicted), thousands(after.evicted)),
        ("blocks", before.bits, after.bits),
        *_quality(now, then, quality or {}),
    ]
    return Preview(rows, _notes(before, after, prefill_tps, quality))


def _quality(now: CachePolicy, then: CachePolicy, known: Quality) -> list[tuple[str, str, str]]:
    figures = [known.get(_bits(policy)) for policy in (now, then)]
    if not any(figure is not None for figure in figures):
        return []
    shown = ["not measured" if each is None else f"{each:.4f} nats" for each in figures]
    return [("KL to fp16", shown[0], shown[1])]


def _bits(policy: CachePolicy) -> tuple[int, int]:
    layer = policy.layers[0]
    return layer.k_bits, layer.v_bits


def _notes(
    before: Occupancy, after: Occupancy, prefill_tps: float, quality: Quality | None
) -> list[str]:
    notes = [_recompute(before, after, prefill_tps)]
    if after.evicted > before.evicted:
        gone = thousands(after.evicted - before.evicted)
        notes.append(f"{gone} more tokens of this chat will no longer be seen")
    elif after.evicted < before.evicted:
        back = thousands(before.evicted - after.evicted)
        notes.append(f"{back} tokens of this chat will be seen again")
    if _bits(before.policy) != _bits(after.policy) and not quality:
        notes.append("the effect on quality is not measured: `edgekv eval kld` does it")
    return notes


def _recompute(before: Occupancy, after: Occupancy, prefill_tps: float) -> str:
    if before.policy == after.policy:
        return "nothing changes"
    now, then = before.policy, after.policy
    same_blocks = now.layers == then.layers and now.n_sink == then.n_sink
    same_blocks = same_blocks and now.n_pinned == then.n_pinned
    if not before.tokens or (same_blocks and not before.evicted and not after.evicted):
        return "nothing has to be read again"
    seconds = f", about {before.tokens / prefill_tps:.0f} s" if prefill_tps else ""
    return f"the {thousands(before.tokens)} tokens of this chat are read again{seconds}"
