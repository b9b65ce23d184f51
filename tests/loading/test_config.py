import pytest

from edgekv.errors import DamagedFile, UnsupportedModel
from edgekv.loading.config import NUMBERS, checked, read_json, token_ids
from tests.loading.files import tiny_config


def test_defaults_and_derived_numbers_are_filled_in(tmp_path):
    config = checked(tiny_config(num_key_value_heads=None, head_dim=None), tmp_path)
    assert config["num_key_value_heads"] == 2
    assert config["head_dim"] == 32
    assert config["tie_word_embeddings"] is False
    assert config["rms_norm_eps"] == 1e-6
    assert config["eos_token_id"] == [258]


@pytest.mark.parametrize("key", NUMBERS)
@pytest.mark.parametrize("value", [-1, "64", True, float("nan"), float("inf"), 10**30, [64]])
def test_a_number_out_of_range_is_damage_that_names_its_key(key, value, tmp_path):
    with pytest.raises(DamagedFile, match=key):
        checked(tiny_config(**{key: value}), tmp_path)


@pytest.mark.parametrize("value", [1.5, 0, 0.0])
def test_a_size_is_a_whole_number_above_zero(value, tmp_path):
    with pytest.raises(DamagedFile, match="hidden_size"):
        checked(tiny_config(hidden_size=value), tmp_path)


@pytest.mark.parametrize(
    "key", ["hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"]
)
def test_a_missing_number_is_named(key, tmp_path):
    config = tiny_config()
    del config[key]
    with pytest.raises(DamagedFile, match=f"llama configuration without {key}"):
        checked(config, tmp_path)


def test_a_model_type_that_is_not_known_is_passed_on_for_the_models_to_refuse(tmp_path):
    assert checked({"model_type": "mamba", "head_dim": [1]}, tmp_path)["model_type"] == "mamba"


@pytest.mark.parametrize("value", [None, 3, "x" * 65])
def test_a_configuration_needs_a_model_type(value, tmp_path):
    with pytest.raises(DamagedFile, match="no model_type"):
        checked(tiny_config(model_type=value), tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 3},
        {"num_key_value_heads": 3},
        {"tie_word_embeddings": "yes"},
        {"rope_scaling": 3},
        {"rope_scaling": {"factor": float("inf")}},
        {"rope_scaling": {"rope_type": "factors", "factors": [1.0, float("nan")]}},
    ],
)
def test_settings_that_contradict_are_damage(changes, tmp_path):
    with pytest.raises(DamagedFile):
        checked(tiny_config(**changes), tmp_path)


def test_newer_rope_parameters_take_the_older_form(tmp_path):
    parameters = {"rope_theta": 5e5, "rope_type": "llama3", "factor": 8.0}
    config = checked(tiny_config(rope_parameters=parameters), tmp_path)
    assert config["rope_theta"] == 5e5
    assert config["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0}
    assert "rope_parameters" not in config


def test_an_older_rope_type_is_renamed(tmp_path):
    config = checked(tiny_config(rope_scaling={"type": "linear", "factor": 2.0}), tmp_path)
    assert config["rope_scaling"] == {"rope_type": "linear", "factor": 2.0}


def test_a_window_that_is_switched_off_is_left_out(tmp_path):
    config = tiny_config(sliding_window=64)
    assert checked(config, tmp_path)["sliding_window"] == 64
    assert "sliding_window" not in checked(config | {"use_sliding_window": False}, tmp_path)


def test_quantization_keeps_its_overrides(tmp_path):
    layout = {"group_size": 64, "bits": 4, "lm_head": {"group_size": 64, "bits": 8}, "x": False}
    assert checked(tiny_config(quantization=layout), tmp_path)["quantization"] == layout


def test_quantization_config_alone_is_taken_when_it_is_mlx_own(tmp_path):
    layout = {"group_size": 64, "bits": 4}
    assert checked(tiny_config(quantization_config=layout), tmp_path)["quantization"] == layout


@pytest.mark.parametrize(
    "changes",
    [
        {"quantization": {"group_size": 64, "bits": 7}},
        {"quantization": {"group_size": 65, "bits": 4}},
        {"quantization": {"bits": 4}},
        {"quantization": [4]},
        {"quantization": {"group_size": 64, "bits": 4, "lm_head": {"bits": 99}}},
        {"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 128}},
        {"quantization_config": "awq"},
    ],
)
def test_quantization_of_another_kind_is_refused(changes, tmp_path):
    with pytest.raises(UnsupportedModel, match="quantiz"):
        checked(tiny_config(**changes), tmp_path)


@pytest.mark.parametrize(("value", "ids"), [(None, []), (2, [2]), ([3, 1, 3], [1, 3]), ([], [])])
def test_end_ids_are_one_or_many(value, ids, tmp_path):
    assert token_ids(value, tmp_path) == ids


@pytest.mark.parametrize("value", ["2", [1, "x"], -1, [True], 1 << 40, list(range(2000))])
def test_end_ids_that_are_no_ids_are_damage(value, tmp_path):
    with pytest.raises(DamagedFile, match="token ids"):
        token_ids(value, tmp_path)


@pytest.mark.parametrize("text", ["", "{", "[]", "3", "[" * 100_000, "\xff"])
def test_what_is_not_a_json_object_is_damage(text, tmp_path):
    path = tmp_path / "config.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(DamagedFile, match="config.json"):
        read_json(path)
