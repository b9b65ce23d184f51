import mlx.core as mx
import pytest

from edgekv.benchmark import kernels
from edgekv.cache.policy import LayerPolicy
from edgekv.cache.traffic import decode_nbytes
from edgekv.errors import InvalidValue
from edgekv.metal.device import has_metal
from edgekv.models.shape import ModelShape

LAYER = LayerPolicy(2, 64)
SHAPE = ModelShape(n_layers=1, n_heads=6, n_kv_heads=2, head_dim=64, context=512)


def test_three_ways_are_measured_over_the_same_full_window(host, monkeypatch):
    monkeypatch.setattr(kernels, "CHUNK", 128)
    monkeypatch.setattr(kernels, "CALLS", 2)
    found = kernels.measure(LAYER, 6, window=200, rounds=1)
    assert [speed.way for speed in found] == ["kernel", "twin", "mx.fast, fp16"]
    kernel, twin, half = found
    assert "edgekv_decode" in host.traffic
    assert kernel.nbytes == twin.nbytes < half.nbytes
    assert half.nbytes == decode_nbytes(LAYER, 6, 2, 0, 204)
    assert kernel.seconds > 0
    assert kernel.gb_per_s == pytest.approx(kernel.nbytes / kernel.seconds / 1e9)


def test_rows_have_a_floor_where_the_chip_is_known(host, monkeypatch):
    monkeypatch.setattr(kernels, "CHUNK", 128)
    monkeypatch.setattr(kernels, "CALLS", 1)
    monkeypatch.setattr(kernels, "has_metal", lambda: True)
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple M4 Pro"})
    rows = kernels.rows(SHAPE, [128], rounds=1)
    assert [(row["name"], row["k_bits"]) for row in rows] == [
        *(("kernel", 4), ("twin", 4), ("mx.fast, fp16", 16)),
        *(("kernel", 8), ("twin", 8), ("mx.fast, fp16", 16)),
    ]
    for row in rows:
        # Bytes over the peak are the floor; bytes over the time are what was reached.
        assert row["floor_us"] * 273 == pytest.approx(row["us"] * row["gb_per_s"])
    monkeypatch.setattr(mx, "device_info", lambda: {"device_name": "Apple Paravirtual device"})
    assert kernels.peak_gb_per_s() is None


def test_a_shape_without_a_kernel_is_refused(monkeypatch):
    monkeypatch.setattr(kernels, "has_metal", lambda: True)
    with pytest.raises(InvalidValue, match="none for 9 heads over 1 of 64"):
        kernels.rows(ModelShape(1, 9, 1, 64, 512), [128], rounds=1)


@pytest.mark.skipif(has_metal(), reason="Metal is here")
def test_without_metal_it_is_refused():
    with pytest.raises(InvalidValue, match="needs Metal"):
        kernels.rows(SHAPE, [128], rounds=1)
