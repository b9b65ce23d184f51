"""One policy, whatever the model: each family answers the same requests in the same way."""

import importlib

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from edgekv.engine import Engine
from edgekv.models import ARCHITECTURES
from tests.loading.files import tiny_config, write_folder, write_json
from tests.server.conftest import check_error, serving

CHATML = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"


def random_model(folder, kind):
    """A model folder of one family, as published, with a chat template."""
    config = tiny_config(
        model_type=kind, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-5, rope_theta=10000.0
    )
    family = importlib.import_module(ARCHITECTURES[kind])
    model = family.Model(family.ModelArgs.from_config(config))
    mx.random.seed(1)
    weights = {
        name: mx.random.normal(array.shape, scale=0.05) + ("norm" in name)
        for name, array in tree_flatten(model.parameters())
    }
    write_folder(folder, config, weights)
    write_json(folder / "tokenizer_config.json", {"chat_template": CHATML})
    return folder


@pytest.fixture(params=ARCHITECTURES)
def family(request, tmp_path):
    with Engine(random_model(tmp_path / "model", request.param)) as engine, serving(engine) as it:
        yield it


def test_a_request_over_the_window_gets_the_same_answer_from_every_family(family):
    long = "word " * 700
    refused = check_error(
        family.chat(long, edgekv={"overflow": "error"}), 400, "context_length_exceeded", "messages"
    )
    assert "n_ctx=516" in refused["message"]
    rolled = family.chat(long, max_tokens=3).json()
    assert set(rolled) == {
        "id", "object", "created", "model", "system_fingerprint", "choices", "usage", "edgekv",
    }  # fmt: skip
    assert rolled["edgekv"]["evicted_tokens"] > 0
    assert family.chat("hi", max_tokens=3).json()["usage"]["completion_tokens"] == 3
