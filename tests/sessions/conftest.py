"""A store of one session, and its block files."""

import pytest

from edgekv.sessions import Store
from edgekv.sessions.blocks import BlockFiles


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "data") as store:
        yield store


@pytest.fixture
def files(store):
    return BlockFiles(store, 10**9)


@pytest.fixture
def session(store):
    one = store.create("a", "m", {"window": 64})
    store.append(one.id, "user", "What is the capital of France?")
    store.append(one.id, "assistant", "Paris.", (7, 8, 9), "stop")
    return one.id
