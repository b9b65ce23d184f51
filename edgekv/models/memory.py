"""What a model's weights take in memory once they are loaded."""

FP32 = 4
"""Bytes of a weight that was expanded, or that the CPU backend computes with."""


def expands(n_weights: int, memory: int) -> bool:
    """Whether the CPU backend should hold quantized weights as fp32, in so many bytes of memory.

    A packed product costs 2.4 times the fp32 one at one row and 75 times at 256 (mlx 0.32.4,
    two cores, OpenBLAS), so memory is spent for it, up to half of the machine's.
    """
    return FP32 * n_weights <= memory // 2


def loaded_nbytes(n_weights: int, stored: int, memory: int | None, metal: bool) -> int:
    """Bytes of a model's weights when loaded, stored in so many bytes.

    With Metal they stay as they are stored. The CPU backend computes in fp32: weights of 16 bits
    become that, packed ones where `expands` says so.
    """
    packed = 8 * stored < 15 * n_weights
    if metal or (packed and memory is not None and not expands(n_weights, memory)):
        return stored
    return FP32 * n_weights
