"""Any text, any width, any moment: nothing crashes the chat or is taken for markup."""

import asyncio
import unicodedata
from types import SimpleNamespace

import pytest
from rich.cells import cell_len
from textual.css.query import NoMatches

from edgekv.errors import DamagedFile
from edgekv.sessions import Store
from edgekv.tui.screens.chat import ChatScreen
from tests.tui.harness import running, ui
from tests.tui.scripted import Script

HOSTILE = [
    "# [/mnt/x]",
    "[",
    "[/]",
    "[/b] [red]x[/red] [link=http://a]b[/link]",
    "[@click=app.exit]quit[/]",
    "```\nunclosed [/x]",
    "````\n```\n",
    "| a | b |\n|---|\n| [/x] | c | d |",
    "\x1b[31mred\x1b[0m \x07 \x9b2J \x00",
    "\u202egnp.exe\u202c",
    "\ud800 lone surrogate",
    "a\rb\r\nc\u2028d\u2029e\x85f\x0bg\x0ch",
    "> " * 200 + "deep",
    "- " * 200 + "deep",
    "*" * 5000,
    "[" * 3000 + "](" * 3000,
    "<script>alert(1)</script> &lt; <!-- x",
    "\N{ZERO WIDTH JOINER}" * 50,
    "👩‍👩‍👧‍👦 日本語 ‏עברית‏ العربية é ❤️",
    "$x$ {{ y }} %s {0} \\n",
    "x" * 100_000,
]


@ui
async def test_any_text_of_user_or_model_is_shown_and_kept(model):
    safe = [text.encode("utf-8", "replace").decode() for text in HOSTILE]
    async with running(model, Script(*([text or "-"] for text in safe)), size=(60, 24)) as chat:
        for text in HOSTILE:
            chat.composer.add(text)
            await chat.press("enter")
            await chat.idle()
            await chat.pilot.pause(0)
            assert not chat.banner
            assert not any(unicodedata.category(c) == "Cc" for c in chat.shown() if c != "\n")
        for width in (20, 200):
            await chat.resize(width, 24)
            assert chat.app.is_running
        with Store() as store:
            kept = store.messages(store.last().id)
        replies = [each.content for each in kept if each.role == "assistant"]
        assert replies == [text for text in safe if text.strip()]


@ui
async def test_titles_paths_and_model_names_are_not_markup(model, tmp_path):
    odd = tmp_path / "[bold]m[" / "red].gguf"
    odd.parent.mkdir()
    odd.touch()
    with Store() as store:
        store.create("[/b] [red]title", model="[/x]")
    async with running(odd) as chat:
        assert "red].gguf" in chat.shown()
        await chat.press("ctrl+s")
        await chat.until(lambda: "[/b] [red]title" in chat.shown(), "the title")
        await chat.press("escape")
        await chat.command("/file [/nowhere]/[x]")
        await chat.until(lambda: "[/nowhere]/[x]" in chat.banner, "the path")
        await chat.command("/rename [/b]")
        await chat.until(lambda: "[/b]" in chat.shown(), "the title")


@ui
async def test_a_table_that_grows_character_by_character(model):
    text = "Before\n\n| name | value |\n|:---|---:|\n" + "| a `b` | **1** |\n" * 20 + "\nAfter [/x]"
    async with running(model, Script(list(text)), size=(60, 50)) as chat:
        await chat.ask("go")
        assert chat.messages[-1][1] == text
        shown = chat.shown()
        assert "name" in shown and "After [/x]" in shown
        assert shown.count("a b") == 20


@ui
async def test_a_model_file_that_is_deleted_leaves_the_chat_readable(model):
    with Store() as store:
        session = store.create("old")
        store.append(session.id, "user", "hello there")
        store.append(session.id, "assistant", "hi", finish_reason="stop")
    script = Script(load_error=DamagedFile(f"{model}: no such file"))
    async with running(model, script, ready=False, last=True) as chat:
        await chat.until(lambda: "no such file" in chat.banner, "said")
        assert "Ctrl+O" in chat.banner
        assert "hello there" in chat.shown()
        await chat.put("a question")
        await chat.press("enter")
        await chat.idle()
        assert chat.messages[-1] == ("user", "a question")
        script.load_error = None
        await chat.press("f5")
        await chat.until(lambda: chat.messages[-1] == ("assistant", "An answer."), "it recovers")


@ui
async def test_a_model_that_is_gone_before_sending_keeps_the_prompt(model):
    async with running(model) as chat:
        chat.app.model_name = str(model.with_name("gone.gguf"))
        await chat.put("my long question")
        await chat.press("enter")
        await chat.until(lambda: "no such file" in chat.banner, "said")
        assert chat.composer.text == "my long question"


@ui
async def test_a_storm_of_resizes_from_twenty_to_three_hundred_columns(model):
    async with running(model, Script(["word " * 200, "- a\n- b\n"])) as chat:
        await chat.ask("go")
        for i in range(100):
            await chat.resize(20 + (i * 37) % 281, 8 + (i * 7) % 50)
        await chat.resize(80, 24)
        assert "word word" in chat.shown()
        assert "KV" in chat.shown()


@pytest.mark.parametrize("width", [20, 40, 80, 160, 300])
@ui
async def test_every_width_shows_prompt_gauge_and_text(model, width):
    async with running(model, Script(["Some text."]), size=(width, 24)) as chat:
        await chat.ask("hello")
        shown = chat.shown()
        assert all(cell_len(line) <= width for line in shown.splitlines())
        assert "hello" in shown and "Some text." in shown
        assert "KV 27/4.1k" in shown or "KV 2" in shown
        assert "Enter sends" in shown
        # What matters least goes first.
        assert ("INT4" in shown) == (width >= 80)


@pytest.mark.parametrize("theme", ["textual-light", "ansi-dark", "high-contrast", "colour-blind"])
@ui
async def test_themes_are_chosen_by_name(model, theme):
    async with running(model, Script(["Some `code`.\n\n```python\nx = 1\n```"])) as chat:
        await chat.ask("go")
        await chat.command(f"/theme {theme}")
        await chat.until(lambda: chat.app.theme == theme, "the theme")
        assert "x = 1" in chat.shown()
        await chat.command("/theme nonsense")
        await chat.until(lambda: "no theme" in chat.banner, "said")
    async with running(model) as chat:
        assert chat.app.theme == theme


@ui
async def test_no_color_shows_states_without_colour(model, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    async with running(model, window=200) as chat:
        await chat.ask("x" * 300)
        assert "rolling" in chat.shown()


@ui
async def test_ctrl_c_at_idle_asks_the_second_time_and_no_stays(model):
    async with running(model) as chat:
        await chat.press("ctrl+c")
        await chat.until(lambda: "once more" in chat.toasts, "said")
        await chat.press("ctrl+c")
        await chat.until(lambda: "Quit?" in chat.shown(), "asked")
        await chat.press("n")
        await chat.until(lambda: "Quit?" not in chat.shown(), "stays")
        await chat.press("ctrl+c", "ctrl+c")
        await chat.until(lambda: "Quit?" in chat.shown(), "asked again")
        await chat.press("y")
        await chat.until(lambda: not chat.app.is_running, "quits")


@ui
async def test_ctrl_c_does_not_erase_what_was_typed(model):
    async with running(model) as chat:
        await chat.type("precious")
        await chat.press("ctrl+c")
        assert chat.composer.text == "precious"
        await chat.command("/exit")
        await chat.until(lambda: not chat.app.is_running, "quits")


@ui
async def test_quitting_closes_the_engine(model):
    async with running(model) as chat:
        await chat.ask("go")
        await chat.press("ctrl+d")
        await chat.until(lambda: not chat.app.is_running, "quits")
        chat.app.close()
        assert all(engine.closed for engine in chat.script.engines)


@ui
async def test_the_loop_is_never_held_up_for_long_while_a_long_reply_streams(model):
    text = ["- item number with some words\n"] * 400 + ["```python\n"] + ["x = f(1)\n"] * 400
    async with running(model, Script(text)) as chat:
        await chat.send("go")
        worst = 0.0
        loop = asyncio.get_running_loop()
        while chat.screen.running:
            start = loop.time()
            await asyncio.sleep(0.01)
            worst = max(worst, loop.time() - start)
        assert chat.messages[-1][1] == "".join(text)
        assert worst < 2


@ui
async def test_a_missing_part_is_a_fault_of_a_screen_that_is_open_alone(model):
    async with running(model) as chat:
        with pytest.raises(NoMatches):
            await chat.screen._until_closed(missing(chat.screen))
        await ChatScreen._until_closed(SimpleNamespace(children=()), missing(chat.screen))


async def missing(screen):
    screen.query_one("#no-such-part")
