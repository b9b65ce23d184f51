"""Replies held to a grammar: which tokens may come next, by llguidance (the `json` extra).

A grammar is in llguidance's Lark dialect, where `%json {...}` stands for a JSON schema. The mask
is computed on the host, a bit for each token.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgekv.errors import InvalidValue, UnsupportedModel
from edgekv.tokenizer import Tokenizer

MAX_GRAMMAR = 64 << 10


@dataclass(frozen=True)
class Grammar:
    """What the whole of a reply must look like."""

    source: str

    @classmethod
    def json(cls, schema: Mapping[str, Any]) -> "Grammar":
        """A JSON document that a schema describes."""
        return cls(f"start: %json {json.dumps(schema)}")


class GrammarTokens:
    """A model's tokens, as llguidance knows them; made once for a model, and thread-safe.

    vocab_size: columns of the model's scores, which the tokenizer's ids may not fill. Raises
    UnsupportedModel where llguidance is not installed.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        try:
            import llguidance
        except ImportError:
            raise UnsupportedModel(
                "replies in JSON need llguidance: pip install 'edgekv[json]'"
            ) from None
        self._library = llguidance
        self._tokens = llguidance.LLTokenizer(
            llguidance.TokenizerWrapper(_Vocabulary(tokenizer, vocab_size)), n_vocab=vocab_size
        )
        self.vocab_size = vocab_size

    def check(self, grammar: Grammar) -> None:
        """Raises InvalidValue for a grammar that cannot be followed."""
        if len(grammar.source) > MAX_GRAMMAR:
            raise InvalidValue(f"the schema is longer than {MAX_GRAMMAR:,} characters")
        fault = self._library.LLMatcher.validate_grammar(grammar.source, self._tokens)
        if fault:
            raise InvalidValue(f"the schema cannot be followed: {' '.join(fault.split())[:300]}")

    def matcher(self, grammar: Grammar) -> "Matcher":
        """One reply's state."""
        return Matcher(self._library.LLMatcher(self._tokens, grammar.source), self.vocab_size)


class Matcher:
    """Where one reply stands in its grammar."""

    def __init__(self, matcher: Any, vocab_size: int) -> None:  # noqa: ANN401 - untyped library
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> NDArray[np.bool_]:
        """(vocab_size,): the tokens that may come next, the end among them where it may."""
        words = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        bits = np.unpackbits(words, bitorder="little")[: self._vocab_size]
        return bits.astype(np.bool_)

    def take(self, token: int) -> None:
        """The token that was chosen."""
        if not self._matcher.is_stopped():
            self._matcher.consume_token(token)


class _Vocabulary:
    """A tokenizer under the names that llguidance asks for."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id = min(tokenizer.eos_ids)
        self.bos_token_id = tokenizer.bos_id
        self.tokens = [tokenizer.piece(i) or b"" for i in range(vocab_size)]
        self.special_token_ids = [i for i, piece in enumerate(self.tokens) if not piece]

    def __call__(self, text: str | bytes) -> list[int]:
        if isinstance(text, bytes):
            text = text.decode("utf-8")
        return self._tokenizer.encode(text)
