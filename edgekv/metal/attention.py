"""The chooser: which implementation answers for each attention over the cache.

Kernels where Metal is there, the shape is one they are made for, and a trial of them came out
right (see canary.py); else their twins in plain operations. EDGEKV_KERNELS=off takes the twins
alone, EDGEKV_KERNELS=on the kernels without a trial.
"""

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import mlx.core as mx

from edgekv.errors import InvalidValue
from edgekv.metal import canary, fused, host_prefill, host_turned, packed, reference
from edgekv.metal.device import has_metal
from edgekv.metal.host_prefill import HostKeysValues
from edgekv.metal.packed import Blocks
from edgekv.metal.reference import decode_attention
from edgekv.metal.segments import KeysValues, Span
from edgekv.metal.turned import Turned, expand_turned

__all__ = ["close", "decode_attention", "has_decode_kernel", "prefill_attention"]


class Choice(NamedTuple):
    """Whether kernels are used on this machine, and why; `fault` where they came out wrong."""

    kernels: bool
    reason: str
    fault: bool = False


@cache
def choice() -> Choice:
    """What was chosen, at the first use and for good. Raises InvalidValue."""
    wanted = os.environ.get("EDGEKV_KERNELS", "")
    if wanted not in ("", "on", "off"):
        raise InvalidValue(f"EDGEKV_KERNELS must be on or off, got {wanted!r}")
    if wanted == "off":
        return Choice(False, "switched off by EDGEKV_KERNELS")
    if not has_metal():
        if wanted == "on":
            raise InvalidValue("EDGEKV_KERNELS=on needs Metal, which MLX does not find here")
        return Choice(False, "there is no Metal here")
    if wanted == "on":
        return Choice(True, "switched on by EDGEKV_KERNELS")
    fault = canary.fault()
    if fault is None:
        return Choice(True, "they agree with plain operations")
    print(f"edgekv: the Metal kernels are not used: {fault}", file=sys.stderr, flush=True)
    return Choice(False, fault, fault=True)


def has_decode_kernel(q: mx.array, blocks: Blocks, n_kv_heads: int) -> bool:
    """Whether fused.decode_attention should answer for these queries over this pool."""
    return fused.supports_decode(q, blocks, n_kv_heads) and choice().kernels


def close(keys: mx.array, values: mx.array, k_bits: int, v_bits: int, v_group: int) -> Blocks:
    """Quantize full blocks, both (n, n_kv_heads, 64, head_dim), in fp16."""
    kernel = fused.supports_close(keys, values, k_bits, v_bits) and choice().kernels
    implementation = fused.close if kernel else packed.close
    return implementation(keys, values, k_bits, v_bits, v_group)


def prefill_attention(
    q: mx.array,
    q_slot: mx.array,
    anchors: KeysValues,
    far: Callable[[int, int], Turned],
    near: KeysValues,
    spans: Sequence[Span],
) -> mx.array:
    """A chunk of queries over three parts of the keys (see metal/reference.py).

    far gives the closed blocks from one far key to another, packed.
    """
    if has_metal():

        def expand(start: int, stop: int) -> KeysValues:
            return expand_turned(far(start, stop), q.dtype)

        return reference.prefill_attention(q, q_slot, anchors, expand, near, spans)

    def expand_on_host(start: int, stop: int) -> HostKeysValues:
        return host_turned.expand_turned(far(start, stop))

    return host_prefill.prefill_attention(q, q_slot, anchors, expand_on_host, near, spans)
