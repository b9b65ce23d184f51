"""The shipped catalog is sound, the user's is merged, and names resolve as they read."""

import contextlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgekv import catalog, config
from edgekv.errors import InvalidValue, ModelNotFound

ENTRY = {
    "title": "Mine",
    "architecture": "llama",
    "layers": 2,
    "n_heads": 2,
    "n_kv_heads": 1,
    "head_dim": 96,
    "context": 128,
    "parameters": 1000,
    "weight_bits": 4.5,
    "license": "mit",
    "sources": [{"path": "/models/mine"}],
}
WHEEL = {
    "package": "p",
    "version": "1",
    "member": "p/m.gguf",
    "sha256": "0" * 64,
    "size": 3,
}


def test_shipped_catalog():
    known = catalog.builtin()
    assert config.DEFAULT_MODEL in known
    for alias, entry in known.items():
        assert entry.alias == alias and entry.n_heads % entry.n_kv_heads == 0
        assert entry.architecture in ("llama", "mistral", "qwen2", "qwen3")


def test_default_entry_facts():
    entry = catalog.builtin()["smollm2-135m"]
    assert entry.weight_bytes == 98_362_432
    # 30 layers, 3 heads of 64, 4.5 bits a key element and 4.5 a value element
    assert entry.kv_bytes_per_token() == 30 * 3 * 64 * 9 / 8
    assert entry.kv_bytes_per_token(16, 16) == 30 * 3 * 64 * 4


def test_value_groups_of_32_where_head_dim_needs_them():
    entry = catalog.parse({"mine": ENTRY}, "f")["mine"]
    assert entry.kv_bytes_per_token() == 2 * 96 * (4.5 + 5) / 8


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"layers": "two"}, "f: mine: layers: expected int, got 'two'"),
        ({"layers": 0}, "f: mine: layers: expected a positive number"),
        ({"layers": True}, "f: mine: layers: expected int"),
        ({"layrs": 2}, "f: mine: unknown key 'layrs': did you mean layers"),
        ({"sources": []}, "f: mine: sources is empty"),
        ({"sources": [3]}, "f: mine: sources[0]: expected a table"),
        ({"sources": [{"url": "x"}]}, "f: mine: sources[0]: needs one of repo, package, path"),
        ({"sources": [{"repo": "x"}]}, "f: mine: sources[0]: repo: cannot be 'x'"),
        ({"sources": [{"repo": "a/b", "subfolder": "../c"}]}, "sources[0]: subfolder: cannot be"),
        ({"sources": [{"repo": "a/b", "sha256": "c"}]}, "sources[0]: unknown key 'sha256'"),
        ({"sources": [WHEEL | {"sha256": "abc"}]}, "sources[0]: sha256: cannot be 'abc'"),
        ({"sources": [WHEEL | {"package": "--index-url=x"}]}, "sources[0]: package: cannot be"),
        ({"sources": [WHEEL | {"version": "1 --pre"}]}, "sources[0]: version: cannot be"),
        ({"sources": [WHEEL | {"member": "../../etc/x"}]}, "sources[0]: member: cannot be"),
        ({"sources": [WHEEL | {"size": 0}]}, "sources[0]: size: expected a positive number"),
        ({"sources": [{"package": "p"}]}, "sources[0]: missing version, member, sha256, size"),
    ],
)
def test_bad_entry_names_file_and_key(change, words):
    with pytest.raises(InvalidValue, match=re.escape(words)):
        catalog.parse({"mine": ENTRY | change}, "f")


@pytest.mark.parametrize("alias", ["", "Mine", "a b", "../x", ".hub", "-x"])
def test_bad_alias(alias):
    with pytest.raises(InvalidValue):
        catalog.parse({alias: ENTRY}, "f")


def test_missing_fact():
    with pytest.raises(InvalidValue, match="f: mine: missing title, architecture"):
        catalog.parse({"mine": {}}, "f")


def test_user_catalog_is_merged(home):
    home.mkdir()
    text = "\n".join(f"{key} = {value!r}" for key, value in ENTRY.items() if key != "sources")
    source = "sources = [{ path = '/m' }]"
    (home / "models.toml").write_text(f"[mine]\n{text}\n{source}\n[smollm2-135m]\n{text}\n{source}")
    known = catalog.entries()
    assert known["mine"].sources == (catalog.PathSource("/m"),)
    assert known["smollm2-135m"].title == "Mine" and "qwen3-0.6b" in known


@pytest.mark.parametrize(
    ("name", "source"),
    [
        ("owner/repo", catalog.HubSource("owner/repo")),
        ("owner/repo@v1.0", catalog.HubSource("owner/repo", "v1.0")),
        ("owner/repo/4bit", catalog.HubSource("owner/repo", "main", "4bit")),
        ("owner/repo/a/b@refs/pr/1", catalog.HubSource("owner/repo", "refs/pr/1", "a/b")),
    ],
)
def test_hub_names(name, source):
    assert catalog.resolve(name) == catalog.HubModel(source)


@pytest.mark.parametrize(
    "name",
    ["./x", "../x/y", "/a/b", "~/m/x", "a/b.gguf", "x.gguf", "a/b/../c", "a//b", "a/b@", "/"],
)
def test_paths_that_do_not_exist(name, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    if name == "/":
        assert catalog.resolve(name) == catalog.LocalModel(config.Path("/"))
        return
    with pytest.raises(ModelNotFound, match="no such file or folder"):
        catalog.resolve(name)


def test_existing_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "m.gguf").touch()
    for name in ("own", "./own", "own/m.gguf", str(tmp_path / "own")):
        found = catalog.resolve(name)
        assert isinstance(found, catalog.LocalModel) and found.path.is_absolute()


def test_unknown_alias_names_the_nearest():
    with pytest.raises(ModelNotFound, match="did you mean .*smollm2-135m"):
        catalog.resolve("smolm2-135")


@given(st.text())
def test_any_name_resolves_or_is_not_found(name):
    with contextlib.suppress(ModelNotFound):
        catalog.resolve(name)
