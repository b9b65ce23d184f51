import pytest

from tests.loading.files import write_gguf
from tests.quality.measure import load


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", layers=2)


@pytest.fixture(scope="session")
def tiny(tiny_path):
    """A random model of two layers, loaded."""
    return load(tiny_path)


@pytest.fixture(scope="session")
def words(tiny):
    return tiny.text()[:1500]


@pytest.fixture(scope="session")
def loaded(default_model):
    return load(default_model)
