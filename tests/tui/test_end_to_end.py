"""The chat on the real model in a real terminal."""

import json
import os
import re
import time

import pytest

from edgekv.sessions import Store
from tests.tui.terminal import Terminal, when

pytestmark = pytest.mark.model

UP, CTRL_C, CTRL_D, CTRL_F, CTRL_R, CTRL_S, ESC, F5 = (
    "\x1b[A", "\x03", "\x04", "\x06", "\x12", "\x13", "\x1b", "\x1b[15~",
)  # fmt: skip
STORY = "Write a very long story about a fox.\r"


def last(store):
    return store.messages(store.last().id)


def test_ask_cancel_retry_quit_reopen_resume_search_export(default_model, tmp_path):
    with Terminal("chat", "-m", default_model, "--max-tokens", 12) as app, Store() as store:
        app.until("no model yet").until("KV 0/4.1k")
        app.send("What is the capital of France?\r").until("capital of France is Paris")
        app.until("37, 0 cached")
        app.send(STORY)
        when(lambda: len(last(store)) == 4 and last(store)[-1].partial)
        app.send(ESC).until("stopped by you")
        assert last(store)[-1].finish_reason == "cancelled"
        app.send(CTRL_R)
        when(lambda: len(last(store)) == 4 and last(store)[-1].finish_reason in ("length", "stop"))
        app.send(CTRL_D)
        assert app.wait() == 0
        before = last(store)
        assert len(before) == 4

    # `-c` opens it again: only what was not yet read is read.
    with Terminal("chat", "-m", default_model, "-c", "--max-tokens", 8) as app, Store() as store:
        app.until("capital of France is Paris").until("/4.1k")
        app.send("And of Spain?\r")
        when(lambda: len(last(store)) == 6 and last(store)[-1].finish_reason)
        app.until("8 tokens at")
        prompt, cached = re.findall(r"prompt (\d+), (\d+) cached", app.text)[-1]
        assert int(cached) >= 64
        assert int(prompt) - int(cached) < 64 + 20
        assert last(store)[:4] == before

        app.send(CTRL_S).until("search titles")
        app.send("and of spa").until("…And of Spain?…").send("\r").until("1 of 1")
        path = tmp_path / "out.json"
        app.send(ESC)
        time.sleep(0.5)  # an Escape with more behind it is another key
        app.send(f"/export {path}\r")
        when(path.exists)
        app.until("written to")
        assert len(json.loads(path.read_text())["messages"]) == 6
        app.send(CTRL_C).until("once more").send(CTRL_C).until("Quit?").send("y")
        assert app.wait() == 0
    assert "Traceback" not in app.raw


def killed_after(default_model, seconds):
    """Start a reply, kill the process in the middle of it; what was on disk then."""
    with Store() as store, Terminal("chat", "-m", default_model) as app:
        app.until("KV 0/4.1k")
        app.send(STORY)
        when(lambda: store.last() is not None and len(last(store)) == 2, seconds=90)
        time.sleep(seconds)
        app.kill()
        return last(store)


def test_a_killed_reply_is_there_marked_and_gone_on_with(default_model):
    said = killed_after(default_model, 1.3)
    assert said[-1].partial and said[-1].content
    with Store() as store, Terminal("chat", "-m", default_model, "--max-tokens", 8) as app:
        app.until("interrupted: F5 goes on with it").until("interrupted: /continue")
        app.until("/4.1k").send(F5)
        when(lambda: last(store)[-1].finish_reason == "length")
        assert last(store)[-1].content.startswith(said[-1].content)
        app.send(CTRL_D)
        assert app.wait() == 0


@pytest.mark.slow
def test_kill_nine_during_a_reply_ten_times(default_model, home):
    for n in range(10):
        said = killed_after(default_model, 0.15 * n)
        shown = " ".join(said[-1].content.split()[:4])
        with Terminal("chat", "-m", default_model) as app:
            app.until("interrupted: F5 goes on with it")
            app.until("Write a very long story").until(shown)
            app.send("/delete\r").until("deleted").send(CTRL_D)
            assert app.wait() == 0
        with Store() as store:
            assert len(store.sessions(deleted=True)) == n + 1
            for session in store.sessions(deleted=True):
                assert store.messages(session.id)[-1].partial


def test_nothing_of_mlx_is_imported_before_the_first_paint(edgekv):
    code = """
import asyncio, sys
from edgekv.config import Config
from edgekv.tui.app import ChatApp, Start
from edgekv.tui.settings import Settings
async def main():
    app = ChatApp(Start(Settings(Config()), list, persist=False))
    async with app.run_test() as pilot:
        print("LOADED", [name for name in ("mlx", "tokenizers", "numpy") if name in sys.modules])
        await pilot.pause(0.5)
asyncio.run(main())
"""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "LOADED []"


def test_without_a_terminal_the_chat_says_what_to_use(edgekv):
    done = edgekv(stdin=None, input="hello")
    assert done.returncode == 2
    assert done.stderr == (
        "edgekv: the chat needs a terminal; --plain does not, nor does `edgekv run`"
        " (see `edgekv --help`)\n"
    )


def test_closing_the_terminal_window_keeps_everything(default_model):
    with Terminal("chat", "-m", default_model) as app, Store() as store:
        app.until("Enter sends").send("half a thought").until("half a thought")
        os.kill(app.process.pid, 1)
        assert app.wait() == 0
        assert store.last().draft == "half a thought"
