import numpy as np
import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from edgekv.errors import DamagedFile
from edgekv.tokenizer import load_tokenizer_folder, load_tokenizer_gguf
from tests.tokenizer.vocabularies import TEXTS, spm_metadata, train_sentencepiece

PROTO = train_sentencepiece()
ORACLE = sentencepiece.SentencePieceProcessor(model_proto=PROTO)
METADATA = spm_metadata(PROTO)
TOKENIZER = load_tokenizer_gguf(METADATA, {})


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "tokenizer.model").write_bytes(PROTO)
    return tmp_path


@given(st.text(st.sampled_from("the fox.日👍é \n\t") | st.characters(codec="utf-8")))
def test_a_rebuilt_model_encodes_and_decodes_like_the_original(text):
    ids = TOKENIZER.encode(text)
    assert ids == ORACLE.encode(text)
    assert TOKENIZER.decode(ids) == ORACLE.decode(ids) == text


@pytest.mark.parametrize("text", TEXTS)
def test_a_folder_with_the_model_file_alone_does_the_same(text, folder):
    tokenizer = load_tokenizer_folder(folder, {})
    assert tokenizer.encode(text, add_special=False) == ORACLE.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_tokens_in_the_text_are_parsed():
    assert TOKENIZER.encode("<s>the</s>") == [1, *ORACLE.encode("the"), 2]
    assert TOKENIZER.decode(TOKENIZER.encode("<s>the</s>")) == "the"


def test_bos_is_added_once_by_default():
    assert TOKENIZER.encode("the", add_special=True) == [1, *ORACLE.encode("the")]
    assert TOKENIZER.encode("<s>the", add_special=True) == [1, *ORACLE.encode("the")]
    without = load_tokenizer_gguf(METADATA | {"tokenizer.ggml.add_bos_token": False}, {})
    assert without.encode("the", add_special=True) == ORACLE.encode("the")


def test_no_space_is_put_first_where_the_file_says_so():
    metadata = METADATA | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = load_tokenizer_gguf(metadata, {})
    plain = sentencepiece.SentencePieceProcessor(
        model_proto=train_sentencepiece(add_dummy_prefix=False)
    )
    assert tokenizer.encode("the") != TOKENIZER.encode("the")
    assert (
        tokenizer.decode(tokenizer.encode(" the")) == plain.decode(plain.encode(" the")) == " the"
    )


def test_tokens_added_in_the_configuration_are_known(folder):
    (folder / "tokenizer_config.json").write_text(
        '{"eos_token": "<|im_end|>", "added_tokens_decoder": {'
        '"520": {"content": "<|im_end|>", "special": true}, "521": {"content": "<think>"}}}'
    )
    tokenizer = load_tokenizer_folder(folder, {"eos_token_id": [2]})
    assert tokenizer.encode("the<|im_end|>")[-1] == 520
    assert tokenizer.decode([520, 521]) == "<think>"
    assert tokenizer.eos_ids == {2, 520} and tokenizer.vocab_size == 522


@pytest.mark.parametrize(
    "change",
    [
        {"scores": np.zeros(3, "<f4")},
        {"token_type": np.full(len(METADATA["tokenizer.ggml.tokens"]), 9, "<i4")},
        {"token_type": np.full(len(METADATA["tokenizer.ggml.tokens"]), -1, "<i4")},
        {"token_type": np.ones(len(METADATA["tokenizer.ggml.tokens"]), "<i4")},
        {"tokens": ["a"] * len(METADATA["tokenizer.ggml.tokens"])},
        {"tokens": [""] * len(METADATA["tokenizer.ggml.tokens"])},
    ],
)
def test_a_broken_vocabulary_is_damage(change):
    with pytest.raises(DamagedFile):
        load_tokenizer_gguf(METADATA | {f"tokenizer.ggml.{k}": v for k, v in change.items()}, {})


@pytest.mark.parametrize("raw", [b"", b"nonsense", PROTO[:100], bytes(1000)])
def test_a_broken_model_file_is_damage(raw, folder):
    (folder / "tokenizer.model").write_bytes(raw)
    with pytest.raises(DamagedFile, match="SentencePiece"):
        load_tokenizer_folder(folder, {})
