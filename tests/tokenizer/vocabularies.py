import io

import numpy as np
import regex
import sentencepiece
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = [
    "The quick brown fox jumps over the lazy dog. The dog sleeps; the fox doesn't.",
    "It's 2024 and we've 12345 reasons, they'll say: don't I'm you're he'd.",
    "def f(x):\n    return x ** 2\n\n\n\tif x:\r\n        pass",
    "naïve café Ünïcödé — “quotes” … 日本語のテキスト 中文 한국어 русский",
    "emoji 👩‍👩‍👧‍👦 🇫🇷 👍🏽 ✨✨   spaces   and\ttabs ",
    "HTTPServer camelCase snake_case CONSTANT_NAME x86-64 3.14159",
]
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
SMOLLM = r"\p{N}|'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace("{1,3}", "")


def train_bpe(pre_tokenizer=None, size=500):
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizer or pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[AddedToken(token, special=True) for token in SPECIALS],
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def merges_of(backend):
    import json

    found = json.loads(backend.to_str())["model"]["merges"]
    return [merge if isinstance(merge, str) else " ".join(merge) for merge in found]


def gguf_metadata(backend, pre="smollm", **extra):
    vocab = backend.get_vocab()
    tokens = sorted(vocab, key=vocab.get)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": np.array([3 if t in SPECIALS else 1 for t in tokens], "<i4"),
        "tokenizer.ggml.merges": merges_of(backend),
        "tokenizer.ggml.bos_token_id": tokens.index("<|im_start|>"),
        "tokenizer.ggml.eos_token_id": tokens.index("<|im_end|>"),
    } | {f"tokenizer.ggml.{key}": value for key, value in extra.items()}


def byte_names():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {b: chr(b) for b in printable} | {b: chr(0x100 + i) for i, b in enumerate(others)}


def slow_bpe(metadata, pattern, text):
    """Byte-pair encoding as its definition says it, without specials: the oracle."""
    names = byte_names()
    ranks = {merge: rank for rank, merge in enumerate(metadata["tokenizer.ggml.merges"])}
    ids = {token: i for i, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    found = []
    for word in regex.findall(pattern, text):
        parts = [names[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = [f"{a} {b}" for a, b in zip(parts, parts[1:], strict=False)]
            best = min(pairs, key=lambda pair: ranks.get(pair, len(ranks)))
            if best not in ranks:
                break
            at = pairs.index(best)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        found += [ids[part] for part in parts]
    return found


def train_sentencepiece(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 4),
        model_writer=model,
        model_type="bpe",
        vocab_size=520,
        byte_fallback=True,
        character_coverage=0.98,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def spm_metadata(proto, **extra):
    backend = sentencepiece.SentencePieceProcessor(model_proto=proto)
    ids = range(backend.vocab_size())

    def kind(i):
        checks = (
            (backend.is_unknown, 2),
            (backend.is_control, 3),
            (backend.is_unused, 5),
            (backend.is_byte, 6),
        )
        return next((number for check, number in checks if check(i)), 1)

    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [backend.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": np.array([backend.get_score(i) for i in ids], "<f4"),
        "tokenizer.ggml.token_type": np.array([kind(i) for i in ids], "<i4"),
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    } | {f"tokenizer.ggml.{key}": value for key, value in extra.items()}
