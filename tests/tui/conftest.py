import pytest


@pytest.fixture(autouse=True)
def loud(home, monkeypatch):
    """What is not a user's fault fails the test instead of being shown."""
    monkeypatch.setenv("EDGEKV_DEBUG", "1")
    monkeypatch.setenv("TEXTUAL_ANIMATIONS", "none")


@pytest.fixture
def model(tmp_path):
    """A path that is there; the scripted engine does not read it."""
    path = tmp_path / "tiny.gguf"
    path.touch()
    return path
