from collections.abc import Iterator

import mlx.core as mx
import pytest

from edgekv.metal import kernels
from tests.metal.host import Host


@pytest.fixture
def host(monkeypatch) -> Iterator[Host]:
    """A host that the product's own launches run on."""
    host = Host()
    monkeypatch.setattr(mx.fast, "metal_kernel", host.metal_kernel)
    kernels.build.cache_clear()
    yield host
    kernels.build.cache_clear()
