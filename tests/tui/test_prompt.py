"""The prompt: keys, pastes, history, drafts, completion, files."""

import pytest

from edgekv.sessions import Store
from tests.tui.harness import running, ui
from tests.tui.scripted import Gate, Script


async def paste(chat, text):
    from textual.events import Paste

    chat.composer.post_message(Paste(text))
    await chat.pilot.pause()


@pytest.mark.parametrize("key", ["alt+enter", "ctrl+j", "shift+enter"])
@ui
async def test_enter_sends_and_other_enters_begin_a_line(model, key):
    async with running(model) as chat:
        assert "Enter sends" in chat.shown()
        await chat.type("one")
        await chat.press(key)
        await chat.type("two")
        assert chat.composer.text == "one\ntwo"
        await chat.press("enter")
        await chat.until(lambda: chat.messages[:1] == [("user", "one\ntwo")], "sent")


@ui
async def test_a_paste_of_many_lines_is_one_block_and_is_not_sent(model):
    text = "\n".join(f"line {i}" for i in range(50)) + "\n"
    async with running(model) as chat:
        await chat.type("see ")
        await paste(chat, text)
        assert chat.composer.text == "see [pasted 51 lines]"
        assert chat.messages == []
        await paste(chat, text.upper())
        assert chat.composer.text == "see [pasted 51 lines][pasted 51 lines, 2]"
        await chat.press("enter")
        await chat.idle()
        assert chat.messages[0] == ("user", f"see {text}{text.upper()}")


@ui
async def test_a_pasted_megabyte_is_a_mark(model):
    text = "a line of some length, pasted\n" * 35_000
    async with running(model) as chat:
        await paste(chat, text)
        assert "[pasted 35,001 lines]" in chat.shown()
        await chat.press("enter")
        await chat.until(lambda: "over the limit" in chat.banner, "refused")
        assert chat.composer.text == "[pasted 35,001 lines]"
        assert len(chat.screen.prompt.value) == len(text)


@ui
async def test_control_characters_of_a_paste_do_not_reach_the_terminal(model):
    async with running(model) as chat:
        await paste(chat, "a\x1b[31mred\x07\x9b\ud800 b\r\nc")
        assert chat.composer.text == "a[31mred? b\nc"


@ui
async def test_up_recalls_prompts_also_those_of_earlier_days(model):
    async with running(model) as chat:
        await chat.ask("first")
        await chat.ask("second")
        await chat.type("draft")
        await chat.press("up")
        assert chat.composer.text == "second"
        await chat.press("up")
        assert chat.composer.text == "first"
        await chat.press("down", "down")
        assert chat.composer.text == "draft"
    async with running(model) as chat:
        await chat.press("up", "up") if chat.composer.text else await chat.press("up")
        assert chat.composer.text == "second"


@ui
async def test_history_has_an_off_switch(model, home):
    async with running(model) as chat:
        await chat.ask("secret")
        await chat.command("/history off")
        await chat.until(lambda: "not kept" in chat.toasts, "said")
        await chat.ask("another secret")
    kept = home / "data" / "prompts.jsonl"
    assert not kept.exists()
    async with running(model) as chat:
        await chat.press("up")
        assert chat.composer.text == ""


def test_a_damaged_history_costs_its_damaged_lines_alone(home):
    from edgekv.tui.prompts import PromptHistory

    path = home / "prompts.jsonl"
    home.mkdir()
    path.write_bytes(b'"one"\n\xff{\n"two"\n17\n')
    prompts = PromptHistory()
    prompts.keep(path)
    assert [prompts.earlier(""), prompts.earlier("")] == ["two", "one"]


@ui
async def test_what_was_typed_survives_a_killed_app(model):
    async with running(model) as chat:
        await chat.type("forty minutes of work")
        await chat.until(lambda: chat.screen.chat.session is not None, "the draft is kept")
        with Store() as store:
            assert store.last().draft == "forty minutes of work"
    async with running(model) as chat:
        assert chat.composer.text == "forty minutes of work"


@ui
async def test_create_type_quit_at_once_reopen(model):
    async with running(model, ready=False) as chat:
        await chat.type("hello")
        await chat.press("ctrl+d")
        await chat.until(lambda: not chat.app.is_running, "it quits")
    async with running(model) as chat:
        assert chat.composer.text == "hello"


@ui
async def test_each_session_has_its_own_draft(model):
    async with running(model) as chat:
        await chat.ask("one")
        first = chat.screen.chat.session.name
        await chat.type("draft of one")
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.screen.chat.title == "New chat", "a new chat")
        assert chat.composer.text == ""
        await chat.press("ctrl+s")
        await chat.pilot.pause(0.2)
        await chat.press("enter")
        await chat.until(lambda: chat.screen.chat.title == first, "back in the first")
        assert chat.composer.text == "draft of one"


@ui
async def test_a_slash_offers_commands_and_tab_completes(model):
    async with running(model) as chat:
        await chat.type("/re")
        assert "/retry" in chat.shown() and "Answer the last question once more" in chat.shown()
        await chat.press("down", "tab")
        assert chat.composer.text == "/retry"
        await chat.press("escape")
        assert "Answer the last question once more" not in chat.shown()


@ui
async def test_enter_runs_the_selected_completion(model):
    async with running(model) as chat:
        await chat.type("/hel")
        await chat.press("enter")
        await chat.until(lambda: len(chat.app.screen_stack) == 3, "help is open")


@ui
async def test_a_command_that_is_none_is_said_and_a_space_sends_it(model):
    async with running(model) as chat:
        await chat.command("/mnt/x is a path")
        await chat.until(lambda: "no command /mnt/x" in chat.banner, "said")
        assert chat.composer.text == "/mnt/x is a path"
        await chat.ask(" /mnt/x is a path")
        assert chat.messages[0] == ("user", " /mnt/x is a path")


@ui
async def test_a_file_goes_into_the_prompt_with_its_size_and_tokens(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("some ``` notes")
    async with running(model) as chat:
        await chat.command("/file notes.txt")
        await chat.until(lambda: "[file" in chat.composer.text, "the file")
        assert chat.composer.text == "[file notes.txt: 14 B, 14 tokens]"
        await chat.press("enter")
        await chat.idle()
        assert chat.messages[0][1] == "notes.txt:\n````\nsome ``` notes\n````\n"


@ui
async def test_an_at_sign_picks_a_file(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "poem.txt").write_text("roses")
    async with running(model) as chat:
        await chat.type("read @fol")
        assert "folder/" in chat.shown()
        await chat.press("tab")
        assert chat.composer.text == "read @folder/"
        await chat.press("tab")
        await chat.until(lambda: "[file" in chat.composer.text, "the file")
        assert chat.composer.text == "read [file poem.txt: 5 B, 5 tokens]"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"a\0b", "is binary"),
        (b"\xff\xfe", "not UTF-8"),
        (b"x" * 600_000, "more than"),
        (None, "cannot read"),
    ],
)
@ui
async def test_files_that_cannot_be_sent_are_refused_with_the_reason(model, tmp_path, content, why):
    path = tmp_path / "it"
    if content is not None:
        path.write_bytes(content)
    async with running(model) as chat:
        await chat.command(f"/file {path}")
        await chat.until(lambda: why in chat.banner, why)


@ui
async def test_typing_while_a_message_is_selected_goes_to_the_prompt(model):
    async with running(model) as chat:
        await chat.ask("one")
        await chat.press("alt+up")
        assert chat.screen.selected_message.role == "assistant"
        await chat.type("hi")
        assert chat.composer.text == "hi" and chat.composer.has_focus


@ui
async def test_the_terminals_cursor_follows_wide_characters(model):
    async with running(model) as chat:
        x, y = chat.app.cursor_position
        await chat.type("日本")
        await chat.pilot.pause()
        assert chat.app.cursor_position == (x + 4, y)
        await paste(chat, "é👍🏽")
        await chat.pilot.pause()
        assert chat.composer.cursor_location == (0, len("日本é👍🏽"))


@ui
async def test_the_prompt_can_be_written_in_an_editor(model, tmp_path, monkeypatch):
    script = tmp_path / "editor.sh"
    script.write_text('#!/bin/sh\nprintf "written there" > "$1"\n')
    script.chmod(0o755)
    monkeypatch.setenv("EDITOR", str(script))
    monkeypatch.delenv("VISUAL", raising=False)
    from contextlib import nullcontext

    async with running(model) as chat:
        monkeypatch.setattr(chat.app, "suspend", nullcontext)
        await chat.press("ctrl+g")
        await chat.until(lambda: chat.composer.text == "written there", "the text")


@ui
async def test_a_gate_that_never_opens_does_not_keep_the_app_from_quitting(model):
    async with running(model, Script(["half", Gate()])) as chat:
        await chat.send("go")
        await chat.until(lambda: "half" in chat.shown(), "it writes")
        await chat.press("ctrl+d")
        await chat.until(lambda: not chat.app.is_running, "it quits")
    with Store() as store:
        assert store.messages(store.last().id)[-1].content == "half"
