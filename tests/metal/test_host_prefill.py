"""The parts of the host's prefill give what their twins in plain operations give."""

import mlx.core as mx
import numpy as np
import pytest

from edgekv import blas
from edgekv.cache.rope import Rope
from edgekv.metal import gemm, host_turned, turned
from edgekv.metal.gate import gated_on_host
from edgekv.metal.packed import close

HEADS, DIM = 3, 64


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def blocks(n, k_bits, v_bits, group=32):
    keys, values = (mx.array(draw(n, HEADS, 64, DIM, seed=n + i)) for i in range(2))
    return close(keys.astype(mx.float16), values.astype(mx.float16), k_bits, v_bits, group)


@pytest.mark.parametrize("bits", [2, 3, 4, 8, 16])
@pytest.mark.parametrize("runs", [(1,), (3, 1), (host_turned.AT_ONCE + 1, 2)])
def test_blocks_of_any_bits_are_expanded_and_rotated_as_by_the_twin(bits, runs):
    table = Rope(0.5 ** np.arange(DIM // 2)).for_keys(64 * np.arange(sum(runs)) - 640).over(2)
    of = turned.Turned([blocks(n, bits, {2: 3, 3: 2}.get(bits, bits)) for n in runs], table)
    for found, wanted in zip(
        host_turned.expand_turned(of), turned.expand_turned(of, mx.float32), strict=True
    ):
        assert found.shape == (HEADS, 64 * sum(runs), DIM)
        np.testing.assert_allclose(found, np.array(wanted), atol=1e-5)


@pytest.mark.parametrize("rows", [1, 3, 200])
def test_the_gate_is_silu_of_one_times_the_other(rows):
    gate, up = draw(rows, 1536) * 40, draw(rows, 1536, seed=1)
    gate[0, :2] = -1000, 1000
    wide = gate.astype(np.float64)
    with np.errstate(over="ignore"):
        wanted = wide / (1 + np.exp(-wide)) * up
    np.testing.assert_allclose(gated_on_host(gate, up), wanted, rtol=1e-5, atol=1e-30)


@pytest.fixture(params=["of MLX", "of numpy"])
def library(request, monkeypatch):
    if request.param == "of numpy":
        monkeypatch.setattr(blas, "library", lambda: None)


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 5, 1), (7, 1, 3), (45, 64, 130), (2, 3, 4)])
def test_a_product_of_matrices_and_of_their_parts(library, shape):
    rows, inner, columns = shape
    a, b = draw(rows, inner + 3)[:, 1 : inner + 1], draw(columns + 2, inner, seed=1)[1:-1]
    out = np.full((rows, columns + 4), np.nan, np.float32)
    gemm.multiply_into(out[:, 2:-2], a, b.T)
    np.testing.assert_allclose(out[:, 2:-2], a.astype(float) @ b.T, rtol=1e-4, atol=1e-5)
    assert np.isnan(out[:, :2]).all() and np.isnan(out[:, -2:]).all()
    straight = np.ascontiguousarray(b.T)
    gemm.multiply_into(out[:, 2:-2], a, straight)
    np.testing.assert_allclose(out[:, 2:-2], a.astype(float) @ straight, rtol=1e-4, atol=1e-5)
