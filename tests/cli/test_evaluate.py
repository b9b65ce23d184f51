"""`edgekv eval` as its user meets it, on a random model of two layers."""

import json
import signal
import subprocess
import sys

import pytest

from tests.loading.files import write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", layers=2)


@pytest.fixture
def measure(edgekv, tiny):
    def measure(what, *args):
        result = edgekv("eval", what, "-m", tiny, *args, "--json")
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return measure


def test_perplexity_by_position(measure):
    found = measure("ppl", "--tokens", 1000, "--window", 128, "--fresh")
    assert found["tokens"] == 999 and found["ppl"] > 1 and found["nll"] > 0
    assert found["by_position"][0][:2] == [1, 127] and found["by_position"][-1][1] == 999
    assert found["fresh"][0][0] == 256
    policy = found["policy"]
    assert (policy["window"], policy["layers"][0]["k_bits"]) == (128, 4)


def test_sixteen_bits_do_not_diverge_and_two_do(measure):
    exact = measure("kld", "--kv-bits", 16, "--tokens", 400)
    assert abs(exact["kld_mean"]) < 1e-6 and exact["top1"] == 1 and exact["tokens"] == 399
    rough = measure("kld", "--kv-bits", 2, "--tokens", 400)
    assert rough["kld_p99"] >= rough["kld_mean"] > 10 * abs(exact["kld_mean"])
    assert rough["ppl_ref"] == pytest.approx(exact["ppl"])


def test_needles_outside_the_window_are_declared_evicted(measure):
    found = measure("needle", "--tokens", 700, "--window", 512)
    assert (found["asked"], found["evicted"]) == (6, 3)
    assert [row["depth"] for row in found["by_depth"]] == [0.1, 0.5, 0.9]
    assert [row["evicted"] for row in found["by_depth"]] == [3, 0, 0]


def test_text_for_people(edgekv, tiny, tmp_path):
    words = tmp_path / "words.txt"
    words.write_text("One two three four five. " * 100)
    result = edgekv("eval", "ppl", "-m", tiny, "--file", words, "--tokens", 500)
    assert result.returncode == 0, result.stderr
    assert "PERPLEXITY" in result.stdout and "keys 4 and values 4 bits" in result.stdout
    assert "ppl: 500 of 500" in result.stderr


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--file", "nowhere.txt"], "--file nowhere.txt: cannot be read"),
        (["--tokens", "999999"], "give a longer --file"),
        (["--kv-bits", "5"], "--kv-bits: expected one of"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_one_line(edgekv, tiny, args, message):
    result = edgekv("eval", "kld", "-m", tiny, *args)
    assert result.returncode == 2 and message in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mean-bits", "99"], "--mean-bits: expected a number from 2 to 8, got 99"),
        (["--mean-bits", "nan"], "--mean-bits: expected a number from 2 to 8, got nan"),
        (["--mean-bits", "3", "--out", "no/where.toml"], "there is no folder no"),
        (["--kv-budget", "1kB"], "below the"),
    ],
)
def test_a_hopeless_division_is_refused_before_it_is_measured(edgekv, tiny, args, message):
    result = edgekv("eval", "tune", "-m", tiny, *args)
    assert result.returncode in (2, 4) and message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_an_interrupted_measurement_goes_on(edgekv, tiny, tmp_path, home):
    words = tmp_path / "words.txt"
    words.write_text("One two three four five six seven. " * 30_000)
    command = ["eval", "ppl", "-m", str(tiny), "--file", str(words), "--tokens", "200000"]
    command += ["--window", "128", "--json"]
    running = subprocess.Popen(
        [sys.executable, "-m", "edgekv", *command], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert running.stderr.readline().startswith(b"ppl: ")
    running.send_signal(signal.SIGINT)
    out, err = running.communicate(timeout=60)
    assert running.returncode == 130 and out == b"", err
    assert b"the same command goes on from here" in err
    assert len(list((home / "data" / "evaluations").iterdir())) == 1


def test_tuned_bits_are_written_compared_and_used(measure, edgekv, tiny, tmp_path):
    path = tmp_path / "bits.toml"
    found = measure("tune", "--mean-bits", 3.25, "--tokens", 200, "--out", path)
    assert [row["layer"] for row in found["layers"]] == [0, 1]
    assert [row["name"] for row in found["compared"]] == ["tuned", "K3V3", "K4V4"]
    assert found["compared"][0]["mean_bits"] <= 3.25
    bytes_planned = found["policy"]["bytes"]
    ran = edgekv(
        "run", "-m", tiny, "--kv-policy", path, "--max-tokens", 2, "--json", "word",
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert json.loads(ran.stdout)["kv"]["bytes"] == bytes_planned


def test_a_budget_in_bytes_is_kept_by_the_tuned_policy(measure):
    found = measure("tune", "--kv-budget", "200kB", "--window", 256, "--tokens", 200)
    assert found["policy"]["bytes"] <= 200_000 and found["policy"]["window"] == 256


def test_tune_needs_one_budget(edgekv, tiny):
    for args in ([], ["--mean-bits", "3", "--kv-budget", "1MB"]):
        result = edgekv("eval", "tune", "-m", tiny, *args)
        assert result.returncode == 2 and "either --kv-budget or --mean-bits" in result.stderr


def test_bits_by_layer_and_bits_for_all_contradict_each_other(edgekv, tiny, tmp_path, home):
    path = tmp_path / "bits.toml"
    path.write_text("k_bits = [8, 4]\nv_bits = 4\n")
    both = edgekv("plan", tiny, "--kv-policy", path, "--kv-bits", 4)
    assert both.returncode == 2 and "kv_policy has the bits of each layer" in both.stderr
    home.mkdir()
    (home / "config.toml").write_text(f"kv_policy = {json.dumps(str(path))}\n")
    layers = json.loads(edgekv("plan", tiny, "--json").stdout)["chosen"]["layers"]
    assert [row["k_bits"] for row in layers] == [8, 4]
    layers = json.loads(edgekv("plan", tiny, "--json", "--kv-bits", 3).stdout)["chosen"]["layers"]
    assert [row["k_bits"] for row in layers] == [3]
