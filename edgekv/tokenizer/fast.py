"""Tokenizers run by the `tokenizers` library, from `tokenizer.json` or a GGUF's vocabulary."""

import json
from collections.abc import Iterator
from typing import Any

import tokenizers

from edgekv.errors import UnsupportedModel
from edgekv.tokenizer.base import Frame, Tokenizer

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
_TEXT_STEPS = {"Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "ByteLevel"}
_BYTE_TOKENS = {f"<0x{byte:02X}>": bytes([byte]) for byte in range(256)}


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes: those that print are themselves, the rest
    follow one another from U+0100."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {
        chr(0x100 + i): byte for i, byte in enumerate(rest)
    }


_ALPHABET = _byte_alphabet()


def byte_level(token: str) -> bytes:
    """The bytes of a byte-level BPE token; added tokens are written in plain text."""
    try:
        return bytes([_ALPHABET[char] for char in token])
    except KeyError:
        return token.encode()


def spaced(token: str) -> bytes:
    """The bytes of a SentencePiece-style token."""
    return _BYTE_TOKENS.get(token) or token.replace(SPACE, " ").encode()


def _steps(decoder: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if decoder.get("type") == "Sequence":
        for step in decoder["decoders"]:
            yield from _steps(step)
    else:
        yield decoder


def _strips(step: dict[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step.get("content") == " " and step.get("start", 0))


class FastTokenizer(Tokenizer):
    """A `tokenizers.Tokenizer` for encoding; decoding is a table of bytes, token by token.

    Raises UnsupportedModel for a decoder whose tokens have no bytes of their own.
    """

    def __init__(self, backend: tokenizers.Tokenizer, frame: Frame) -> None:
        decoder = backend.decoder
        state = json.loads(decoder.__getstate__()) if decoder is not None else {"type": "none"}
        steps = list(_steps(state))
        unknown = sorted({step["type"] for step in steps} - _TEXT_STEPS)
        if unknown:
            raise UnsupportedModel(
                f"the tokenizer's decoder {unknown[0]!r} is not supported; "
                f"supported: {', '.join(sorted(_TEXT_STEPS))}"
            )
        super().__init__(
            frame,
            vocab_size=backend.get_vocab_size(with_added_tokens=True),
            strip_space=any(map(_strips, steps)),
        )
        self._backend = backend
        self._bytes = byte_level if any(s["type"] == "ByteLevel" for s in steps) else spaced
        self._special = {
            token_id for token_id, t in backend.get_added_tokens_decoder().items() if t.special
        }

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
        return ids

    def _piece(self, token_id: int) -> bytes:
        if token_id in self._special or not 0 <= token_id < 1 << 31:
            return b""
        token = self._backend.id_to_token(token_id)
        return b"" if token is None else self._bytes(token)
