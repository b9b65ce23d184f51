"""The app's colours follow the terminal's background, where it tells it."""

import os
import pty
import threading
import time
import tty

import pytest

from edgekv.tui import background
from tests.tui.harness import running, ui

DA1 = b"\x1b[?62;4c"


@pytest.mark.parametrize(
    ("answer", "light"),
    [
        (b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\" + DA1, True),
        (b"\x1b]11;rgb:fd/f6/e3\x07" + DA1, True),
        (b"\x1b]11;rgba:0000/2b2b/3636/ffff\x1b\\" + DA1, False),
        (b"\x1b]11;rgb:0/0/0\x07", False),
        (DA1, None),
        (b"", None),
        (b"\x1b]11;rgb:zz/0/0\x07" + DA1, None),
        (b"typed ahead", None),
    ],
)
def test_the_colour_is_read_from_a_terminals_answer(answer, light):
    assert background.is_light(answer) is light


def asked(monkeypatch, answer):
    """What a terminal that answers so leads to, and the seconds that took."""
    master, slave = pty.openpty()
    tty.setraw(master)

    def terminal():
        question = b""
        while not question.endswith(b"\x1b[c"):
            question += os.read(master, 100)
        os.write(master, answer)

    answers = threading.Thread(target=terminal)
    answers.start()
    with os.fdopen(slave, "r+b", buffering=0) as end:
        monkeypatch.setattr("sys.stdin", end)
        monkeypatch.setattr("sys.stdout", end)
        start = time.monotonic()
        found = background.has_light_background()
        took = time.monotonic() - start
        answers.join()
    os.close(master)
    return found, took


def test_a_terminal_is_asked_and_its_settings_are_left_as_they_were(monkeypatch):
    monkeypatch.setattr(background, "PATIENCE_S", 10)
    found, took = asked(monkeypatch, b"\x1b]11;rgb:ffff/ffff/ffff\x1b\\" + DA1)
    assert found is True and took < 5
    assert asked(monkeypatch, DA1)[0] is None


def test_a_terminal_that_says_nothing_is_not_waited_for_long(monkeypatch):
    found, took = asked(monkeypatch, b"")
    assert found is None and took < 5


def test_no_terminal_at_all_is_no_fault(monkeypatch, tmp_path):
    with (tmp_path / "file").open("w+b") as end:
        monkeypatch.setattr("sys.stdin", end)
        monkeypatch.setattr("sys.stdout", end)
        assert background.has_light_background() is None


@ui
async def test_a_light_terminal_gets_a_light_theme_unless_one_was_chosen(model):
    async with running(model, light=True) as chat:
        assert chat.app.theme == "textual-light"
        await chat.command("/theme high-contrast")
    async with running(model, light=True) as chat:
        assert chat.app.theme == "high-contrast"
    async with running(model) as chat:
        assert chat.app.theme == "high-contrast"
