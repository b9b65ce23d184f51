import pytest

from edgekv import kernel_speed
from edgekv.cache.policy import LayerPolicy
from edgekv.cache.traffic import decode_nbytes
from edgekv.metal.device import has_metal

LAYER = LayerPolicy(2, 64)


def test_three_ways_are_measured_over_the_same_full_window(host, monkeypatch):
    monkeypatch.setattr(kernel_speed, "CHUNK", 128)
    found = kernel_speed.measure(LAYER, 6, window=200, calls=2, rounds=1)
    assert [speed.way for speed in found] == ["kernel", "twin", "mx.fast, fp16"]
    kernel, twin, half = found
    assert "edgekv_decode" in host.traffic
    assert kernel.nbytes == twin.nbytes < half.nbytes
    assert half.nbytes == decode_nbytes(LAYER, 6, 2, 0, 204)
    assert kernel.seconds > 0
    assert kernel.gb_per_s == pytest.approx(kernel.nbytes / kernel.seconds / 1e9)


@pytest.mark.skipif(has_metal(), reason="Metal is here")
def test_without_metal_it_says_so():
    with pytest.raises(RuntimeError, match="No Metal back-end"):
        kernel_speed.measure(LAYER, 6, window=64, calls=1, rounds=1)
