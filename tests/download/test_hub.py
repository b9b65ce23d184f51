"""The hub source, with a stand-in for snapshot_download that lays out a real hub cache."""

import errno
import hashlib
import json
from pathlib import Path

import huggingface_hub
import pytest

from edgekv import catalog, config, download
from edgekv.download import hub
from edgekv.errors import DamagedFile, EdgekvError, ModelNotFound

COMMIT = "a" * 40
FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"[]"}


def lay_out(cache, repo, files=FILES, folder="", damage=None) -> Path:
    """Write a snapshot as the hub client does: blobs named by their hash, links to them."""
    base = Path(cache) / f"models--{repo.replace('/', '--')}"
    snapshot = base / "snapshots" / COMMIT / folder
    for place in (base / "blobs", base / "refs", snapshot):
        place.mkdir(parents=True, exist_ok=True)
    (base / "refs" / "main").write_text(COMMIT)
    for name, content in files.items():
        large = name.endswith(".safetensors")
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        blob = base / "blobs" / (hashlib.sha256(content).hexdigest() if large else git)
        blob.write_bytes(content[:-1] if name == damage else content)
        (snapshot / name).unlink(missing_ok=True)
        (snapshot / name).symlink_to(blob)
    return base / "snapshots" / COMMIT


@pytest.fixture
def client(monkeypatch):
    """Make snapshot_download do as told; returns the keyword arguments of each call."""
    calls = []

    def install(**layout):
        def snapshot_download(repo, **options):
            calls.append(options)
            if isinstance(layout.get("error"), Exception):
                raise layout["error"]
            return str(lay_out(options["cache_dir"], repo, **layout))

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return calls

    return install


def test_snapshot_is_verified_then_found_without_the_client(client):
    calls = client()
    model = catalog.resolve("some/model")
    assert download.find_local(model) is None
    path = download.locate(model)
    assert (path / "model.safetensors").read_bytes() == b"weights"
    assert download.locate(model) == path == download.find_local(model)
    assert len(calls) == 1 and calls[0]["revision"] == "main"


def test_only_files_of_the_wanted_folder_are_asked_for(client):
    calls = client(folder="4bit")
    path = download.locate(catalog.resolve("some/model/4bit@v1.0"))
    assert path.name == "4bit"
    assert "4bit/*.safetensors" in calls[0]["allow_patterns"]
    assert calls[0]["ignore_patterns"] == ["4bit/*/*"] and calls[0]["revision"] == "v1.0"


@pytest.mark.parametrize("name", FILES)
def test_damaged_file_is_refused_and_removed(client, name):
    client(damage=name)
    model = catalog.resolve("some/model")
    with pytest.raises(DamagedFile, match=f"{name} from the hub: expected hash"):
        download.locate(model)
    assert download.find_local(model) is None
    client()
    assert download.locate(model).is_dir()


@pytest.mark.parametrize(
    "files",
    [
        {"config.json": b"{}"},
        {"model.safetensors": b"weights"},
        {"config.json": b"{}", "model.safetensors.index.json": b"broken"},
        {
            "config.json": b"{}",
            "model-1.safetensors": b"one",
            "model.safetensors.index.json": json.dumps(
                {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
            ).encode(),
        },
    ],
)
def test_incomplete_repository(client, files):
    client(files=files)
    with pytest.raises(ModelNotFound, match="hub some/model@main: the repository has no"):
        download.locate(catalog.resolve("some/model"))


def test_copy_of_another_tool_is_used_and_never_removed(home, tmp_path):
    lay_out(tmp_path / "hf-home" / "hub", "some/model")
    model = catalog.resolve("some/model")
    assert download.locate(model).is_dir()
    assert download.owned(model) == []


def test_own_copy_is_removed(client):
    client()
    model = catalog.resolve("some/model")
    download.locate(model)
    assert download.remove(model) > 0
    assert download.find_local(model) is None


def test_unverified_own_copy_is_not_used(home):
    lay_out(config.paths().models / download.HUB_CACHE, "some/model")
    assert download.find_local(catalog.resolve("some/model")) is None


def test_errors_of_the_client_become_reasons(client):
    client(error=RuntimeError("transfer\nbroke. And more"))
    with pytest.raises(ModelNotFound, match="hub some/model@main: transfer broke"):
        download.locate(catalog.resolve("some/model"))


def test_full_disk(client):
    client(error=OSError(errno.ENOSPC, "No space left on device"))
    with pytest.raises(EdgekvError, match="No space left") as caught:
        download.locate(catalog.resolve("some/model"))
    assert caught.value.exit_code == 1


def test_offline(edgekv):
    result = edgekv("models", "pull", "qwen3-0.6b")
    assert result.returncode == 3 and result.stdout == ""
    line = result.stderr.splitlines()[-1]
    assert "hub mlx-community/Qwen3-0.6B-4bit@main" in line and "Traceback" not in result.stderr


def test_user_cache_follows_the_hub_variables(monkeypatch):
    monkeypatch.setenv("HF_HUB_CACHE", "/elsewhere")
    assert hub.user_cache() == Path("/elsewhere")
