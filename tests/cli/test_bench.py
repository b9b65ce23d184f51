"""`edgekv bench` as its user meets it, on a random model of two layers."""

import importlib.util
import json

import pytest

from edgekv.benchmark import contest
from edgekv.errors import EdgekvError, InvalidValue
from edgekv.metal.device import has_metal
from tests.loading.files import write_gguf


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("tiny") / "tiny.gguf", layers=2)


@pytest.fixture
def bench(edgekv, tiny):
    def bench(*args):
        result = edgekv("bench", "-m", tiny, "--json", *args)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return bench


def test_rows_for_each_bits_and_context(bench):
    found = bench("--rounds", 1, "--context", 128, "--context", 200, "--window", 128)
    names = [(row["name"], row["context"]) for row in found["rows"]]
    assert names == [(f"edgekv, K{b}V{b}", n) for b in (16, 8, 4) for n in (128, 200)]
    sizes = [row["kv_bytes"] for row in found["rows"]]
    assert sizes == sorted(sizes, reverse=True)
    for row in found["rows"]:
        assert row["prefill_tps"] > 0 and row["decode_tps"] > 0
        assert row["peak_bytes"] > row["kv_bytes"]
        assert len(row["samples"]["decode_tps"]) == found["rounds"] == 1
    kept = found["resume"]
    assert kept["context"] == 200 and 100 < kept["cached_tokens"] < 200
    assert kept["cold_s"] > 0 and kept["resumed_s"] > 0
    assert found["host"]["cores"] >= 1 and found["host"]["edgekv"]


def test_mlx_lm_runs_beside_it_and_a_stream_is_timed_at_both_ends(bench):
    options = ("--rounds", 1, "--context", 128, "--window", 128, "--kv-bits", 4)
    found = bench(*options, "--against", "mlx-lm", "--stream", 900)
    names = [row["name"] for row in found["rows"]]
    assert names[0] == "edgekv, K4V4" and names[1:3] == ["mlx-lm", "mlx-lm, 4-bit KV"]
    assert all(row["decode_tps"] > 0 for row in found["rows"])
    assert found["host"]["mlx-lm"]
    flat = found["flat"]
    first, last = flat["positions"]
    # At the same place of a block, for the work differs along it.
    assert 128 < first < last <= 900 and (last - first) % 64 == 0
    assert flat["ratio"] == pytest.approx(flat["token_ms"][1] / flat["token_ms"][0])
    assert flat["kv_bytes"][0] == flat["kv_bytes"][1]


@pytest.mark.skipif(has_metal(), reason="Metal is here")
def test_kernels_are_measured_where_there_is_metal_alone(edgekv, tiny):
    result = edgekv("bench", "-m", tiny, "--kernels")
    assert result.returncode == 2 and "--kernels needs Metal" in result.stderr


def test_a_peer_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InvalidValue, match="--against llama-cpp needs xllamacpp: run `pip install"):
        contest.peers(["llama-cpp"], metal=True)


def test_contestants_alternate_and_the_median_counts(monkeypatch):
    speeds, asked = iter([1, 10, 3, 30, 2, 20]), []

    def measured(contestant, task):
        asked.append(contestant.name)
        speed = next(speeds)
        return [{"context": 128, "prefill_tps": speed, "decode_tps": speed, "kv_bytes": None}]

    monkeypatch.setattr(contest, "in_a_process", measured)
    both = [contest.Contestant(name, "ours") for name in ("a", "b")]
    rows = contest.run(both, contest.Task("model", (128,), 1), 3, lambda done, total: None)
    assert asked == ["a", "b"] * 3
    assert [(row["name"], row["decode_tps"]) for row in rows] == [("a", 2), ("b", 20)]
    assert rows[0]["samples"]["decode_tps"] == [1, 3, 2] and rows[0]["kv_bytes"] is None


def test_a_contestant_that_fails_is_named_with_its_reason(tmp_path):
    task = contest.Task(str(tmp_path / "none.gguf"), (128,), 1)
    with pytest.raises(EdgekvError, match=r"mlx-lm on none\.gguf failed: .*no such file"):
        contest.in_a_process(contest.peers(["mlx-lm"], metal=True)[0], task)
