"""The chooser: which implementation answers for each attention over the cache."""

from edgekv.metal.reference import Segment, Span, decode_attention, prefill_attention

__all__ = ["Segment", "Span", "decode_attention", "prefill_attention"]
