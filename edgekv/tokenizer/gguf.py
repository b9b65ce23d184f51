"""The tokenizer that a GGUF file carries in its metadata (`tokenizer.ggml.*`)."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import PreTokenizer

from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.template import ChatTemplate
from edgekv.tokenizer.base import Frame, Tokenizer, end_ids
from edgekv.tokenizer.fast import SPACE, FastTokenizer
from edgekv.tokenizer.spm import PieceType, SentencePieceTokenizer, model_proto, processor

PREFIX = "tokenizer.ggml."

# The patterns are those of the models' own `tokenizer.json`.
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class Pre(NamedTuple):
    """What comes before BPE: how text is cut, whether whole words skip the merges, BOS or not."""

    pattern: str | None = None
    digits: bool = False
    nfc: bool = False
    ignore_merges: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> PreTokenizer:
        steps: list[PreTokenizer] = []
        if self.digits:
            steps.append(pre_tokenizers.Digits(individual_digits=True))
        if self.pattern is not None:
            steps.append(pre_tokenizers.Split(Regex(self.pattern), "isolated"))
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.pattern is None)
        return pre_tokenizers.Sequence([*steps, level])

    def normalizer(self) -> Normalizer | None:
        return normalizers.NFC() if self.nfc else None


_GPT2 = Pre()
_LLAMA_BPE = Pre(_LLAMA3, ignore_merges=True, add_bos=True)
_QWEN = Pre(_QWEN2, nfc=True)
_DIGITS = Pre(digits=True)
PRE_TOKENIZERS = {
    "default": _GPT2,
    "gpt-2": _GPT2,
    "smollm": _DIGITS,
    "starcoder": _DIGITS,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": _QWEN,
    "tekken": Pre(_TEKKEN, ignore_merges=True, add_bos=True),
}


class _Vocabulary(NamedTuple):
    """The tokens with as many types, and what else the metadata say."""

    metadata: Mapping[str, Any]
    tokens: list[str]
    types: list[int]

    def of(self, *types: PieceType) -> dict[str, int]:
        return {
            token: i
            for i, (token, kind) in enumerate(zip(self.tokens, self.types, strict=True))
            if kind in types and token
        }

    def token_id(self, name: str) -> int | None:
        value = self.metadata.get(f"{PREFIX}{name}_token_id")
        return value if type(value) is int and 0 <= value < len(self.tokens) else None

    def flag(self, key: str, default: bool) -> bool:
        value = self.metadata.get(PREFIX + key)
        return value if isinstance(value, bool) else default


def _strings(metadata: Mapping[str, Any], key: str) -> list[str]:
    value = metadata.get(PREFIX + key)
    if not isinstance(value, list) or not value:
        raise DamagedFile(f"the tokenizer has no {PREFIX}{key}; use another file of this model")
    return value


def _numbers(metadata: Mapping[str, Any], key: str, count: int, default: float) -> list[Any]:
    value = metadata.get(PREFIX + key)
    if value is None:
        return [default] * count
    kinds = "iu" if isinstance(default, int) else "f"
    if not isinstance(value, np.ndarray) or len(value) != count or value.dtype.kind not in kinds:
        raise DamagedFile(f"the tokenizer's {PREFIX}{key} has not one number for {count} tokens")
    numbers: list[Any] = value.tolist()
    return numbers


def _frame(vocabulary: _Vocabulary, config: Mapping[str, Any], add_bos: bool) -> Frame:
    bos, eos = vocabulary.token_id("bos"), vocabulary.token_id("eos")
    ends = (eos, vocabulary.token_id("eot"), vocabulary.token_id("eom"))
    ids = [i for i in ends if i is not None]
    source = vocabulary.metadata.get("tokenizer.chat_template")
    template = None
    if isinstance(source, str) and source:
        written = [None if i is None else vocabulary.tokens[i] for i in (bos, eos)]
        template = ChatTemplate(source, *written)
    return Frame(
        eos_ids=end_ids(
            (*ids, *config.get("eos_token_id", ())),
            vocabulary.of(PieceType.CONTROL, PieceType.USER_DEFINED),
        ),
        bos_id=bos,
        add_bos=vocabulary.flag("add_bos_token", add_bos),
        chat_template=template,
        limit=config.get("vocab_size"),
    )


def _bpe(vocabulary: _Vocabulary, config: Mapping[str, Any]) -> Tokenizer:
    name = vocabulary.metadata.get(f"{PREFIX}pre", "default")
    if not isinstance(name, str) or name not in PRE_TOKENIZERS:
        raise UnsupportedModel(
            f"the pre-tokenizer {str(name)[:64]!r} is not supported; "
            f"supported: {', '.join(sorted(PRE_TOKENIZERS))}"
        )
    pre = PRE_TOKENIZERS[name]
    merges = [merge.partition(" ")[::2] for merge in _strings(vocabulary.metadata, "merges")]
    tokens = vocabulary.tokens
    try:
        model = models.BPE(
            vocab=dict(zip(tokens, range(len(tokens)), strict=True)),
            merges=merges,
            ignore_merges=pre.ignore_merges,
        )
    except Exception as fault:
        # The library raises bare Exception, for a merge of tokens that are not there.
        raise DamagedFile(f"the tokenizer's merges are refused ({fault})") from fault
    backend = Backend(model)
    backend.pre_tokenizer = pre.pre_tokenizer()
    backend.decoder = ByteLevelDecoder()
    if (normalizer := pre.normalizer()) is not None:
        backend.normalizer = normalizer
    _add_tokens(backend, vocabulary)
    return FastTokenizer(backend, _frame(vocabulary, config, pre.add_bos))


def _add_tokens(backend: Backend, vocabulary: _Vocabulary) -> None:
    for kind, special in ((PieceType.CONTROL, True), (PieceType.USER_DEFINED, False)):
        found = [
            AddedToken(token, special=special, normalized=False) for token in vocabulary.of(kind)
        ]
        (backend.add_special_tokens if special else backend.add_tokens)(found)


def _sentencepiece(vocabulary: _Vocabulary, config: Mapping[str, Any]) -> Tokenizer:
    tokens, types, metadata = vocabulary.tokens, vocabulary.types, vocabulary.metadata
    scores = _numbers(metadata, "scores", len(tokens), 0.0)
    if not all(kind in PieceType.__members__.values() for kind in types):
        raise DamagedFile("the tokenizer has token types that SentencePiece has not")
    add_space = vocabulary.flag("add_space_prefix", True)
    control = vocabulary.of(PieceType.CONTROL)
    defined = vocabulary.of(PieceType.USER_DEFINED)
    hidden = vocabulary.of(PieceType.CONTROL, PieceType.UNKNOWN, PieceType.UNUSED)
    return SentencePieceTokenizer(
        processor(model_proto(tokens, scores, types, add_space)),
        _frame(vocabulary, config, add_bos=True),
        control | {token.replace(SPACE, " "): i for token, i in defined.items()},
        hidden.values(),
    )


BUILDERS: dict[str, Callable[[_Vocabulary, Mapping[str, Any]], Tokenizer]] = {
    "gpt2": _bpe,
    "llama": _sentencepiece,
}


def load_tokenizer_gguf(metadata: Mapping[str, Any], config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer in a GGUF's metadata: `gpt2` (byte-level BPE) or `llama` (SentencePiece).

    config: a validated configuration, whose `eos_token_id` list joins the end ids.
    Raises UnsupportedModel for another kind or pre-tokenizer, by name, and DamagedFile.
    """
    kind = metadata.get(f"{PREFIX}model")
    if not isinstance(kind, str) or kind not in BUILDERS:
        raise UnsupportedModel(
            f"the tokenizer {str(kind)[:64]!r} is not supported; "
            f"supported: {', '.join(sorted(BUILDERS))}"
        )
    tokens = _strings(metadata, "tokens")
    types = _numbers(metadata, "token_type", len(tokens), PieceType.NORMAL)
    return BUILDERS[kind](_Vocabulary(metadata, tokens, types), config)
