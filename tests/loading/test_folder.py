import json
import struct

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgekv.errors import DamagedFile, EdgekvError, ModelNotFound, UnsupportedModel
from edgekv.loading import open_checkpoint, read_config
from tests.loading.files import tiny_config, write_folder, write_json

MODULE = "model.layers.0.mlp.up_proj"


def quantized(bits=4, group_size=64):
    names = ("weight", "scales", "biases")
    parts = mx.quantize(mx.random.normal((128, 64)), group_size=group_size, bits=bits)
    return {f"{MODULE}.{name}": part for name, part in zip(names, parts, strict=True)}


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_a_plain_folder_is_loaded_as_it_is(dtype, tmp_path):
    weights = {"model.norm.weight": mx.random.normal((64,)).astype(dtype)}
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", weights=weights))
    assert checkpoint.path == tmp_path / "m"
    found = checkpoint.weights["model.norm.weight"]
    assert found.dtype == dtype and mx.array_equal(found, weights["model.norm.weight"])
    assert checkpoint.tokenizer.encode("the") and "quantization" not in checkpoint.config


def test_an_mlx_folder_keeps_its_packed_weights(tmp_path):
    weights = quantized(bits=8)
    layout = {"group_size": 64, "bits": 4, MODULE: {"group_size": 64, "bits": 8}}
    config = tiny_config(quantization=layout)
    checkpoint = open_checkpoint(write_folder(tmp_path / "m", config, weights))
    assert checkpoint.config["quantization"] == layout
    for name, array in weights.items():
        assert mx.array_equal(checkpoint.weights[name], array)


def broken(name):
    weights = quantized()
    shape = weights[f"{MODULE}.scales"].shape
    changes = {
        "no weight": lambda: weights.pop(f"{MODULE}.weight"),
        "other bits": lambda: weights.update(quantized(bits=8)),
        "other groups": lambda: weights.update(quantized(group_size=32)),
        "floats": lambda: weights.update({f"{MODULE}.weight": mx.zeros((128, 8))}),
        "flat": lambda: weights.update({f"{MODULE}.scales": mx.zeros(shape[0])}),
    }
    changes[name]()
    return weights


@pytest.mark.parametrize("name", ["no weight", "other bits", "other groups", "floats", "flat"])
def test_packed_weights_that_do_not_fit_the_configuration_are_damage(name, tmp_path):
    config = tiny_config(quantization={"group_size": 64, "bits": 4})
    with pytest.raises(DamagedFile, match="up_proj"):
        open_checkpoint(write_folder(tmp_path / "m", config, broken(name)))


def test_packed_weights_need_a_quantization_entry(tmp_path):
    with pytest.raises(DamagedFile, match="no quantization"):
        open_checkpoint(write_folder(tmp_path / "m", weights=quantized()))


def sharded(folder, index=True):
    write_folder(folder)
    (folder / "model.safetensors").unlink()
    names = [f"model-{i:05}-of-00002.safetensors" for i in (1, 2)]
    for i, name in enumerate(names):
        mx.save_safetensors(str(folder / name), {f"t{i}": mx.full((2,), i)})
    if index:
        weight_map = {f"t{i}": name for i, name in enumerate(names)}
        write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    return folder


@pytest.mark.parametrize("index", [True, False])
def test_shards_are_joined(index, tmp_path):
    weights = open_checkpoint(sharded(tmp_path / "m", index)).weights
    assert {name: array.tolist() for name, array in weights.items()} == {"t0": [0, 0], "t1": [1, 1]}


@pytest.mark.parametrize("index", [True, False])
def test_a_missing_shard_is_named(index, tmp_path):
    folder = sharded(tmp_path / "m", index)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(DamagedFile, match="model-00002-of-00002.safetensors is missing"):
        open_checkpoint(folder)


def test_a_tensor_that_the_index_promises_must_be_there(tmp_path):
    folder = sharded(tmp_path / "m")
    weight_map = {
        "t0": "model-00001-of-00002.safetensors",
        "t9": "model-00002-of-00002.safetensors",
    }
    write_json(folder / "model.safetensors.index.json", {"weight_map": weight_map})
    with pytest.raises(DamagedFile, match="'t9'"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "name", ["../m2/model.safetensors", "/etc/passwd", "..", "", "a/b", "a\\b", 3, None]
)
def test_an_index_cannot_name_files_outside_the_folder(name, tmp_path):
    folder = sharded(tmp_path / "m")
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"t0": name}})
    with pytest.raises(DamagedFile):
        open_checkpoint(folder)


@pytest.mark.parametrize("value", [{}, {"weight_map": []}, {"weight_map": {}}])
def test_an_index_needs_a_weight_map(value, tmp_path):
    folder = sharded(tmp_path / "m")
    write_json(folder / "model.safetensors.index.json", value)
    with pytest.raises(DamagedFile, match="weight_map"):
        open_checkpoint(folder)


def test_derived_tensors_are_dropped(tmp_path):
    weights = {"model.layers.0.self_attn.rotary_emb.inv_freq": mx.ones(4), "x": mx.ones(1)}
    assert set(open_checkpoint(write_folder(tmp_path / "m", weights=weights)).weights) == {"x"}


def test_end_ids_are_the_union_of_both_configurations_and_the_tokenizer(tmp_path):
    folder = write_folder(tmp_path / "m", tiny_config(eos_token_id=10))
    write_json(folder / "generation_config.json", {"eos_token_id": [11, 12]})
    write_json(folder / "tokenizer_config.json", {"eos_token": "<|im_end|>"})
    ends = {"<|endoftext|>": 261, "<|im_end|>": 263}
    assert read_config(folder)["eos_token_id"] == [10, 11, 12]
    checkpoint = open_checkpoint(folder)
    assert checkpoint.config["eos_token_id"] == sorted([10, 11, 12, *ends.values()])
    assert checkpoint.tokenizer.eos_ids == {10, 11, 12, *ends.values()}


@pytest.mark.parametrize("read", [open_checkpoint, read_config])
def test_a_missing_folder_is_a_missing_model(read, tmp_path):
    with pytest.raises(ModelNotFound):
        read(tmp_path / "none")


@pytest.mark.parametrize("read", [open_checkpoint, read_config])
def test_a_folder_without_configuration_is_no_model(read, tmp_path):
    with pytest.raises(DamagedFile, match=r"has no config\.json"):
        read(tmp_path)


def test_a_gguf_file_in_such_a_folder_is_suggested(tmp_path):
    (tmp_path / "x.gguf").touch()
    with pytest.raises(DamagedFile, match=r"did you mean .*x\.gguf"):
        read_config(tmp_path)


def test_a_folder_without_safetensors_is_refused(tmp_path):
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UnsupportedModel, match="safetensors"):
        open_checkpoint(folder)


def test_a_folder_without_tokenizer_is_damage(tmp_path):
    with pytest.raises(DamagedFile, match="tokenizer.json nor tokenizer.model"):
        open_checkpoint(write_folder(tmp_path / "m", tokenizer=False))


def info(dtype="F32", shape=(2,), offsets=(0, 8)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


def safetensors(header, data=bytes(8)):
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


DAMAGED = {
    "empty": b"",
    "a length alone": bytes(8),
    "header longer than the file": struct.pack("<Q", 1 << 40) + b"{}",
    "no json": safetensors(b"\xff\xff\xff"),
    "a list": safetensors([]),
    "nested": safetensors(b"[" * 100_000),
    "no info": safetensors({"t": 3}),
    "no shape": safetensors({"t": {"dtype": "F32"}}),
    "negative shape": safetensors({"t": info(shape=(-2,))}),
    "huge shape": safetensors({"t": info(shape=(1 << 47, 1 << 47))}),
    "offsets that do not fit": safetensors({"t": info(offsets=(0, 4))}),
    "offsets backwards": safetensors({"t": info(offsets=(8, 0))}),
    "three offsets": safetensors({"t": info(offsets=(0, 8, 8))}),
    "data missing": safetensors({"t": info()}, bytes(4)),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_weights_are_named_with_the_file(name, tmp_path):
    folder = write_folder(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(DAMAGED[name])
    with pytest.raises(DamagedFile, match="model.safetensors"):
        open_checkpoint(folder)


def test_a_type_without_a_place_in_mlx_is_refused(tmp_path):
    folder = write_folder(tmp_path / "m")
    raw = safetensors({"t": info("F8_E4M3", (8,), (0, 8))})
    (folder / "model.safetensors").write_bytes(raw)
    with pytest.raises(UnsupportedModel, match="F8_E4M3"):
        open_checkpoint(folder)


def test_every_truncation_of_the_weights_is_noticed(tmp_path):
    folder = write_folder(tmp_path / "m", weights={"a": mx.ones((8, 8)), "b": mx.ones(3)})
    raw = (folder / "model.safetensors").read_bytes()
    for length in range(len(raw)):
        (folder / "model.safetensors").write_bytes(raw[:length])
        with pytest.raises(DamagedFile):
            open_checkpoint(folder)


FILES = ("config.json", "model.safetensors", "tokenizer.json", "generation_config.json")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = write_folder(tmp_path_factory.mktemp("fuzz") / "m")
    write_json(folder / "generation_config.json", {"eos_token_id": [1]})
    return folder, {name: (folder / name).read_bytes() for name in FILES}


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    name=st.sampled_from(FILES),
    changes=st.lists(st.tuples(st.integers(0, 1 << 16), st.integers(0, 255)), max_size=6),
    cut=st.integers(0, 1 << 16) | st.none(),
)
def test_changed_files_raise_nothing_but_our_own_errors(whole, name, changes, cut):
    folder, originals = whole
    raw = bytearray(originals[name])
    for at, value in changes:
        raw[at % len(raw)] = value
    (folder / name).write_bytes(raw[:cut])
    try:
        checkpoint = open_checkpoint(folder)
        mx.eval(checkpoint.weights)
        checkpoint.tokenizer.decode(checkpoint.tokenizer.encode("the end"))
    except EdgekvError as fault:
        assert "\n" not in str(fault)
    finally:
        (folder / name).write_bytes(originals[name])


def test_numbers_survive_the_way_through_a_quantized_folder(tmp_path):
    weights = quantized()
    config = tiny_config(quantization={"group_size": 64, "bits": 4})
    found = open_checkpoint(write_folder(tmp_path / "m", config, weights)).weights
    np.testing.assert_array_equal(
        *(
            np.array(mx.dequantize(*[w[f"{MODULE}.{k}"] for k in ("weight", "scales", "biases")]))
            for w in (found, weights)
        )
    )
