import pytest

from tests.quality.measure import load


@pytest.fixture(scope="session")
def loaded(default_model):
    return load(default_model)


@pytest.fixture(scope="session")
def text(loaded):
    return loaded.text()
