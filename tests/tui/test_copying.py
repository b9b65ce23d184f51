"""Copying: raw Markdown, code blocks, a dragged selection; and reading in a pager."""

from contextlib import nullcontext

from textual.events import MouseDown, MouseMove, MouseUp

from tests.tui.harness import running, ui
from tests.tui.scripted import Script

CODE = """Look:

```python
first = 1
```

> quoted text that is here

```
second

  two
```
"""


@ui
async def test_the_last_reply_is_copied_as_it_was_written(model, monkeypatch):
    monkeypatch.setattr("edgekv.tui.actions.copying._tools", list)
    async with running(model, Script([CODE])) as chat:
        await chat.ask("go")
        await chat.press("ctrl+y")
        await chat.until(lambda: "copied the message" in chat.toasts, "said")
        assert chat.app.clipboard == CODE
        assert "by the terminal (OSC 52)" in chat.toasts


@ui
async def test_the_selected_message_is_copied(model):
    async with running(model) as chat:
        await chat.ask("**question**")
        await chat.press("alt+up", "alt+up", "y")
        await chat.until(lambda: chat.app.clipboard == "**question**", "copied")


@ui
async def test_code_blocks_are_copied_in_turn_the_last_first(model):
    async with running(model, Script([CODE])) as chat:
        await chat.ask("go")
        copied = []
        for n in (2, 1, 2):
            await chat.press("f7")
            await chat.until(lambda n=n: f"code block {n} of 2" in chat.toasts, "said")
            copied.append(chat.app.clipboard)
            chat.app.clear_notifications()
        assert copied == ["second\n\n  two", "first = 1", "second\n\n  two"]


@ui
async def test_the_systems_own_clipboard_is_used_too_and_named(model, tmp_path, monkeypatch):
    tool = tmp_path / "clip"
    tool.write_text(f"#!/bin/sh\ncat > {tmp_path}/copied\n")
    tool.chmod(0o755)
    monkeypatch.setattr("edgekv.tui.actions.copying._tools", lambda: [[str(tool)]])
    async with running(model, Script(["text"])) as chat:
        await chat.ask("go")
        await chat.press("ctrl+y")
        await chat.until(lambda: f"and {tool}" in chat.toasts, "said")
        assert (tmp_path / "copied").read_text() == "text"


@ui
async def test_dragging_selects_text_without_borders_and_ctrl_c_copies_it(model):
    async with running(model, Script([CODE])) as chat:
        await chat.ask("go")
        lines = chat.shown().splitlines()
        y = next(i for i, line in enumerate(lines) if "quoted text" in line)
        x = lines[y].index("quoted")
        await drag(chat, (x, y), (x + 10, y))
        await chat.press("ctrl+c")
        await chat.until(lambda: "copied the selection" in chat.toasts, "copied")
        assert chat.app.clipboard == "quoted text"
        end = next(i for i, line in enumerate(lines) if "two" in line)
        await drag(chat, (x, y), (lines[end].index("two") + 2, end))
        await chat.press("ctrl+c")
        await chat.until(lambda: chat.app.clipboard != "quoted text", "copied")
        assert "\n".join(map(str.strip, chat.app.clipboard.split("\n"))) == (
            "quoted text that is here\n\nsecond\n\ntwo"
        )
        assert "▎" not in chat.app.clipboard and "│" not in chat.app.clipboard


async def drag(chat, start, end):
    def event(kind, at, button):
        return kind(None, *at, 0, 0, button, False, False, False, *at, None)

    chat.app.post_message(event(MouseDown, start, 1))
    await chat.pilot.pause()
    for x in range(start[0], end[0] + 1):
        chat.app.post_message(event(MouseMove, (x, end[1]), 1))
    await chat.pilot.pause()
    chat.app.post_message(event(MouseUp, end, 1))
    await chat.pilot.pause()


@ui
async def test_the_mouse_can_be_left_to_the_terminal(model):
    async with running(model) as chat:
        written = []
        chat.app._driver.write = written.append
        await chat.command("/mouse")
        await chat.until(lambda: "\x1b[?1000l" in "".join(written), "released")
        await chat.command("/mouse")
        await chat.until(lambda: "\x1b[?1000h" in "".join(written), "taken back")


@ui
async def test_a_message_opens_in_the_pager(model, tmp_path, monkeypatch):
    pager = tmp_path / "pager"
    pager.write_text(f'#!/bin/sh\ncp "$1" {tmp_path}/read\n')
    pager.chmod(0o755)
    monkeypatch.setenv("PAGER", str(pager))
    async with running(model, Script(["**text**"])) as chat:
        monkeypatch.setattr(chat.app, "suspend", nullcontext)
        await chat.ask("go")
        await chat.press("f8")
        await chat.until((tmp_path / "read").exists, "read")
        assert (tmp_path / "read").read_text() == "**text**"


@ui
async def test_nothing_to_copy_is_said(model):
    async with running(model) as chat:
        await chat.press("ctrl+y")
        await chat.until(lambda: "no reply to copy" in chat.banner, "said")
        await chat.press("f7")
        await chat.until(lambda: "no code block" in chat.banner, "said")
