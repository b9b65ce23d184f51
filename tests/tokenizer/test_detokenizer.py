import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv.tokenizer import load_tokenizer_gguf
from edgekv.tokenizer.detokenizer import Detokenizer
from tests.tokenizer.vocabularies import (
    TEXTS,
    gguf_metadata,
    spm_metadata,
    train_bpe,
    train_sentencepiece,
)

TOKENIZERS = {
    "bpe": load_tokenizer_gguf(gguf_metadata(train_bpe()), {}),
    "sentencepiece": load_tokenizer_gguf(spm_metadata(train_sentencepiece()), {}),
}
KINDS = pytest.mark.parametrize("kind", TOKENIZERS)
WORLD = st.text(
    st.sampled_from("日本語中文한국어👩👧👦👍🏽🇫🇷✨\u200d\ufe0f éя\u0301 ")
    | st.characters(codec="utf-8")
)


def stream(tokenizer, ids):
    detokenizer = tokenizer.detokenizer()
    return [detokenizer.add(i) for i in ids] + [detokenizer.finish()]


@KINDS
@given(text=WORLD)
def test_streamed_text_is_the_text_and_never_half_a_character(kind, text):
    tokenizer = TOKENIZERS[kind]
    pieces = stream(tokenizer, tokenizer.encode(text))
    assert "".join(pieces) == text
    assert ("\ufffd" in "".join(pieces)) == ("\ufffd" in text)


@KINDS
@given(ids=st.lists(st.integers(-2, 600)))
def test_streamed_text_equals_decode_for_any_ids(kind, ids):
    tokenizer = TOKENIZERS[kind]
    assert "".join(stream(tokenizer, ids)) == tokenizer.decode(ids)


@KINDS
@pytest.mark.parametrize("text", TEXTS)
def test_every_step_is_a_prefix_of_the_text(kind, text):
    tokenizer = TOKENIZERS[kind]
    detokenizer, so_far = tokenizer.detokenizer(), ""
    for token_id in tokenizer.encode(text):
        so_far += detokenizer.add(token_id)
        assert text.startswith(so_far)


def test_a_character_over_three_tokens_appears_with_the_last():
    pieces = [b"\xf0\x9f", b"\x91", b"\x8d", b"!"]
    detokenizer = Detokenizer(pieces.__getitem__)
    assert [detokenizer.add(i) for i in range(4)] == ["", "", "👍", "!"]


def test_bytes_that_cannot_become_a_character_are_replaced_at_once():
    pieces = [b"\xe6\x97", b"a", b"\xff"]
    detokenizer = Detokenizer(pieces.__getitem__)
    assert [detokenizer.add(i) for i in range(3)] == ["", "\ufffda", "\ufffd"]
    assert detokenizer.finish() == ""


def test_an_unfinished_character_is_given_up_at_the_end():
    detokenizer = Detokenizer([b"ab\xe6\x97"].__getitem__)
    assert detokenizer.add(0) == "ab"
    assert detokenizer.finish() == "\ufffd"


def test_one_space_is_stripped_at_the_beginning_alone():
    detokenizer = Detokenizer([b"", b"  a", b" b"].__getitem__, strip_space=True)
    assert [detokenizer.add(i) for i in (0, 1, 2)] == ["", " a", " b"]


def test_a_token_costs_the_same_however_long_the_text_is():
    tokenizer = TOKENIZERS["bpe"]
    ids = tokenizer.encode("the fox ") * 20_000
    detokenizer = tokenizer.detokenizer()
    begin = time.perf_counter()
    for token_id in ids:
        detokenizer.add(token_id)
    assert (time.perf_counter() - begin) / len(ids) < 50e-6
