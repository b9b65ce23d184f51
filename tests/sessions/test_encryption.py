"""What an encrypted store gives away, and what opens it."""

import itertools
import pkgutil
import shutil
from contextlib import suppress

import numpy as np
import pytest

from edgekv.errors import InvalidValue
from edgekv.sessions import Store
from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.seal import StoreLocked
from edgekv.sessions.search import search
from tests.sessions.test_upkeep import damages, entry


def test_an_encrypted_store_has_no_text_in_any_file(store, files, session, monkeypatch):
    files.put(session, [entry(1)])
    monkeypatch.setenv("EDGEKV_PASSPHRASE", "open sesame")
    store.encrypt()
    store.append(session, "user", "What is the capital of Italy?")
    files = BlockFiles(store, 10**9)
    files.put(session, [entry(0x4242, size=64)])
    whole = b"".join(p.read_bytes() for p in store.folder.rglob("*") if p.is_file())
    for clear in (b"capital", b"Paris", b"safetensors", np.full(4, 0x4242, np.float16).tobytes()):
        assert clear not in whole
    with Store(store.folder) as again:
        said = [message.content for message in again.messages(session)]
        assert said[2] == "What is the capital of Italy?"
        assert said[1] == "Paris."
        assert [hit.position for hit in search(again, "capital")] == [2, 0]
        assert BlockFiles(again, 10**9).load(entry(0x4242).key) is not None
        with pytest.raises(InvalidValue, match="already"):
            again.encrypt()
    monkeypatch.setenv("EDGEKV_PASSPHRASE", "open barley")
    with pytest.raises(StoreLocked, match="another passphrase"):
        Store(store.folder)
    monkeypatch.delenv("EDGEKV_PASSPHRASE")
    with pytest.raises(StoreLocked, match="EDGEKV_PASSPHRASE"):
        Store(store.folder)


@pytest.mark.parametrize(
    "step",
    [
        "keys.create",
        "Rows.put_message",
        "Database.transaction",
        "write_whole",
        "Mirror.remove",
        "Mirror.write",
        "shutil.rmtree",
        "Database.scrub",
    ],
)
def test_a_store_whose_encryption_was_killed_is_clear_or_sealed_and_whole(
    store, files, session, monkeypatch, tmp_path, step
):
    """At each call of each step: before the key is committed all is clear, then all is sealed."""
    monkeypatch.setenv("EDGEKV_PASSPHRASE", "open sesame")
    files.put(session, [entry(0x4242, size=64)])
    expected = store.messages(session)
    store.close()
    for nth in itertools.count(1):
        folder = tmp_path / f"{nth}"
        shutil.copytree(store.folder, folder)
        with monkeypatch.context() as patch, suppress(Killed):
            killer = Killer(patch, f"edgekv.sessions.store.{step}", nth)
            with Store(folder) as one:
                one.encrypt()
            break
        with Store(folder) as again:
            assert again.messages(session) == expected
            sealed = bool(again.seal.secret)
        whole = b"".join(p.read_bytes() for p in folder.rglob("*") if p.is_file())
        for clear in (b"capital", b"Paris", np.full(4, 0x4242, np.float16).tobytes()):
            assert (clear in whole) != sealed, nth
    assert killer.calls == nth - 1 > 0


class Killed(BaseException):
    """Ends the process, as far as a test can."""


class Killer:
    """Raises Killed in place of the nth call."""

    def __init__(self, patch, target, nth):
        self.calls, self.nth = 0, nth
        owner, name = target.rsplit(".", 1)
        self.real = pkgutil.resolve_name(owner.replace(".store.", ".store:") + "." + name)
        patch.setattr(target, lambda *a, **k: self.call(*a, **k))

    def call(self, *arguments, **options):
        self.calls += 1
        if self.calls == self.nth:
            raise Killed
        return self.real(*arguments, **options)


def test_an_encrypted_file_that_was_changed_is_refused(store, session, monkeypatch):
    monkeypatch.setenv("EDGEKV_PASSPHRASE", "open sesame")
    store.encrypt()
    files = BlockFiles(store, 10**9)
    files.put(session, [entry(1), entry(2)])
    path = files.path(entry(1).key)
    swapped = ("another's", files.path(entry(2).key).read_bytes())
    for name, content in [swapped, *damages(path)]:
        path.write_bytes(content)
        assert files.adopt(entry(1).key) is False, name


def test_a_key_in_the_keyring_opens_the_store(store, session, monkeypatch):
    import keyring
    from keyring.backend import KeyringBackend

    class Memory(KeyringBackend):
        priority = 1
        kept = {}

        def set_password(self, service, username, password):
            self.kept[service, username] = password

        def get_password(self, service, username):
            return self.kept.get((service, username))

    before = keyring.get_keyring()
    keyring.set_keyring(Memory())
    try:
        store.encrypt(keyring=True)
        with Store(store.folder) as again:
            assert len(again.messages(session)) == 2
        Memory.kept.clear()
        with pytest.raises(StoreLocked, match="keyring"):
            Store(store.folder)
    finally:
        keyring.set_keyring(before)
