import gguf
import mlx.core as mx
import numpy as np
import pytest

from edgekv.loading import open_checkpoint, read_config
from edgekv.loading.gguf_names import row_order

pytestmark = pytest.mark.model
GGUF_NAMES = {
    "token_embd": "model.embed_tokens",
    "blk.0.attn_q": "model.layers.0.self_attn.q_proj",
    "blk.13.attn_k": "model.layers.13.self_attn.k_proj",
    "blk.29.ffn_down": "model.layers.29.mlp.down_proj",
}


@pytest.fixture(scope="module")
def checkpoint(default_model):
    return open_checkpoint(default_model)


@pytest.fixture(scope="module")
def stored(default_model):
    return {tensor.name: tensor for tensor in gguf.GGUFReader(default_model).tensors}


def test_its_configuration_is_that_of_the_published_model(default_model):
    config = read_config(default_model)
    assert (
        config
        | {
            "model_type": "llama",
            "hidden_size": 576,
            "intermediate_size": 1536,
            "num_hidden_layers": 30,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 64,
            "rope_theta": 100000.0,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 8192,
            "vocab_size": 49152,
            "tie_word_embeddings": True,
        }
        == config
    )


def test_it_stays_packed(checkpoint):
    layout = {"group_size": 32, "bits": 4, "model.embed_tokens": {"group_size": 32, "bits": 8}}
    assert checkpoint.config["quantization"] == layout
    assert sum(array.nbytes for array in checkpoint.weights.values()) < 110e6


@pytest.mark.parametrize("name", GGUF_NAMES)
def test_its_weights_are_those_the_gguf_package_dequantizes(name, checkpoint, stored):
    tensor = stored[f"{name}.weight"]
    want = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
    module = GGUF_NAMES[name]
    order = row_order(f"{module}.weight", checkpoint.config)
    want = want if order is None else want[order]
    packed, scales, biases = (
        checkpoint.weights[f"{module}.{part}"] for part in ("weight", "scales", "biases")
    )
    bits = 8 if name == "token_embd" else 4
    found = mx.dequantize(
        packed, scales.astype(mx.float32), biases.astype(mx.float32), group_size=32, bits=bits
    )
    np.testing.assert_array_equal(np.array(found), want)


def test_its_turns_end_with_im_end(checkpoint):
    tokenizer = checkpoint.tokenizer
    assert tokenizer.encode("<|im_end|>") == [2]
    assert {0, 2} == tokenizer.eos_ids == set(checkpoint.config["eos_token_id"])


def test_its_template_frames_a_question(checkpoint):
    template = checkpoint.tokenizer.chat_template
    prompt = template.render([{"role": "user", "content": "Hi"}])
    assert prompt.startswith("<|im_start|>system\nYou are a helpful AI assistant")
    assert prompt.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
