"""What the device that MLX computes on is good at."""

import os

import mlx.core as mx


def has_metal() -> bool:
    return mx.metal.is_available()


def compute_dtype(stored: mx.Dtype) -> mx.Dtype:
    """The type to compute in, for weights stored (or scaled) in a type.

    MLX's CPU backend multiplies fp32 through a BLAS and fp16 or bf16 by a plain loop, 60 times
    slower at 256 rows (measured with mlx 0.32.4), so everything is fp32 there.
    """
    return stored if has_metal() and stored != mx.float32 else mx.float32


def physical_memory() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
