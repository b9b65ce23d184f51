"""`edgekv plan` as its user meets it."""

import json
import subprocess

import pytest

from edgekv import catalog
from tests.loading.files import tiny_config, write_folder, write_gguf


def planned(edgekv, *args):
    result = edgekv("plan", *args, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_every_model_of_the_catalog_is_planned_without_a_download(edgekv):
    for alias, entry in catalog.builtin().items():
        found = planned(edgekv, alias)
        assert found["model"] == alias
        assert found["weights"]["stored"] == entry.weight_bytes
        assert found["bytes_per_token"]["4"] == entry.kv_bytes_per_token()


def test_text_says_what_is_advised_and_why(edgekv):
    text = edgekv("plan", "qwen2.5-3b").stdout
    assert "131,072 *" in text and "longer than the model was trained on" in text
    assert "keys 8 and values 4 bits" in text and "key bias" in text
    assert "where a whole long text must be recalled" in text


def test_a_chip_gets_a_prediction_from_its_bandwidth(edgekv):
    (row,) = planned(edgekv, "llama-3.2-3b", "--hardware", "m4-max")["predicted"]
    assert row["chip"] == "M4 Max" and row["gb_per_s"] == 546
    nbytes = row["weight_nbytes"] + row["kv_nbytes"]
    assert row["ms_per_token"] == pytest.approx(nbytes / 546e6)
    smaller = planned(edgekv, "llama-3.2-3b", "--hardware", "M4 Max", "--window", 512)
    assert smaller["predicted"][0]["kv_nbytes"] < row["kv_nbytes"]
    assert "predicted" not in planned(edgekv, "llama-3.2-3b")


def test_all_chips_are_predicted_and_it_is_said_that_nothing_was_measured(edgekv):
    text = edgekv("plan", "smollm2-135m", "--hardware", "all").stdout
    assert "predicted, not measured" in text
    assert "M1, 68 GB/s" in text and "M5 Max, 614 GB/s" in text


def test_an_unknown_chip_is_a_usage_error(edgekv):
    result = edgekv("plan", "smollm2-135m", "--hardware", "H100")
    assert result.returncode == 2 and "M5 Max, got 'H100'" in result.stderr


def test_a_budget_chooses_the_window(edgekv):
    found = planned(edgekv, "smollm2-135m", "--kv-budget", "10MB")
    longer = found["chosen"]["window"] + 1
    assert found["chosen"]["bytes"] <= 10_000_000
    assert planned(edgekv, "smollm2-135m", "--window", longer)["chosen"]["bytes"] > 10_000_000


def test_what_does_not_fit_is_said(edgekv):
    result = edgekv("plan", "smollm2-135m", "--kv-budget", "1MB")
    assert result.returncode == 4 and "raise --kv-budget" in result.stderr
    huge = planned(edgekv, "qwen3-4b", "--window", 10**8)
    assert huge["chosen"]["fits"] is False


def test_a_model_that_is_nowhere_is_refused(edgekv):
    result = edgekv("plan", "someone/something")
    assert result.returncode == 3 and "pull it first" in result.stderr


def test_a_folder_is_planned_from_its_configuration(edgekv, tmp_path):
    folder = write_folder(tmp_path / "tiny", tiny_config(head_dim=80))
    found = planned(edgekv, folder, "--kv-bits", "16")
    assert list(found["bytes_per_token"]) == ["16"]
    assert found["attention"]["context"] == 512


OPTIONS = (
    (),
    ("--window", 200, "--n-sink", 0),
    ("--k-bits", 3, "--v-bits", 2, "--window", 300),
    ("--kv-bits", 16, "--kv-budget", "2MB"),
)


@pytest.mark.parametrize("options", OPTIONS)
def test_a_run_takes_the_bytes_that_were_planned(edgekv, tmp_path, options):
    model = write_gguf(tmp_path / "tiny.gguf", layers=2)
    chosen = planned(edgekv, model, *options)["chosen"]
    ran = edgekv(
        "run", "-m", model, *options, "--max-tokens", 4, "--json", "word", stdin=subprocess.DEVNULL
    )
    kv = json.loads(ran.stdout)["kv"]
    assert kv["bytes"] == kv["peak_bytes"] == kv["budget_bytes"] == chosen["bytes"]


@pytest.mark.model
def test_a_pinned_system_message_is_planned_too(edgekv, default_model):
    system = "Answer in one word. " * 40
    ran = edgekv(
        "run", "-m", default_model, "--system", system, "--max-tokens", 2, "--json", "Hi",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    kv = json.loads(ran.stdout)["kv"]
    assert kv["pinned"] > 0
    chosen = planned(edgekv, default_model, "--pinned", kv["pinned"])["chosen"]
    assert (chosen["pinned"], chosen["bytes"]) == (kv["pinned"], kv["bytes"])
