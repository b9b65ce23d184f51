"""Sessions as their user meets them: `run --session`, `-c`, `--no-persist`, `edgekv sessions`."""

import json
import os
import signal
import stat
import subprocess
import sys

import pytest

from edgekv.sessions import Store
from tests.loading.files import write_gguf


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", layers=2)


@pytest.fixture
def run(edgekv, model):
    def run(*args, **options):
        options.setdefault("stdin", subprocess.DEVNULL)
        return edgekv("run", "-m", model, "--max-tokens", 8, "--json", *args, **options)

    return run


def report(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def listing(folder):
    return sorted((p, p.stat().st_mtime_ns, p.stat().st_size) for p in folder.rglob("*"))


def test_a_session_goes_on_in_another_process_from_its_kv(run, edgekv, home):
    text = "one of the things " * 12
    first = report(run("--session", "s", "--system", "Be nice.", text))
    assert (first["session"], first["usage"]["cached_tokens"]) == ("s", 0)
    second = report(run("-c", "and then?"))
    assert second["session"] == "s"
    assert second["usage"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
    with Store(home / "data") as store:
        said = store.messages(store.get("s").id)
    assert [m.role for m in said] == ["system", "user", "assistant", "user", "assistant"]
    assert [m.content for m in said[2::2]] == [first["text"], second["text"]]
    assert len(said[4].tokens) == second["usage"]["completion_tokens"] or said[4].finish_reason
    listed = json.loads(edgekv("sessions", "list", "--json").stdout)
    assert [(one["name"], one["n_messages"]) for one in listed] == [("s", 5)]
    assert listed[0]["kv_bytes"] > 0
    shown = json.loads(edgekv("sessions", "show", "s", "--json").stdout)
    assert [m["content"] for m in shown["messages"]] == [m.content for m in said]


def test_a_session_keeps_its_policy_until_told_otherwise(run):
    args = ("--session", "s", "hello there", "--window", 128, "--k-bits", 8)
    kv = report(run(*args))["kv"]
    assert (kv["window"], kv["k_bits"], kv["v_bits"]) == (128, 8, 4)
    kv = report(run("-c", "more"))["kv"]
    assert (kv["window"], kv["k_bits"], kv["v_bits"]) == (128, 8, 4)
    kv = report(run("-c", "more", "--kv-bits", 16))["kv"]
    assert (kv["window"], kv["k_bits"], kv["v_bits"]) == (128, 16, 16)


def test_no_persist_leaves_no_byte(run, edgekv, home):
    run("--no-persist", "hello there")
    unsaved = run("--no-persist", "--session", "s", "hello there")
    assert report(unsaved)["session"] is None
    assert not home.exists()
    first = report(run("--session", "s", "hello there " * 30))
    before = listing(home)
    quiet = report(run("--no-persist", "-c", "more"))
    assert quiet["usage"]["cached_tokens"] >= first["usage"]["prompt_tokens"]
    assert listing(home) == before


def test_a_plain_run_reads_the_store_and_writes_no_text(run, home):
    text = "the secret of the inn " * 20
    report(run("--session", "s", text))
    with Store(home / "data") as store:
        before = len(store.messages(store.get("s").id))
    other = report(run(text))
    assert other["session"] is None
    assert other["usage"]["cached_tokens"] > 0
    with Store(home / "data") as store:
        assert len(store.messages(store.get("s").id)) == before
        assert len(store.sessions()) == 1


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["-c", "hi"], 2, "no session to continue"),
        (["-c", "--session", "a", "hi"], 2, "--session"),
        (["--raw", "--session", "a", "hi"], 2, "--raw"),
        (["--session", "a\nb", "hi"], 2, "printable"),
    ],
)
def test_faults_are_one_line_and_leave_nothing(run, home, args, code, said):
    result = run(*args)
    assert (result.returncode, result.stdout) == (code, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert not home.exists()


@pytest.mark.parametrize(
    ("begun", "said"), [([], "without a"), (["--system", "X"], "with another")]
)
def test_a_session_keeps_the_beginning_it_has(run, begun, said):
    report(run("--session", "s", "hello", *begun))
    refused = run("--session", "s", "--system", "Y", "more")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert f"'s' began {said} system message" in refused.stderr


def test_a_session_of_the_chat_keeps_its_system_message(run, home):
    with Store(home / "data") as store:
        for name, kept in (("with", {"system": "Be nice.", "think": True}), ("without", {})):
            session = store.create(name, settings=kept)
            store.append(session.id, "user", "hello")
            store.append(session.id, "assistant", "hi")
    told, not_told = (report(run("--session", name, "more")) for name in ("with", "without"))
    assert told["usage"]["prompt_tokens"] > not_told["usage"]["prompt_tokens"]
    with Store(home / "data") as store:
        settings = store.get("with").settings
    assert (settings["system"], settings["think"], settings["window"]) == ("Be nice.", True, None)


def test_a_session_in_use_is_refused_and_a_branch_is_the_way_out(run, edgekv, home):
    report(run("--session", "s", "hello"))
    with Store(home / "data") as store:
        lock = store.lock(store.get("s").id)
        result = run("-c", "more")
        assert result.returncode == 1
        assert "open in another edgekv" in result.stderr
        assert edgekv("sessions", "branch", "s", "t").stdout == "t\n"
        assert report(run("--session", "t", "more"))["usage"]["cached_tokens"] > 0
        lock.release()


def test_a_branch_is_cut_where_there_is_a_message_and_holds_no_kv_behind(run, edgekv, home):
    report(run("--session", "s", "hello " * 90))
    for outside in (-1, 0, 3):
        refused = edgekv("sessions", "branch", "s", "t", "--at", outside)
        assert (refused.returncode, refused.stdout) == (2, "")
        assert f"--at: expected 1 to 2, got {outside}" in refused.stderr
    assert edgekv("sessions", "branch", "s", "cut", "--at", 1).returncode == 0
    assert edgekv("sessions", "branch", "s", "all", "--at", 2).returncode == 0
    with Store(home / "data") as store:
        held = store.kv_bytes()
        assert store.get("cut").id not in held
        assert held[store.get("all").id] == held[store.get("s").id] > 0


def test_all_that_is_written_is_for_its_owner_alone(run, edgekv, home, tmp_path):
    assert edgekv("models", "use", "smollm2-135m").returncode == 0
    (home / "data").mkdir(mode=0o755)
    report(run("--session", "s", "hello " * 90))
    exports = [tmp_path / "s.md", tmp_path / "s.edgekv"]
    for path in exports:
        assert edgekv("sessions", "export", "s", path).returncode == 0
    assert list(home.rglob("*.safetensors"))
    for path in [home, *home.rglob("*"), *exports]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


def test_a_reply_that_is_killed_is_kept_and_marked(model, home):
    command = [sys.executable, "-m", "edgekv", "run", "-m", str(model), "--session", "s", "hi"]
    command += ["--max-tokens", "100000", "--temp", "1", "--seed", "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.read(40)
        os.kill(process.pid, signal.SIGKILL)
    with Store(home / "data") as store:
        user, assistant = store.messages(store.get("s").id)
    assert (user.content, user.partial) == ("hi", False)
    assert assistant.partial
    assert assistant.content


def test_export_import_rm_verify_and_gc(run, edgekv, home, tmp_path):
    report(run("--session", "s", "hello there " * 20))
    assert "## You\n\nhello there" in edgekv("sessions", "export", "s").stdout
    assert edgekv("sessions", "export", "s", tmp_path / "s.md").returncode == 0
    assert (tmp_path / "s.md").read_text().startswith("---\n")
    assert edgekv("sessions", "export", "s", tmp_path / "s.edgekv").returncode == 0
    elsewhere = {"EDGEKV_HOME": str(tmp_path / "elsewhere")}
    imported = edgekv("sessions", "import", tmp_path / "s.edgekv", env=elsewhere)
    assert imported.stdout == "s\n"
    assert report(run("-c", "more", env=elsewhere))["usage"]["cached_tokens"] > 100
    verified = json.loads(edgekv("sessions", "verify", "--json").stdout)
    assert verified["files"] > 1
    assert verified["damaged"] == []
    assert edgekv("sessions", "gc").returncode == 0
    asked = edgekv("sessions", "rm", "s", stdin=subprocess.DEVNULL)
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "s: removing needs -y" in asked.stderr
    removed = json.loads(edgekv("sessions", "rm", "s", "-y", "--json").stdout)
    assert removed["bytes"] > 0
    assert not list(home.rglob("*.safetensors"))
    assert edgekv("sessions", "show", "s").returncode == 2


@pytest.mark.parametrize("name", ["s.md", "s.edgekv"])
def test_an_export_replaces_a_file_only_when_told_and_says_what_it_wrote(
    edgekv, home, tmp_path, name
):
    with Store(home / "data") as store:
        store.append(store.create("s").id, "user", "hello")
    path = tmp_path / name
    path.write_text("mine")
    kept = edgekv("sessions", "export", "s", path, stdin=subprocess.DEVNULL)
    assert (kept.returncode, kept.stdout, path.read_text()) == (2, "", "mine")
    assert f"{path} exists: replacing it needs -y" in kept.stderr
    written = edgekv("sessions", "export", "s", path, "-y")
    assert written.stderr == f"{path}: 1 messages, 0 blocks\n"
    assert b"hello" in path.read_bytes()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    told = json.loads(edgekv("sessions", "export", "s", path, "-y", "--json").stdout)
    assert told == {"session": "s", "path": str(path), "messages": 1, "blocks": 0}


def test_new_sessions_are_told_to_programs(edgekv, home, tmp_path):
    with Store(home / "data") as store:
        store.append(store.create("s").id, "user", "hello")
    branch = json.loads(edgekv("sessions", "branch", "s", "t", "--json").stdout)
    assert (branch["name"], branch["n_messages"], branch["kv_bytes"]) == ("t", 1, 0)
    assert edgekv("sessions", "export", "t", tmp_path / "t.edgekv").returncode == 0
    told = edgekv("sessions", "import", tmp_path / "t.edgekv", "--name", "u", "--json")
    assert json.loads(told.stdout)["name"] == "u"
    printed = json.loads(edgekv("sessions", "export", "s", "--json").stdout)
    assert printed["path"] is None and "hello" in printed["markdown"]


def test_a_missing_index_is_told_once(edgekv, home):
    with Store(home / "data") as store:
        for name in ("a", "b"):
            store.append(store.create(name).id, "user", "hello")
    (home / "data" / "edgekv.db").unlink()
    listed = edgekv("sessions", "list")
    assert "a" in listed.stdout and "b" in listed.stdout
    assert listed.stderr == (
        f"edgekv: the index {home / 'data' / 'edgekv.db'} was missing: "
        "2 of 2 sessions restored from their copies\n"
    )
    assert edgekv("sessions", "list").stderr == ""


def test_a_store_or_an_archive_that_cannot_be_read_says_what_to_do(edgekv, home, tmp_path):
    for content in (b"", b"PK\x03\x04 cut short"):
        (tmp_path / "s.edgekv").write_bytes(content)
        result = edgekv("sessions", "import", tmp_path / "s.edgekv")
        assert result.returncode == 5
        assert "write it again where it came from" in result.stderr
    assert edgekv("sessions", "list", "--json").stdout == "[]\n"
    (tmp_path / "file").touch()
    result = edgekv("sessions", "list", env={"EDGEKV_HOME": str(tmp_path / "file")})
    assert result.returncode == 1
    assert "Not a directory: give the folder" in result.stderr
    assert "Errno" not in result.stderr


def test_damage_is_named_and_the_answer_is_made_all_the_same(run, edgekv, home):
    report(run("--session", "s", "hello there " * 20))
    for path in (home / "data").rglob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-1])
    result = run("-c", "more")
    assert report(result)["usage"]["cached_tokens"] == 0
    assert "computed again" in result.stderr
    assert "cut short" in result.stderr


def test_an_encrypted_store_asks_for_its_passphrase(run, edgekv, home):
    report(run("--session", "s", "hello there " * 20))
    key = {"EDGEKV_PASSPHRASE": "open sesame"}
    assert edgekv("sessions", "encrypt", env=key).returncode == 0
    report(run("-c", "the more the merrier", env=key))
    again = report(run("-c", "more", env=key))
    assert again["usage"]["cached_tokens"] > 100
    whole = b"".join(p.read_bytes() for p in home.rglob("*") if p.is_file())
    assert b"merrier" not in whole
    refused = run("-c", "more")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "EDGEKV_PASSPHRASE" in refused.stderr


def test_what_was_restored_while_it_was_read_is_said(run, edgekv, home):
    report(run("--session", "s", "one"))
    with Store(home / "data") as store, store.db.transaction() as db:
        db.execute("UPDATE messages SET content = 'changed' WHERE position = 0")
    shown = edgekv("sessions", "show", "s")
    assert "one" in shown.stdout
    assert shown.stderr == "edgekv: session 's' was damaged: restored from its copy\n"
    assert edgekv("sessions", "show", "s").stderr == ""


def test_verify_counts_what_was_restored_when_it_opened_the_store(run, edgekv, home):
    report(run("--session", "s", "one"))
    for path in (home / "data").glob("edgekv.db*"):
        path.unlink()
    found = edgekv("sessions", "verify", "--json")
    assert found.returncode == 1 and len(found.stderr.splitlines()) == 1
    assert "1 of 1 sessions restored" in json.loads(found.stdout)["damaged"][0]
    assert edgekv("sessions", "verify").returncode == 0
