import json

import gguf
import mlx.core as mx
import numpy as np

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, VOCAB = 256, 4, 2, 64, 288
ROWS = {
    "attn_q": HEADS * HEAD_DIM,
    "attn_k": KV_HEADS * HEAD_DIM,
    "attn_v": KV_HEADS * HEAD_DIM,
    "attn_output": HIDDEN,
    "ffn_gate": HIDDEN,
    "ffn_up": HIDDEN,
    "ffn_down": HIDDEN,
}
# Where each block format keeps its fp16 numbers.
HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
}


def random_blocks(kind, rows, columns, seed=0):
    rng = np.random.default_rng(seed)
    block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]]
    raw = rng.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    for at in HALVES[kind]:
        half = (rng.normal(size=(len(raw), 1)) * 0.01).astype("<f2")
        raw[:, at : at + 2] = half.view(np.uint8)
    return raw.reshape(rows, -1)


def byte_tokens():
    alphabet = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [byte for byte in range(256) if byte not in alphabet]
    names = {byte: chr(byte) for byte in alphabet}
    names |= {byte: chr(0x100 + i) for i, byte in enumerate(rest)}
    merged = ["Ġt", "he", "Ġthe", "in", "on"]
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    padding = [f"<pad{i}>" for i in range(VOCAB - 256 - len(merged) - len(specials))]
    merges = ["Ġ t", "h e", "Ġt he", "i n", "o n"]
    tokens = [names[byte] for byte in range(256)] + merged + specials + padding
    types = [1] * (256 + len(merged)) + [3] * len(specials) + [5] * len(padding)
    return tokens, types, merges


def add_tokenizer(writer):
    tokens, types, merges = byte_tokens()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges(merges)
    writer.add_bos_token_id(tokens.index("<|im_start|>"))
    writer.add_eos_token_id(tokens.index("<|im_end|>"))
    writer.add_chat_template("{% for m in messages %}{{ m.content }}{% endfor %}")


def write_gguf(path, arch="llama", kind="F32", extra=None, tensors=None, layers=1):
    """A whole tiny model; `extra(writer)` adds or replaces metadata, `tensors` arrays."""
    writer = gguf.GGUFWriter(path, arch)
    writer.add_block_count(layers)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    add_tokenizer(writer)
    if extra:
        extra(writer)
    for name, array in (tiny_tensors(layers) | (tensors or {})).items():
        if array.ndim == 2 and kind != "F32" and array.dtype == np.float32:
            blocks = random_blocks(kind, *array.shape, seed=len(name))
            writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
        else:
            writer.add_tensor(name, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def tiny_tensors(layers=1, seed=1):
    rng = np.random.default_rng(seed)

    def normal(*shape):
        return rng.normal(size=shape, scale=0.05).astype(np.float32)

    tensors = {"token_embd.weight": normal(VOCAB, HIDDEN), "output_norm.weight": normal(HIDDEN)}
    for i in range(layers):
        tensors |= {f"blk.{i}.{name}.weight": normal(rows, HIDDEN) for name, rows in ROWS.items()}
        tensors |= {f"blk.{i}.{name}_norm.weight": normal(HIDDEN) for name in ("attn", "ffn")}
    return tensors


def tiny_config(**changes):
    return {
        "model_type": "llama",
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": VOCAB,
        "max_position_embeddings": 512,
        "eos_token_id": 258,
    } | changes


def write_json(path, value):
    path.write_text(json.dumps(value))
    return path


def write_folder(folder, config=None, weights=None, tokenizer=True):
    folder.mkdir(exist_ok=True)
    write_json(folder / "config.json", tiny_config() if config is None else config)
    arrays = {"model.norm.weight": mx.ones(64)} if weights is None else weights
    mx.save_safetensors(str(folder / "model.safetensors"), arrays)
    if tokenizer:
        write_tokenizer_json(folder / "tokenizer.json")
    return folder


def write_tokenizer_json(path):
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens, types, merges = byte_tokens()
    backend = Tokenizer(
        models.BPE(
            vocab={token: i for i, token in enumerate(tokens)},
            merges=[tuple(merge.split(" ")) for merge in merges],
        )
    )
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = decoders.ByteLevel()
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == 3]
    backend.add_special_tokens([AddedToken(token, special=True) for token in special])
    backend.save(str(path))
    return path
