"""What every tokenizer here can do, and the rules on special tokens that they share."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edgekv.errors import InvalidValue
from edgekv.template import ChatTemplate
from edgekv.tokenizer.detokenizer import Detokenizer, decode

# Tokens that end a turn or a text in the families known here. Many repositories list only one of
# two in their configuration, and a model that says the other would never stop.
END_TOKENS = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|end_of_text|>",
    "<end_of_turn>",
)

_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Frame:
    """What surrounds text: the ids that begin and end it, and the template of a conversation.

    eos_ids: every id that ends a turn. bos_id: the id that begins a text, where there is one.
    add_bos: whether `encode(add_special=True)` puts it there. limit: the model's vocabulary, whose
    embedding has no row for a larger id.
    """

    eos_ids: frozenset[int]
    bos_id: int | None = None
    add_bos: bool = False
    chat_template: ChatTemplate | None = None
    limit: int | None = None


class Tokenizer(ABC):
    """Text to token ids and back.

    vocab_size: number of ids known, which a model's embedding may exceed. eos_ids, bos_id,
    add_bos, chat_template: see Frame.
    """

    def __init__(self, frame: Frame, vocab_size: int, strip_space: bool) -> None:
        self.vocab_size = vocab_size
        self.eos_ids = frame.eos_ids
        self.bos_id = frame.bos_id
        self.add_bos = frame.add_bos and frame.bos_id is not None
        self.chat_template = frame.chat_template
        self._limit = vocab_size if frame.limit is None else frame.limit
        self._strip_space = strip_space
        self._known: dict[int, bytes] = {}

    @abstractmethod
    def _encode(self, text: str) -> list[int]:
        """Ids of `text`, special tokens written in it parsed, none added."""

    @abstractmethod
    def _piece(self, token_id: int) -> bytes:
        """The bytes a token stands for, b"" for special and unknown ids."""

    def encode(self, text: str, *, add_special: bool = False) -> list[int]:
        """Ids of `text`; special tokens written in it are parsed as such, as templates need.

        add_special: begin with BOS if this tokenizer does so and the text does not already.
        Raises InvalidValue for text that is not Unicode (a lone surrogate), or that spells a token
        which the model does not have.
        """
        if bad := _SURROGATE.search(text):
            raise InvalidValue(
                f"the text has the lone surrogate {bad[0]!r} at {bad.start()}; "
                "it is not valid Unicode, remove it"
            )
        ids = self._encode(text)
        if add_special and self.add_bos and self.bos_id is not None and ids[:1] != [self.bos_id]:
            ids.insert(0, self.bos_id)
        if ids and max(ids) >= self._limit:
            raise InvalidValue(
                f"the text has the token {max(ids)}, but the model knows {self._limit}; "
                "write it without that special token"
            )
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens left out, invalid UTF-8 as U+FFFD."""
        return decode(ids, self.piece, self._strip_space)

    def detokenizer(self) -> Detokenizer:
        """A streaming decoder; its joined output equals `decode` of the same ids."""
        return Detokenizer(self.piece, self._strip_space)

    def piece(self, token_id: int) -> bytes:
        """The bytes a token stands for, remembered after the first use."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._piece(token_id)
        return found


def end_ids(config_ids: Iterable[int], specials: Mapping[str, int]) -> frozenset[int]:
    """The configuration's end ids and those of the special tokens known to end a turn."""
    named = (specials[token] for token in END_TOKENS if token in specials)
    return frozenset((*config_ids, *named))
