"""Token ids to text, one at a time, without ever showing half a character."""

import codecs
from collections.abc import Sequence
from typing import Protocol


class Pieces(Protocol):
    """The bytes that each token stands for; b"" for special and unknown ids."""

    def __call__(self, token_id: int, /) -> bytes: ...


class Detokenizer:
    """Streaming decoder of one sequence; owned by whoever reads that sequence.

    Holds back at most the three bytes of an unfinished character. Bytes that can no longer become
    UTF-8 turn into U+FFFD. `strip_space`: drop one space at the very beginning, which SentencePiece
    vocabularies put before the first word.
    """

    def __init__(self, pieces: Pieces, strip_space: bool = False) -> None:
        self._pieces = pieces
        self._strip_space = strip_space
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def add(self, token_id: int) -> str:
        """The text that this token completes, often '' or a whole word."""
        return self._text(self._utf8.decode(self._pieces(token_id)))

    def finish(self) -> str:
        """What was held back, as U+FFFD; call once, at the end."""
        return self._text(self._utf8.decode(b"", final=True))

    def _text(self, text: str) -> str:
        if self._strip_space and text:
            self._strip_space = False
            return text.removeprefix(" ")
        return text


def decode(ids: Sequence[int], pieces: Pieces, strip_space: bool = False) -> str:
    """All of `ids` at once; equals the streamed text by construction of both."""
    text = b"".join(map(pieces, ids)).decode("utf-8", "replace")
    return text.removeprefix(" ") if strip_space else text
