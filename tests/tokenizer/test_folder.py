import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.tokenizer import load_tokenizer_folder
from tests.tokenizer.vocabularies import TEXTS, train_bpe, train_sentencepiece

SPACE = "\u2581"


@pytest.fixture
def folder(tmp_path):
    train_bpe().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def options(folder, **values):
    (folder / "tokenizer_config.json").write_text(json.dumps(values))


def with_bos(folder):
    backend = train_bpe()
    bos = backend.token_to_id("<|im_start|>")
    backend.post_processor = TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", bos)]
    )
    backend.save(str(folder / "tokenizer.json"))
    return bos


@pytest.mark.parametrize("text", TEXTS)
def test_tokenizer_json_encodes_as_the_library_does(text, folder):
    tokenizer, backend = load_tokenizer_folder(folder, {}), train_bpe()
    assert tokenizer.encode(text) == backend.encode(text).ids
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokenizer_json_comes_before_tokenizer_model(folder):
    (folder / "tokenizer.model").write_bytes(train_sentencepiece())
    assert load_tokenizer_folder(folder, {}).vocab_size == train_bpe().get_vocab_size()


def test_bos_is_added_where_the_post_processor_adds_it(folder):
    bos = with_bos(folder)
    options(folder, bos_token={"content": "<|im_start|>"})
    tokenizer = load_tokenizer_folder(folder, {})
    assert tokenizer.bos_id == bos
    assert tokenizer.encode("the", add_special=True) == [bos, *tokenizer.encode("the")]
    assert tokenizer.encode("<|im_start|>the", add_special=True)[:2].count(bos) == 1


@pytest.mark.parametrize(("asked", "added"), [(True, True), (False, False), (None, False)])
def test_add_bos_token_overrules(asked, added, folder):
    options(folder, bos_token="<|im_start|>", **({} if asked is None else {"add_bos_token": asked}))
    tokenizer = load_tokenizer_folder(folder, {})
    assert (tokenizer.encode("the", add_special=True)[0] == tokenizer.bos_id) is added


def test_tokens_are_also_read_from_the_special_tokens_map(folder):
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<|im_start|>"}')
    expected = train_bpe().token_to_id("<|im_start|>")
    assert load_tokenizer_folder(folder, {}).bos_id == expected


def test_end_ids_are_a_union(folder):
    options(folder, eos_token="<|im_start|>")
    ids = {train_bpe().token_to_id(t) for t in ("<|im_start|>", "<|im_end|>", "<|endoftext|>")}
    assert load_tokenizer_folder(folder, {"eos_token_id": [300]}).eos_ids == ids | {300}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("{{ messages[0].content }}", "hi"),
        ([{"name": "rag", "template": "no"}, {"name": "default", "template": "yes"}], "yes"),
        ([{"name": "tool_use", "template": "first"}], "first"),
    ],
)
def test_templates_are_one_or_named(value, text, folder):
    options(folder, chat_template=value)
    template = load_tokenizer_folder(folder, {}).chat_template
    assert template.render([{"role": "user", "content": "hi"}]) == text


@pytest.mark.parametrize("value", [None, "", [], [3], {"a": 1}])
def test_no_template_is_none(value, folder):
    options(folder, chat_template=value)
    assert load_tokenizer_folder(folder, {}).chat_template is None


def test_a_template_file_comes_first(folder):
    options(folder, chat_template="old", bos_token="<|im_start|>")
    (folder / "chat_template.jinja").write_text("new {{ bos_token }}")
    assert load_tokenizer_folder(folder, {}).chat_template.render([]) == "new <|im_start|>"


def spm_like(decoder, normalizer=None, pre_tokenizer=None):
    """A vocabulary as Llama 2's tokenizer.json has it."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    tokens += [SPACE, "t", "h", "e", "th", "the", SPACE + "the"]
    merges = [("t", "h"), ("th", "e"), (SPACE, "the")]
    backend = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    backend.decoder = decoder
    if normalizer:
        backend.normalizer = normalizer
    if pre_tokenizer:
        backend.pre_tokenizer = pre_tokenizer
    backend.add_special_tokens([AddedToken(t, special=True) for t in tokens[:3]])
    return backend


LLAMA2 = spm_like(
    decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    ),
    normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)]),
)
METASPACE = spm_like(
    decoders.Metaspace(SPACE, "first"), pre_tokenizer=pre_tokenizers.Metaspace(SPACE, "first")
)


@pytest.mark.parametrize("text", ["the the", "  the", "日本 the 👍", "the\nthe ", "é"])
def test_sentencepiece_style_tokenizers_keep_their_spaces(text, tmp_path):
    LLAMA2.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer_folder(tmp_path, {})
    ids = LLAMA2.encode(text).ids
    assert tokenizer.encode(text) == ids
    assert tokenizer.decode([1, *ids]) == LLAMA2.decode(ids) == text
    stream = tokenizer.detokenizer()
    assert "".join(map(stream.add, ids)) + stream.finish() == text


@pytest.mark.parametrize("text", ["the the", "the  the"])
def test_a_metaspace_decoder_drops_its_leading_space(text, tmp_path):
    METASPACE.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer_folder(tmp_path, {})
    ids = METASPACE.encode(text).ids
    assert tokenizer.decode(ids) == METASPACE.decode(ids) == text


def test_a_decoder_whose_tokens_are_no_bytes_is_refused_by_name(tmp_path):
    spm_like(decoders.WordPiece()).save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UnsupportedModel, match="WordPiece"):
        load_tokenizer_folder(tmp_path, {})


@pytest.mark.parametrize("raw", [b"", b"{}", b"[]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_broken_tokenizer_json_is_damage(raw, tmp_path):
    (tmp_path / "tokenizer.json").write_bytes(raw)
    with pytest.raises(DamagedFile, match="tokenizer.json"):
        load_tokenizer_folder(tmp_path, {})


@pytest.mark.parametrize("raw", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_broken_tokenizer_config_is_damage(raw, folder):
    (folder / "tokenizer_config.json").write_bytes(raw)
    with pytest.raises(DamagedFile, match="tokenizer_config.json"):
        load_tokenizer_folder(folder, {})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 1 << 40) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
KEYS = ("bos_token", "eos_token", "add_bos_token", "chat_template", "added_tokens_decoder")


@settings(max_examples=60, deadline=None)
@given(values=st.dictionaries(st.sampled_from(KEYS), JSON))
def test_any_tokenizer_config_is_survived(values, tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    (folder / "tokenizer.model").write_bytes(MODEL)
    options(folder, **values)
    load_tokenizer_folder(folder, {}).encode("the end", add_special=True)


MODEL = train_sentencepiece()
