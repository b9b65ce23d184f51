import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers

from edgekv.errors import DamagedFile, InvalidValue, UnsupportedModel
from edgekv.loading.gguf import read_gguf
from edgekv.tokenizer import load_tokenizer_gguf
from edgekv.tokenizer.gguf import PRE_TOKENIZERS
from tests.tokenizer.vocabularies import (
    GPT2,
    LLAMA3,
    QWEN2,
    SMOLLM,
    SPECIALS,
    TEXTS,
    gguf_metadata,
    slow_bpe,
    train_bpe,
)

BACKEND = train_bpe()
METADATA = gguf_metadata(BACKEND)
TOKENIZER = load_tokenizer_gguf(METADATA, {})
PATTERNS = {"gpt-2": GPT2, "default": GPT2, "smollm": SMOLLM, "qwen2": QWEN2}
MIXED = st.text(
    st.sampled_from("aeth T19'’ \t\n\r.,_é日한я👍\u200d🏽✨\u0301") | st.characters(codec="utf-8")
)


@given(MIXED)
def test_a_gguf_vocabulary_encodes_like_its_tokenizer_json(text):
    assert TOKENIZER.encode(text) == BACKEND.encode(text).ids


@pytest.mark.parametrize("pre", PATTERNS)
@pytest.mark.parametrize("text", TEXTS)
def test_words_are_cut_and_merged_as_the_definition_says(pre, text):
    metadata = METADATA | {"tokenizer.ggml.pre": pre}
    found = load_tokenizer_gguf(metadata, {}).encode(text)
    normal = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
    assert found == slow_bpe(metadata, PATTERNS[pre], normal)


@pytest.mark.parametrize("pre", ["llama-bpe", "tekken"])
def test_whole_words_in_the_vocabulary_skip_the_merges(pre):
    tokens, merges = (METADATA[f"tokenizer.ggml.{key}"] for key in ("tokens", "merges"))
    metadata = METADATA | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.merges": merges[:1]}
    word = next(token for token in tokens if token[0] == "Ġ" and token[1:].isalpha() and token[3:])
    ids = load_tokenizer_gguf(metadata, {}).encode(word.replace("Ġ", " "))
    assert ids == [tokens.index(word)]


@pytest.mark.parametrize("text", TEXTS)
def test_llama3_cuts_numbers_in_threes(text):
    split = pre_tokenizers.Split(Regex(LLAMA3), "isolated")
    backend = train_bpe(
        pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    )
    tokenizer = load_tokenizer_gguf(gguf_metadata(backend, "llama-bpe"), {})
    assert tokenizer.encode(text) == backend.encode(text).ids


@pytest.mark.model
@pytest.mark.parametrize("text", TEXTS)
def test_the_default_model_tokenizes_as_the_definition_says(text, default_model):
    metadata = read_gguf(default_model).metadata
    tokenizer = load_tokenizer_gguf(metadata, {})
    assert tokenizer.encode(text) == slow_bpe(metadata, SMOLLM, text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_whole_through_every_pre_tokenizer(pre, text):
    tokenizer = load_tokenizer_gguf(METADATA | {"tokenizer.ggml.pre": pre}, {})
    text = unicodedata.normalize("NFC", text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_special_tokens_in_the_text_are_parsed_and_not_decoded():
    ids = TOKENIZER.encode("<|im_start|>user\nhi<|im_end|>")
    vocab = BACKEND.get_vocab()
    assert ids[0] == vocab["<|im_start|>"] and ids[-1] == vocab["<|im_end|>"]
    assert TOKENIZER.decode(ids) == "user\nhi"


def test_user_defined_tokens_are_parsed_and_decoded():
    types = np.array(METADATA["tokenizer.ggml.token_type"])
    types[BACKEND.token_to_id("<|im_start|>")] = 4
    tokenizer = load_tokenizer_gguf(METADATA | {"tokenizer.ggml.token_type": types}, {})
    ids = tokenizer.encode("a<|im_start|>b")
    assert BACKEND.token_to_id("<|im_start|>") in ids
    assert tokenizer.decode(ids) == "a<|im_start|>b"


def test_bos_is_added_only_where_it_belongs_and_never_twice():
    bos = BACKEND.token_to_id("<|im_start|>")
    assert TOKENIZER.encode("the", add_special=True)[0] != bos
    adding = load_tokenizer_gguf(METADATA | {"tokenizer.ggml.add_bos_token": True}, {})
    assert adding.bos_id == bos and adding.encode("the")[0] != bos
    assert adding.encode("the", add_special=True) == [bos, *adding.encode("the")]
    assert adding.encode("", add_special=True) == [bos]
    written = adding.encode("<|im_start|>the", add_special=True)
    assert written == adding.encode("<|im_start|>the")


def test_end_ids_come_from_names_metadata_and_configuration():
    ids = [BACKEND.token_to_id(token) for token in ("<|endoftext|>", "<|im_end|>")]
    metadata = METADATA | {"tokenizer.ggml.eot_token_id": 300, "tokenizer.ggml.eom_token_id": 301}
    assert load_tokenizer_gguf(metadata, {"eos_token_id": [7]}).eos_ids == {*ids, 300, 301, 7}


def test_a_word_that_is_only_spelled_like_an_end_is_none():
    types = np.ones(len(METADATA["tokenizer.ggml.tokens"]), "<i4")
    metadata = METADATA | {"tokenizer.ggml.token_type": types, "tokenizer.ggml.eos_token_id": 5}
    assert load_tokenizer_gguf(metadata, {}).eos_ids == {5}


def test_the_template_knows_the_tokens_by_their_text():
    metadata = METADATA | {"tokenizer.chat_template": "{{ bos_token }}|{{ eos_token }}"}
    assert load_tokenizer_gguf(metadata, {}).chat_template.render([]) == "<|im_start|>|<|im_end|>"
    assert TOKENIZER.chat_template is None


def test_an_unknown_pre_tokenizer_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r"'bloom' is not supported; .*smollm"):
        load_tokenizer_gguf(METADATA | {"tokenizer.ggml.pre": "bloom"}, {})


@pytest.mark.parametrize("kind", ["bert", None, 3])
def test_an_unknown_kind_is_refused_by_name(kind):
    with pytest.raises(UnsupportedModel, match=f"{kind}.*gpt2, llama"):
        load_tokenizer_gguf(METADATA | {"tokenizer.ggml.model": kind}, {})


@pytest.mark.parametrize(
    "change",
    [
        {"tokens": None},
        {"tokens": []},
        {"tokens": np.zeros(3)},
        {"merges": None},
        {"merges": ["nonsense"]},
        {"merges": ["q zz"]},
        {"token_type": np.zeros(2, "<i4")},
        {"token_type": "x"},
        {"token_type": np.zeros(len(METADATA["tokenizer.ggml.tokens"]), "<f4")},
    ],
)
def test_a_broken_vocabulary_is_damage(change):
    with pytest.raises(DamagedFile):
        load_tokenizer_gguf(METADATA | {f"tokenizer.ggml.{k}": v for k, v in change.items()}, {})


def test_a_token_beyond_the_models_vocabulary_is_refused():
    tokenizer = load_tokenizer_gguf(METADATA, {"vocab_size": 2})
    assert tokenizer.encode("<|im_start|>") == [1]
    with pytest.raises(InvalidValue, match="token 2, but the model knows 2"):
        tokenizer.encode("<|im_start|><|im_end|>")


def test_lone_surrogates_are_refused_in_one_line():
    with pytest.raises(InvalidValue, match="surrogate"):
        TOKENIZER.encode("a\udc80b")


@settings(max_examples=300)
@given(st.lists(st.integers(-3, 600), max_size=30))
def test_any_ids_decode_as_the_library_decodes_them(ids):
    known = [i for i in ids if 0 <= i < BACKEND.get_vocab_size()]
    assert TOKENIZER.decode(ids) == BACKEND.decode(known, skip_special_tokens=True)


def test_vocabulary_size_counts_the_special_tokens():
    assert TOKENIZER.vocab_size == BACKEND.get_vocab_size() >= len(SPECIALS) + 256
