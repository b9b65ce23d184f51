"""Conversations: listed, searched, opened, renamed, branched, deleted and brought back."""

import json
from functools import partial

from edgekv.sessions import Message, Store
from edgekv.tui.chat import tokens_of
from tests.tui.harness import running, stored, ui
from tests.tui.scripted import Gate, Notice, Script


async def open_list(chat, expect):
    await chat.press("ctrl+s")
    await chat.until(lambda: "Sessions" in chat.shown() and expect in chat.shown(), "the list")


@ui
async def test_the_list_shows_title_model_age_and_size_and_resumes_in_place(model):
    stored(4, "holiday plans")
    async with running(model) as chat:
        await open_list(chat, "holiday plans")
        assert "now · 4 messages · cold" in chat.shown()
        await chat.press("enter")
        await chat.until(lambda: "message 3" in chat.shown(), "resumed")
        await chat.ask("and on")
        assert chat.script.prompts()[0].startswith("<user>message 0\n<assistant>message 1\n")
        with Store() as store:
            assert store.get("holiday plans").n_messages == 6


@ui
async def test_the_list_shows_tokens_as_long_as_they_are_those_of_the_whole_conversation(model):
    async with running(model) as chat:
        await chat.ask("first question")
        tokens = chat.screen.context.tokens
        assert tokens > 0
        await open_list(chat, f"2 messages · {tokens} tokens · cold")
        with Store() as store:
            session = store.last()
            assert tokens_of(session) == tokens
            store.append(session.id, "user", "said elsewhere")
            assert tokens_of(store.last()) is None
        await chat.press("escape")
        await open_list(chat, "3 messages · cold")


@ui
async def test_typing_searches_all_that_was_said_and_goes_there(model):
    stored(60, "one", "alpha {}")
    stored(60, "two", "beta {}")
    async with running(model) as chat:
        await open_list(chat, "two")
        await chat.type("alpha 17")
        await chat.until(lambda: "…alpha 17…" in chat.shown(), "the hit")
        assert "two" not in chat.shown()
        await chat.press("enter")
        await chat.until(lambda: chat.screen.chat.title == "one", "its session")
        await chat.until(lambda: chat.screen.selected_message is not None, "it is selected")
        assert chat.screen.selected_message.position == 17
        assert "alpha 17" in chat.shown()


def is_selected(chat, position):
    found = chat.screen.selected_message
    return found is not None and found.position == position


@ui
async def test_find_goes_from_match_to_match(model):
    stored(50, text="item {}")
    async with running(model, last=True) as chat:
        for expected in (41, 31, 21):
            await chat.command("/find 1") if expected == 41 else await chat.press("ctrl+f")
            if expected != 41:
                await chat.until(lambda: len(chat.app.screen_stack) == 3, "the question")
                await chat.press("enter")
            await chat.until(partial(is_selected, chat, expected), f"match {expected}")
        assert "item 21" in chat.shown()
        await chat.command("/find nowhere")
        await chat.until(lambda: "is not in this conversation" in chat.banner, "said")


@ui
async def test_a_session_is_renamed_and_the_name_is_kept(model):
    async with running(model) as chat:
        await chat.ask("What is [b]this[/b]?")
        assert chat.screen.chat.title == "What is [b]this[/b]?"
        await chat.command("/rename My [/title] \N{SNOWMAN}")
        await chat.until(lambda: "My [/title] ☃" in chat.shown(), "the title")
        with Store() as store:
            assert store.last().name == "My [/title] ☃"


@ui
async def test_the_list_renames_deletes_and_undoes(model):
    stored(2, "first")
    stored(2, "second")
    async with running(model) as chat:
        await open_list(chat, "second")
        await chat.press("f2")
        await chat.until(lambda: len(chat.app.screen_stack) == 4, "the question")
        await chat.press("end", "!", "enter")
        await chat.until(lambda: "second!" in chat.shown(), "renamed")
        await chat.press("delete")
        await chat.until(lambda: "second!" not in chat.shown(), "deleted")
        await chat.press("ctrl+z")
        await chat.until(lambda: "second!" in chat.shown(), "back")


@ui
async def test_deleted_sessions_can_be_found_and_restored_later(model):
    gone = stored(2, "gone")
    with Store() as store:
        store.delete(gone.id)
    async with running(model) as chat:
        await chat.press("ctrl+s", "ctrl+t")
        await chat.until(lambda: "gone" in chat.shown(), "the deleted ones")
        await chat.press("enter")
        await chat.until(lambda: chat.screen.chat.title == "gone", "restored")


@ui
async def test_deleting_the_open_conversation_can_be_undone(model):
    async with running(model) as chat:
        await chat.ask("keep me")
        await chat.command("/delete")
        await chat.until(lambda: chat.messages == [], "a new chat")
        await chat.command("/undelete")
        await chat.until(lambda: ("user", "keep me") in chat.messages, "back")


@ui
async def test_a_branch_goes_on_apart_from_the_selected_message(model):
    async with running(model, Script(["A"], ["B"], ["C"])) as chat:
        await chat.ask("a")
        await chat.ask("b")
        await chat.press("alt+up", "alt+up", "alt+up", "b")
        await chat.until(lambda: len(chat.messages) == 2, "the branch")
        await chat.ask("c")
        assert [text for _, text in chat.messages] == ["a", "A", "c", "C"]
        with Store() as store:
            assert store.get("a").n_messages == 4
            assert store.get("a (2)").parent == store.get("a").id


@ui
async def test_two_windows_on_one_session_are_told_apart(model):
    session = stored(2, "shared")
    with Store() as store:
        lock = store.lock(session.id)
        async with running(model) as chat:
            await open_list(chat, "shared")
            await chat.press("enter")
            await chat.until(lambda: "open in another edgekv" in chat.shown(), "said")
            await chat.press("y")
            await chat.until(lambda: len(chat.messages) == 2, "a branch of it")
            assert chat.screen.chat.session.id != session.id
        lock.release()


@ui
async def test_refused_kv_is_said_and_the_reply_comes_all_the_same(model):
    script = Script([Notice("KV of block 3 is damaged: computed again"), "fine"])
    async with running(model, script) as chat:
        await chat.ask("go")
        await chat.until(lambda: "is damaged: computed again" in chat.banner, "said")
        assert chat.messages[-1] == ("assistant", "fine")


@ui
async def test_switching_while_a_reply_runs_keeps_what_there_is(model):
    stored(2, "other")
    async with running(model, Script(["half", Gate()])) as chat:
        await chat.send("go")
        await chat.until(lambda: "half" in chat.shown(), "it writes")
        first = chat.screen.chat.session.id
        await open_list(chat, "other")
        await chat.press("down", "enter")
        await chat.until(lambda: chat.screen.chat.title == "other", "switched")
        with Store() as store:
            assert store.messages(first)[-1].content == "half"


@ui
async def test_a_full_disk_is_said_once_and_the_chat_goes_on(model, monkeypatch):
    from edgekv.sessions import StoreUnavailable

    def full(*args, **kwargs):
        raise StoreUnavailable("database or disk is full")

    async with running(model) as chat:
        await chat.ask("one")
        monkeypatch.setattr(Store, "append", full)
        await chat.ask("two")
        await chat.until(lambda: "disk is full" in chat.banner, "said")
        assert "not stored" in chat.shown()
        await chat.press("escape")
        await chat.ask("three")
        assert not chat.banner
        assert len(chat.messages) == 6


@ui
async def test_a_store_that_cannot_be_opened_leaves_a_chat_that_works(model, home):
    (home / "data" / "edgekv.db").mkdir(parents=True)
    async with running(model) as chat:
        assert "nothing is kept" in chat.banner
        await chat.ask("hello")
        assert chat.messages[-1] == ("assistant", "An answer.")


@ui
async def test_a_damaged_store_is_set_aside_and_that_is_said(model, home):
    (home / "data").mkdir(parents=True)
    (home / "data" / "edgekv.db").write_bytes(b"this is no database" * 100)
    async with running(model) as chat:
        assert "set aside" in chat.banner
        await chat.ask("hello")
    with Store(home / "data") as store:
        assert store.last().n_messages == 2


@ui
async def test_no_persist_leaves_nothing_on_disk(model, home):
    async with running(model, persist=False) as chat:
        await chat.ask("a secret")
        await chat.command("/history on")
        await chat.press("ctrl+s")
        await chat.until(lambda: "--no-persist" in chat.banner, "said")
    assert not [path for path in home.rglob("*") if path.is_file()]


@ui
async def test_markdown_export_comes_back_by_import(model, tmp_path):
    path = tmp_path / "out.md"
    tricky = "## You\n\n<!-- edgekv: {} -->\n---\nedgekv_export: 9\n[/b]"
    async with running(model, Script([tricky])) as chat:
        await chat.ask("question\n---\n")
        await chat.command(f"/export {path}")
        await chat.until(path.exists, "written")
        said = chat.messages
        text = path.read_text()
        assert text.startswith("---\nedgekv_export: 1\n")
        assert 'kv: "INT4"' in text and "evicted_tokens: 0" in text and "tokens: " in text
        await chat.press("ctrl+n")
        await chat.command(f"/import {path}")
        await chat.until(lambda: chat.messages == said, "the same messages")


@ui
async def test_json_export_comes_back_by_import(model, tmp_path):
    path = tmp_path / "out.json"
    async with running(model) as chat:
        await chat.ask("hello")
        said = chat.messages
        await chat.press("ctrl+e")
        await chat.until(lambda: len(chat.app.screen_stack) == 3, "the question")
        chat.app.screen.query_one("Input").value = str(path)
        await chat.press("enter")
        await chat.until(path.exists, "written")
        assert json.loads(path.read_text())["messages"][0]["content"] == "hello"
        await chat.press("ctrl+n")
        await chat.command(f"/import {path}")
        await chat.until(lambda: chat.messages == said, "the same messages")


@ui
async def test_imports_that_are_none_are_refused(model, tmp_path):
    async with running(model) as chat:
        for name, content in (
            ("a.json", "{}"),
            ("b.md", "hello"),
            ("c.json", '{"edgekv_export": 2, "title": "", "messages": []}'),
            (
                "d.json",
                '{"edgekv_export": 1, "title": "", "messages": [{"role": 1, "content": 2}]}',
            ),
            ("e.json", "{" * 100_000),
        ):
            (tmp_path / name).write_text(content)
            chat.screen.banner.dismiss()
            await chat.command(f"/import {tmp_path / name}")
            await chat.until(lambda: "not a conversation" in chat.banner, name)
        assert chat.messages == []


def test_a_message_with_any_text_survives_an_export(tmp_path):
    from edgekv.tui.export import Facts, read_export, write_export

    texts = ["", "\n\n", "---\n", "<!-- edgekv: x -->", "a\r\nb", "日本語 \N{SNOWMAN}", "```\n```"]
    messages = [Message(i, "user", text.replace("\r\n", "\n")) for i, text in enumerate(texts)]
    facts = Facts('ti"tle: x', "m", None, None, 0, None)
    for name in ("x.md", "x.json"):
        write_export(tmp_path / name, facts, messages)
        title, read = read_export(tmp_path / name)
        assert title == 'ti"tle: x'
        assert [text for _, text in read] == [each.content for each in messages]
