"""Tokenizers run by the `sentencepiece` library, from `tokenizer.model` or a GGUF's vocabulary."""

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum

import sentencepiece

from edgekv.errors import DamagedFile
from edgekv.tokenizer.base import Frame, Tokenizer
from edgekv.tokenizer.fast import SPACE, spaced


class PieceType(IntEnum):
    """`ModelProto.SentencePiece.Type`; GGUF's `tokenizer.ggml.token_type` has the same numbers."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def model_proto(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[int], add_space: bool
) -> bytes:
    """A serialized SentencePiece `ModelProto` of type BPE with the identity normalizer.

    Source of the field numbers: `sentencepiece_model.proto` of google/sentencepiece. BOS, EOS and
    padding are -1 (absent): ids come from the configuration here, never from the model.
    """
    score = struct.Struct("<Bf").pack
    pieces = [
        _bytes(1, _bytes(1, token.encode()) + score(2 << 3 | 5, value) + _number(3, kind))
        for token, value, kind in zip(tokens, scores, types, strict=True)
    ]
    absent = b"".join(_number(field, (1 << 64) - 1) for field in (41, 42, 43))
    unknown = next((i for i, kind in enumerate(types) if kind == PieceType.UNKNOWN), 0)
    trainer = (
        _number(3, 2)
        + _number(4, len(tokens))
        + _number(35, PieceType.BYTE in types)
        + _number(40, unknown)
        + absent
        + _bytes(45, tokens[unknown].encode())
    )
    normalizer = (
        _bytes(1, b"identity") + _number(3, add_space) + _number(4, False) + _number(5, True)
    )
    return b"".join(pieces) + _bytes(2, trainer) + _bytes(3, normalizer)


def processor(proto: bytes) -> sentencepiece.SentencePieceProcessor:
    """A `SentencePieceProcessor`. Raises DamagedFile for a model the library refuses."""
    # Its own log goes to standard error, in several lines.
    sentencepiece.set_min_log_level(4)
    try:
        backend = sentencepiece.SentencePieceProcessor(model_proto=proto)
        # An empty model is accepted, but cannot do this.
        backend.encode("a")
    except (RuntimeError, ValueError, TypeError) as fault:
        raise DamagedFile(
            f"the tokenizer's SentencePiece model is refused ({str(fault).splitlines()[0]}); "
            "download it again"
        ) from fault
    return backend


class SentencePieceTokenizer(Tokenizer):
    """A `SentencePieceProcessor` between special tokens, which it does not parse itself.

    specials: written form to id of every token that text may spell out. hidden: ids that decode to
    nothing.
    """

    def __init__(
        self,
        backend: sentencepiece.SentencePieceProcessor,
        frame: Frame,
        specials: Mapping[str, int],
        hidden: Iterable[int],
    ) -> None:
        self._backend = backend
        self._size: int = backend.vocab_size()
        super().__init__(
            frame,
            vocab_size=max([self._size - 1, *specials.values()]) + 1,
            strip_space=backend.encode("a", out_type=str)[0].startswith(SPACE),
        )
        self._hidden = frozenset(hidden)
        self._specials = dict(specials)
        self._written = {token_id: text for text, token_id in specials.items()}
        longest_first = sorted(specials, key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(map(re.escape, longest_first))})")

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self._split.split(text) if self._specials else [text]:
            if part in self._specials:
                ids.append(self._specials[part])
            elif part:
                ids += self._backend.encode(part)
        return ids

    def _piece(self, token_id: int) -> bytes:
        if token_id in self._hidden:
            return b""
        if token_id in self._written:
            return self._written[token_id].encode()
        known = 0 <= token_id < self._size
        return spaced(self._backend.id_to_piece(token_id)) if known else b""
