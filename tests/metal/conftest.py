import sys
from collections.abc import Iterator

import mlx.core as mx
import pytest

from edgekv.metal import attention, kernels
from tests.metal.host import Host


@pytest.fixture
def host(monkeypatch) -> Iterator[Host]:
    """A host that the product's own launches run on, where the chooser lets them."""
    if sys.platform == "darwin":
        pytest.skip("the host runner is for Linux; tests/metal/test_gpu.py is for a Mac")
    host = Host()
    monkeypatch.setattr(mx.fast, "metal_kernel", host.metal_kernel)
    forget()
    yield host
    forget()


@pytest.fixture
def metal(monkeypatch, host) -> Host:
    """The same, and a chooser that finds Metal."""
    monkeypatch.setattr(attention, "has_metal", lambda: True)
    return host


def forget() -> None:
    """What is decided or built once a process."""
    kernels.build.cache_clear()
    attention.choice.cache_clear()
