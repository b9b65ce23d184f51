"""The one size that everything is cut in."""

BLOCK = 64
"""Tokens in a block: the unit of quantization, eviction, sharing, persistence and work."""
