import gguf
import mlx.core as mx
import numpy as np
import pytest

from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.loading import open_checkpoint, read_config
from edgekv.loading.gguf import read_gguf
from edgekv.loading.gguf_names import hf_name
from tests.loading.files import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, VOCAB, tiny_tensors, write_gguf

HF_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "blk.0.attn_norm.weight": "model.layers.0.input_layernorm.weight",
    "blk.7.ffn_norm.weight": "model.layers.7.post_attention_layernorm.weight",
    "blk.31.attn_q.weight": "model.layers.31.self_attn.q_proj.weight",
    "blk.31.attn_k.bias": "model.layers.31.self_attn.k_proj.bias",
    "blk.1.attn_v.weight": "model.layers.1.self_attn.v_proj.weight",
    "blk.1.attn_output.weight": "model.layers.1.self_attn.o_proj.weight",
    "blk.1.attn_q_norm.weight": "model.layers.1.self_attn.q_norm.weight",
    "blk.1.attn_k_norm.weight": "model.layers.1.self_attn.k_norm.weight",
    "blk.1.ffn_gate.weight": "model.layers.1.mlp.gate_proj.weight",
    "blk.1.ffn_up.weight": "model.layers.1.mlp.up_proj.weight",
    "blk.1.ffn_down.weight": "model.layers.1.mlp.down_proj.weight",
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("names") / "tiny.gguf")


@pytest.mark.parametrize("name", HF_NAMES)
def test_tensors_get_the_names_of_hugging_face(name, tiny):
    assert hf_name(name, read_gguf(tiny)) == HF_NAMES[name]


@pytest.mark.parametrize(
    "name", ["blk.0.ffn_gate_exps.weight", "blk.0.odd", "x", "blk.99999.attn_q.weight"]
)
def test_a_tensor_without_a_place_is_refused_by_name(name, tiny):
    with pytest.raises(UnsupportedModel, match=name):
        hf_name(name, read_gguf(tiny))


@pytest.mark.parametrize(
    ("arch", "kind"), [("llama", "llama"), ("qwen2", "qwen2"), ("qwen3", "qwen3")]
)
def test_metadata_become_a_hugging_face_configuration(arch, kind, tmp_path):
    config = read_config(write_gguf(tmp_path / "m.gguf", arch=arch))
    assert (
        config
        | {
            "model_type": kind,
            "hidden_size": HIDDEN,
            "intermediate_size": HIDDEN,
            "num_hidden_layers": 1,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "rope_scaling": None,
            "max_position_embeddings": 512,
            "vocab_size": VOCAB,
            "tie_word_embeddings": True,
            "attention_bias": False,
        }
        == config
    )


@pytest.mark.parametrize("arch", ["gemma3", "mamba", "bert"])
def test_another_architecture_is_refused_naming_it_and_those_supported(arch, tmp_path):
    path = write_gguf(tmp_path / "m.gguf", arch=arch)
    for read in (read_config, open_checkpoint):
        with pytest.raises(UnsupportedModel, match=f"'{arch}'.*llama, qwen2, qwen3"):
            read(path)


def test_an_output_matrix_unties_the_embeddings(tmp_path):
    tensors = {"output.weight": np.ones((VOCAB, HIDDEN), np.float32)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors=tensors))
    assert checkpoint.config["tie_word_embeddings"] is False
    assert checkpoint.weights["lm_head.weight"].shape == (VOCAB, HIDDEN)


def test_rope_factors_reach_the_configuration_and_not_the_weights(tmp_path):
    factors = np.linspace(1, 32, HEAD_DIM // 2, dtype=np.float32)
    path = write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": factors})
    checkpoint = open_checkpoint(path)
    assert checkpoint.config["rope_scaling"] == {
        "rope_type": "factors",
        "factors": factors.tolist(),
    }
    assert not [name for name in checkpoint.weights if "rope" in name]


@pytest.mark.parametrize("factors", [np.ones(7), np.zeros(32), np.full(32, np.nan)])
def test_rope_factors_that_cannot_be_are_damage(factors, tmp_path):
    tensors = {"rope_freqs.weight": factors.astype(np.float32)}
    with pytest.raises(DamagedFile, match="rope_freqs"):
        read_config(write_gguf(tmp_path / "m.gguf", tensors=tensors))


def test_rope_scaling_of_the_metadata_is_kept(tmp_path):
    def extra(writer):
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(128)

    assert read_config(write_gguf(tmp_path / "m.gguf", extra=extra))["rope_scaling"] == {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
    }


def test_head_dim_may_differ_from_hidden_size_over_heads(tmp_path):
    path = write_gguf(
        tmp_path / "m.gguf", arch="qwen3", extra=lambda writer: writer.add_key_length(128)
    )
    assert read_config(path)["head_dim"] == 128


def test_a_partly_rotated_head_is_refused(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", extra=lambda writer: writer.add_rope_dimension_count(32))
    with pytest.raises(UnsupportedModel, match="rotates 32 of 64"):
        read_config(path)


def test_per_layer_numbers_are_taken_when_equal_and_refused_when_not(tmp_path):
    def sizes(values):
        return lambda writer: writer.add_array("llama.attention.sliding_window", values)

    same = write_gguf(tmp_path / "same.gguf", extra=sizes([32, 32]))
    assert read_config(same)["sliding_window"] == 32
    with pytest.raises(UnsupportedModel, match="sliding_window differs between layers"):
        read_config(write_gguf(tmp_path / "mixed.gguf", extra=sizes([32, 64])))


def test_a_projection_of_another_height_is_damage(tmp_path):
    tensors = {"blk.0.attn_q.weight": np.ones((128, HIDDEN), np.float32)}
    with pytest.raises(DamagedFile, match="attn_q.weight has 128 rows, not 256"):
        open_checkpoint(write_gguf(tmp_path / "m.gguf", tensors=tensors))


def rotate(x, pairs, position):
    """x (heads, d) with dimensions pairs[i] = (a, b) turned by position * 10000 ** (-2i / d)."""
    out = x.copy()
    for i, (a, b) in enumerate(pairs):
        angle = position * 10000.0 ** (-2 * i / x.shape[1])
        c, s = np.cos(angle), np.sin(angle)
        out[:, a] = x[:, a] * c - x[:, b] * s
        out[:, b] = x[:, a] * s + x[:, b] * c
    return out


def scores(q, k, pairs):
    q, k = rotate(q, pairs, 11), rotate(k, pairs, 3)
    return np.einsum("hd,hd->h", q, np.repeat(k, HEADS // KV_HEADS, axis=0))


NEIGHBOURS = [(2 * i, 2 * i + 1) for i in range(HEAD_DIM // 2)]
HALVES = [(i, i + HEAD_DIM // 2) for i in range(HEAD_DIM // 2)]


def dense(checkpoint, module):
    weights = checkpoint.weights
    if f"{module}.scales" not in weights:
        return np.array(weights[f"{module}.weight"])
    settings = checkpoint.config["quantization"]
    layout = settings.get(module) or settings
    parts = (weights[f"{module}.{part}"] for part in ("weight", "scales", "biases"))
    packed, scales, biases = parts
    return np.array(
        mx.dequantize(
            packed,
            scales.astype(mx.float32),
            biases.astype(mx.float32),
            group_size=layout["group_size"],
            bits=layout["bits"],
        )
    )


@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q4_1", "Q8_0", "Q6_K"])
def test_llama_rows_give_the_scores_that_neighbour_rope_gives_in_the_file(kind, tmp_path):
    bias = np.random.default_rng(5).normal(size=HEADS * HEAD_DIM).astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", kind=kind, tensors={"blk.0.attn_q.bias": bias})
    stored = {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        for tensor in gguf.GGUFReader(path).tensors
    }
    checkpoint = open_checkpoint(path)
    x = np.random.default_rng(7).normal(size=HIDDEN)
    q = (stored["blk.0.attn_q.weight"] @ x + bias).reshape(HEADS, HEAD_DIM)
    k = (stored["blk.0.attn_k.weight"] @ x).reshape(KV_HEADS, HEAD_DIM)
    attention = "model.layers.0.self_attn"
    our_bias = np.array(checkpoint.weights[f"{attention}.q_proj.bias"])
    our_q = (dense(checkpoint, f"{attention}.q_proj") @ x + our_bias).reshape(HEADS, HEAD_DIM)
    our_k = (dense(checkpoint, f"{attention}.k_proj") @ x).reshape(KV_HEADS, HEAD_DIM)
    tolerance = 2e-2 if kind == "Q6_K" else 1e-5
    want = scores(q, k, NEIGHBOURS)
    np.testing.assert_allclose(
        scores(our_q, our_k, HALVES), want, atol=tolerance * np.abs(want).max()
    )
    assert checkpoint.config["attention_bias"] is True


@pytest.mark.parametrize("arch", ["qwen2", "qwen3"])
def test_other_architectures_keep_their_rows(arch, tmp_path):
    checkpoint = open_checkpoint(write_gguf(tmp_path / "m.gguf", arch=arch))
    np.testing.assert_array_equal(
        dense(checkpoint, "model.layers.0.self_attn.q_proj"),
        tiny_tensors()["blk.0.attn_q.weight"],
    )


def test_mixed_types_are_described_as_in_mlx_repositories(tmp_path):
    tensors = {"token_embd.weight": np.zeros((VOCAB, HIDDEN), np.float16)}
    path = write_gguf(tmp_path / "m.gguf", kind="Q4_1", tensors=tensors)
    assert open_checkpoint(path).config["quantization"] == {
        "group_size": 32,
        "bits": 4,
        "model.embed_tokens": False,
    }


def test_faults_of_tensors_and_tokenizers_name_the_file(tmp_path):
    def extra(writer):
        writer.kv_data[0]["tokenizer.ggml.pre"].value = "bloom"

    path = write_gguf(tmp_path / "m.gguf", extra=extra)
    with pytest.raises(UnsupportedModel, match=r"m\.gguf: the pre-tokenizer 'bloom'"):
        open_checkpoint(path)


def test_an_unquantized_file_has_no_quantization(tiny):
    assert "quantization" not in open_checkpoint(tiny).config
