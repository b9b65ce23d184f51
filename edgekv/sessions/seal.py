"""Encryption at rest: AES-256-GCM by the `cryptography` package, the key under another.

The store's own key is random and kept in the database, encrypted by a key that comes from a
passphrase (scrypt) or lies in the system's keyring. Without encryption bytes pass as they are.
"""

import getpass
import json
import os
import secrets
import sys
from typing import Any, Protocol

from edgekv.errors import EdgekvError

VARIABLE = "EDGEKV_PASSPHRASE"
SERVICE = "edgekv"
SCRYPT = {"length": 32, "n": 2**16, "r": 8, "p": 1}
"""64 MB and about 0.2 s for each guess at a passphrase (RFC 7914)."""

_NONCE = 12


class StoreLocked(EdgekvError):
    """The stored sessions are encrypted, and the key is not at hand or not the right one."""


class Seal(Protocol):
    """How bytes are kept: `open` gives back what `seal` was given."""

    def seal(self, data: bytes) -> bytes: ...

    def open(self, data: bytes) -> bytes: ...

    @property
    def secret(self) -> str:
        """Goes into the names of blocks, so that they tell nothing of their tokens."""
        ...


class Clear:
    """No encryption."""

    secret = ""

    def seal(self, data: bytes) -> bytes:
        return data

    def open(self, data: bytes) -> bytes:
        return data


class Sealed:
    """AES-256-GCM with a random nonce before each text. `open` raises ValueError on tampering."""

    def __init__(self, key: bytes) -> None:
        self._cipher = _aesgcm(key)
        self.secret = key.hex()

    def seal(self, data: bytes) -> bytes:
        nonce = secrets.token_bytes(_NONCE)
        sealed: bytes = self._cipher.encrypt(nonce, data, None)
        return nonce + sealed

    def open(self, data: bytes) -> bytes:
        from cryptography.exceptions import InvalidTag

        try:
            opened: bytes = self._cipher.decrypt(data[:_NONCE], data[_NONCE:], None)
        except InvalidTag:
            raise ValueError("sealed bytes that were changed") from None
        return opened


def make(keyring: bool) -> tuple[Sealed, str]:
    """A new key, and the text that `unlock` finds it by again; asks for a passphrase."""
    key, salt = secrets.token_bytes(32), secrets.token_bytes(16)
    facts: dict[str, str] = {"kind": "keyring" if keyring else "passphrase", "salt": salt.hex()}
    if keyring:
        outer = secrets.token_bytes(32)
        _keyring().set_password(SERVICE, salt.hex(), outer.hex())
    else:
        outer = _derive(_ask(twice=True), salt)
    facts["key"] = Sealed(outer).seal(key).hex()
    return Sealed(key), json.dumps(facts)


def unlock(text: str) -> Sealed:
    """The seal of an encrypted store. Raises StoreLocked."""
    facts: dict[str, str] = json.loads(text)
    salt = facts["salt"]
    if facts["kind"] == "keyring":
        found = _keyring().get_password(SERVICE, salt)
        if found is None:
            raise StoreLocked("the stored sessions are encrypted, and the keyring lacks their key")
        outer = bytes.fromhex(found)
    else:
        outer = _derive(_ask(twice=False), bytes.fromhex(salt))
    try:
        return Sealed(Sealed(outer).open(bytes.fromhex(facts["key"])))
    except ValueError:
        raise StoreLocked("the stored sessions are encrypted with another passphrase") from None


def _derive(passphrase: str, salt: bytes) -> bytes:
    from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

    derived: bytes = Scrypt(salt=salt, **SCRYPT).derive(passphrase.encode())
    return derived


def _ask(twice: bool) -> str:
    """The passphrase, from the environment or the terminal. Raises StoreLocked."""
    given = os.environ.get(VARIABLE)
    if given:
        return given
    if not sys.stdin.isatty():
        raise StoreLocked(f"the stored sessions need a passphrase: set {VARIABLE}")
    typed = getpass.getpass("Passphrase of the stored sessions: ")
    if not typed or (twice and getpass.getpass("Once more: ") != typed):
        raise StoreLocked("no passphrase, or two that differ")
    return typed


def _aesgcm(key: bytes) -> Any:  # noqa: ANN401 - an optional package's type
    try:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError:
        raise StoreLocked(
            "encryption needs the cryptography package: pip install 'edgekv[encryption]'"
        ) from None
    return AESGCM(key)


def _keyring() -> Any:  # noqa: ANN401 - an optional package
    try:
        import keyring
    except ImportError:
        raise StoreLocked(
            "the system keyring needs the keyring package: pip install 'edgekv[encryption]'"
        ) from None
    return keyring
