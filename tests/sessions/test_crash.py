"""Whatever happens to processes and files: the transcript is whole, answers are the same."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from edgekv.engine import Engine
from edgekv.sessions import SessionNotFound, Store
from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.check import verify
from tests.loading.files import tiny_tensors, write_gguf
from tests.sessions.chatter import QUESTIONS, cold, reply, talk

ROOT = Path(__file__).parents[2]
TURNS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_gguf(tmp_path_factory.mktemp("model") / "tiny.gguf", layers=2)


@pytest.fixture(scope="module")
def expected(model):
    return cold(model, TURNS)


def child(folder, model, turns, **options):
    command = [sys.executable, "-m", "tests.sessions.chatter", folder, model, str(turns)]
    return subprocess.Popen(map(str, command), cwd=ROOT, stdout=subprocess.PIPE, **options)


def check_transcript(store, expected):
    """Every turn but the one under way is what it should be; returns the answered ones."""
    try:
        messages = store.messages(store.get("chat").id)
    except SessionNotFound:
        return 0
    for n, message in enumerate(messages):
        turn = n // 2
        if n % 2 == 0:
            assert (message.role, message.content) == ("user", QUESTIONS[turn])
        elif message.partial:
            assert n == len(messages) - 1
            assert expected[turn].startswith(message.content)
        else:
            assert message.content == expected[turn]
    return sum(m.role == "assistant" and not m.partial for m in messages)


def kill_at_random(folder, model, expected, kills, seed=0):
    """Kill a chat again and again; after each the store opens and holds what was said."""
    chance = random.Random(seed)
    longest = 3.0
    for _ in range(kills):
        begun = time.monotonic()
        with child(folder, model, TURNS) as process:
            # Random from the start of the process to past its end.
            time.sleep(chance.random() * longest)
            process.send_signal(signal.SIGKILL)
            if process.wait() == 0:
                longest = max(1.0, 1.1 * (time.monotonic() - begun))
        with Store(folder) as store:
            if not store.sessions():
                continue
            answered = check_transcript(store, expected)
            if answered == TURNS:
                files = BlockFiles(store, 10**9)
                assert verify(store, files).damaged == []
                store.purge(store.get("chat").id)
                files.collect()
    with child(folder, model, TURNS) as process:
        assert process.wait() == 0
    with Store(folder) as store:
        assert check_transcript(store, expected) == TURNS
        assert verify(store, BlockFiles(store, 10**9)).damaged == []
        assert not list(folder.rglob("*.tmp"))


def test_a_chat_killed_at_random_points_loses_at_most_the_unfinished_reply(
    tmp_path, model, expected
):
    kill_at_random(tmp_path, model, expected, kills=3)


@pytest.mark.slow
def test_a_chat_killed_at_200_random_points(tmp_path, model, expected):
    kill_at_random(tmp_path, model, expected, kills=200, seed=1)


@pytest.fixture(scope="module")
def talked(tmp_path_factory, model):
    """A store with a chat of all turns but the last."""
    folder = tmp_path_factory.mktemp("talked")
    talk(folder, model, TURNS - 1)
    return folder


def finish(folder, model, expected):
    """Take the last turn; returns its notices and how many tokens were cached."""
    with Store(folder) as store, Engine(model, store) as engine:
        assert check_transcript(store, expected) == TURNS - 1
        session = store.get("chat").id
        messages = [{"role": m.role, "content": m.content} for m in store.messages(session)]
        messages.append({"role": "user", "content": QUESTIONS[TURNS - 1]})
        said, end = reply(engine, messages, session)
        assert said == expected[-1]
        return end.cached_tokens


def damaged_copies(folder, path):
    whole = path.read_bytes()
    size = len(whole)
    for at in (0, 60, size // 2, size - 1):
        yield f"bit in byte {at}", whole[:at] + bytes([whole[at] ^ 16]) + whole[at + 1 :]
    yield "cut in half", whole[: size // 2]
    yield "zero tail", whole[: size - size // 3] + bytes(size // 3)
    others = [p for p in folder.rglob(f"*{path.suffix}") if p != path]
    if others:
        yield "swapped", others[0].read_bytes()
    yield "another format", whole.replace(b'"format":"1"', b'"format":"2"')


def damage_every_file(talked, tmp_path, model, expected, step):
    files = sorted(p for p in talked.rglob("*") if p.is_file() and p.suffix != ".lock")
    cases = [(p, name, new) for p in files for name, new in damaged_copies(talked, p)]
    for n, (path, name, content) in enumerate(cases[::step]):
        folder = tmp_path / str(n)
        shutil.copytree(talked, folder)
        (folder / path.relative_to(talked)).write_bytes(content)
        print(path.name, name, finish(folder, model, expected))
        shutil.rmtree(folder)
    return len(cases[::step])


def test_damage_to_any_file_costs_no_more_than_computing_again(talked, tmp_path, model, expected):
    assert damage_every_file(talked, tmp_path, model, expected, step=29) > 2


@pytest.mark.slow
def test_every_damage_to_every_file(talked, tmp_path, model, expected):
    assert damage_every_file(talked, tmp_path, model, expected, step=1) > 60


def test_what_is_whole_is_used(talked, tmp_path, model, expected):
    folder = tmp_path / "copy"
    shutil.copytree(talked, folder)
    assert finish(folder, model, expected) > 100


def test_another_model_of_the_same_shape_gets_none_of_the_kv(talked, tmp_path, model, expected):
    folder = tmp_path / "copy"
    shutil.copytree(talked, folder)
    other = write_gguf(tmp_path / "tiny.gguf", layers=2, tensors=tiny_tensors(2, seed=5))
    assert other.stat().st_size == model.stat().st_size
    messages = [{"role": "user", "content": QUESTIONS[0]}]
    with Engine(other) as engine:
        alone, _ = reply(engine, messages)
    with Store(folder) as store, Engine(other, store) as engine:
        said, end = reply(engine, messages, store.get("chat").id)
        assert end.cached_tokens == 0
        assert said == alone != expected[0]


def test_a_clock_that_goes_backwards_changes_nothing(
    talked, tmp_path, model, expected, monkeypatch
):
    folder = tmp_path / "copy"
    shutil.copytree(talked, folder)
    monkeypatch.setattr(time, "time", lambda: 86_400.0)
    assert finish(folder, model, expected) > 100
    with Store(folder) as store:
        assert store.last().name == "chat"


def test_a_full_disk_is_said_once_and_the_chat_goes_on(tmp_path, model, expected, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    messages, notices = [], []
    with Store(tmp_path) as store, Engine(model, store) as engine:
        session = store.create("chat").id
        monkeypatch.setattr(os, "fsync", full)
        for turn in range(2):
            messages.append({"role": "user", "content": QUESTIONS[turn]})
            said, _ = reply(engine, messages, session)
            assert said == expected[turn]
            messages.append({"role": "assistant", "content": said})
            engine._reuse.flush()
            notices += engine.notices()
    assert len(notices) == 1
    assert "not persisted: No space left on device" in notices[0]
    assert not list(tmp_path.rglob("*.safetensors*"))


def mounted(folder, *options):
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", *options, "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("needs the right to mount a tmpfs")


@pytest.mark.slow
@pytest.mark.parametrize("size", ["300k", "700k", "1500k", "4m"])
def test_a_small_tmpfs_fills_up_and_nothing_is_lost(tmp_path, model, expected, size):
    folder = tmp_path / "small"
    mounted(folder, f"size={size}")
    try:
        with child(folder, model, TURNS) as process:
            lines = process.stdout.read().decode().splitlines()
        assert process.returncode == 0, lines
        assert sum(line.startswith("answered") for line in lines) == TURNS
        said = [line for line in lines if "not persisted" in line or "not being saved" in line]
        assert len(said) <= 2 + TURNS
        with Store(folder) as store:
            check_transcript(store, expected)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_read_only_store_is_used_and_left_alone(talked, tmp_path, model, expected):
    folder = tmp_path / "fixed"
    mounted(folder, "size=50m")
    try:
        shutil.copytree(talked, folder, dirs_exist_ok=True)
        subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
        assert finish(folder, model, expected) > 100
    finally:
        subprocess.run(["umount", str(folder)], check=True)


PROCESSES = 4


def test_four_processes_and_two_models_share_one_store(tmp_path, model, expected):
    folder = tmp_path / "shared"
    other = write_gguf(tmp_path / "other.gguf", layers=2, tensors=tiny_tensors(2, seed=5))
    script = """
import sys
from pathlib import Path
from edgekv.engine import Engine
from edgekv.sessions import SessionNotFound, Store
from tests.sessions.chatter import QUESTIONS, reply
folder, model, name = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
with Store(folder) as store, Engine(model, store) as engine:
    session = store.create(name).id
    messages = []
    for turn in range(3):
        messages.append({"role": "user", "content": QUESTIONS[turn]})
        said, end = reply(engine, messages, session)
        store.append(session, "user", QUESTIONS[turn])
        store.append(session, "assistant", said, end.tokens, end.reason)
        messages.append({"role": "assistant", "content": said})
"""
    models = [(model, other)[n % 2] for n in range(PROCESSES)]
    processes = [
        subprocess.Popen([sys.executable, "-c", script, folder, one, f"chat {n}"], cwd=ROOT)
        for n, one in enumerate(models)
    ]
    assert [process.wait() for process in processes] == [0] * PROCESSES
    said = {model: expected[:3], other: cold(other, 3)}
    with Store(folder) as store:
        for n, one in enumerate(models):
            messages = store.messages(store.get(f"chat {n}").id)
            assert [m.content for m in messages[1::2]] == said[one]
        found = verify(store, BlockFiles(store, 10**9))
        assert (found.damaged, found.missing, found.orphans) == ([], 0, 0)
        assert found.files > 6
