"""Models: the first run, getting one, switching, and what memory settings change."""

import sys

from edgekv import config
from edgekv.sessions import Store
from edgekv.tui.screens.models import ModelChoice
from tests.tui.harness import running, ui
from tests.tui.scripted import Gate, Script

PULL = """
import os, pathlib, sys, time
path = pathlib.Path(sys.argv[1])
path.with_suffix(".partial").touch()
for i in range({steps}):
    os.truncate(path.with_suffix(".partial"), (i + 1) * 10_000_000)
    time.sleep({pause})
if "{error}":
    sys.exit("{error}")
path.with_suffix(".partial").rename(path)
"""


def puller(monkeypatch, path, steps=1, pause=0.0, error=""):
    """A command that downloads in its own way, in place of `edgekv models pull`."""
    code = PULL.format(steps=steps, pause=pause, error=error)
    monkeypatch.setattr("edgekv.tui.screens.models.PULL", (sys.executable, "-c", code))
    partial = path.with_suffix(".partial")

    def measure(app, name):
        return sum(each.stat().st_size for each in (path, partial) if each.exists())

    monkeypatch.setattr("edgekv.tui.app.ChatApp.measure_download", measure)
    return [
        ModelChoice(str(path), "A small model", False, 98_000_000, True),
        ModelChoice("huge-model", "A large one", False, 98_000_000_000, False),
    ]


@ui
async def test_the_first_run_offers_the_default_and_starts_with_it(tmp_path, monkeypatch):
    path = tmp_path / "new.gguf"
    models = puller(monkeypatch, path, steps=4, pause=0.3)
    monkeypatch.setattr("edgekv.catalog.existing", lambda name: path)
    monkeypatch.setattr("edgekv.download.find_local", lambda model: path if path.exists() else None)
    async with running(path, ready=False, models=models) as chat:
        await chat.until(lambda: "No model is on this machine yet" in chat.shown(), "the offer")
        shown = chat.shown()
        assert "98 MB to download · fits here" in shown
        assert "98 GB to download · too large for this machine" in shown
        await chat.press("enter")
        await chat.until(lambda: "of 98 MB · Esc cancels" in chat.shown(), "progress")
        await chat.ready()
        await chat.ask("hello")
        assert chat.messages[-1] == ("assistant", "An answer.")


@ui
async def test_a_download_is_cancelled_and_can_begin_again(tmp_path, monkeypatch):
    path = tmp_path / "new.gguf"
    models = puller(monkeypatch, path, steps=1000, pause=0.05)
    monkeypatch.setattr("edgekv.catalog.existing", lambda name: path)
    monkeypatch.setattr("edgekv.download.find_local", lambda model: path if path.exists() else None)
    # The second is interrupted before it has run any of our code.
    slow = "import signal, sys, time; signal.signal(2, lambda *_: sys.exit(1)); time.sleep(60)"
    async with running(path, ready=False, models=models) as chat:
        await chat.until(lambda: "No model" in chat.shown(), "the offer")
        for _ in range(2):
            await chat.press("enter")
            await chat.until(lambda: "Esc cancels" in chat.shown(), "progress")
            await chat.press("escape")
            await chat.until(lambda: "nothing of it is kept" in chat.shown(), "cancelled")
            monkeypatch.setattr("edgekv.tui.screens.models.PULL", (sys.executable, "-c", slow))
        models = puller(monkeypatch, path)
        await chat.press("enter")
        await chat.ready()


@ui
async def test_a_download_that_fails_says_why(tmp_path, monkeypatch):
    path = tmp_path / "new.gguf"
    models = puller(monkeypatch, path, error="edgekv: no [/network] today")
    monkeypatch.setattr("edgekv.catalog.existing", lambda name: path)
    monkeypatch.setattr("edgekv.download.find_local", lambda model: path if path.exists() else None)
    async with running(path, ready=False, models=models) as chat:
        await chat.until(lambda: "No model" in chat.shown(), "the offer")
        await chat.press("enter")
        await chat.until(lambda: "no [/network] today" in chat.shown(), "the reason")
        await chat.press("escape")
        await chat.until(lambda: "Ctrl+O gets one" in chat.banner, "the app stays")
        await chat.type("a draft")
        assert chat.composer.text == "a draft"


@ui
async def test_the_model_is_switched_and_back_with_the_conversation(model):
    other = model.with_name("other.gguf")
    other.touch()
    models = [
        ModelChoice(str(model), "This one", True, 98_000_000, True),
        ModelChoice(str(other), "Another", True, 1_800_000_000, None),
    ]
    async with running(model, models=models) as chat:
        await chat.ask("one")
        await chat.press("ctrl+o")
        await chat.until(lambda: "in use · 98 MB · fits here" in chat.shown(), "the list")
        await chat.press("down", "enter")
        await chat.until(lambda: "other.gguf" in chat.shown(), "switched")
        await chat.ready()
        assert chat.script.engines[0].closed
        await chat.ask("two")
        assert chat.script.prompts()[-1].startswith("<user>one\n<assistant>An answer.\n<user>two")
        with Store() as store:
            assert store.last().model == str(other)
        await chat.command(f"/model {model}")
        await chat.until(lambda: len(chat.script.engines) == 3, "switched back")
        await chat.ready()
        await chat.ask("three")
        assert len(chat.messages) == 6


@ui
async def test_a_model_that_does_not_exist_is_a_banner(model):
    async with running(model) as chat:
        await chat.command("/model nothing-like-it")
        await chat.until(lambda: "no model is named" in chat.banner, "said")


@ui
async def test_memory_settings_show_what_a_change_does_before_it_is_made(model):
    async with running(model, window=256, size=(100, 40)) as chat:
        await chat.ask("x" * 100)
        await chat.press("f3")
        await chat.until(lambda: "nothing changes" in chat.shown(), "the panel")
        chat.app.screen.query_one("#window").value = "512"
        await chat.until(lambda: "209 kB → 283 kB" in chat.shown(), "memory")
        assert "nothing has to be read again" in chat.shown()
        chat.app.screen.query_one("#k_bits").value = 3
        await chat.until(lambda: "INT4 → K3 V4" in chat.shown(), "bits")
        assert "tokens of this chat are read again" in chat.shown()
        chat.app.screen.query_one("#n_sink").value = "99"
        await chat.until(lambda: "n_sink must be from 0 to 64" in chat.shown(), "refused")
        await chat.press("ctrl+s")
        assert len(chat.app.screen_stack) == 3
        chat.app.screen.query_one("#n_sink").value = "8"
        await chat.press("ctrl+s")
        await chat.until(lambda: "K3 V4" in chat.gauge, "applied")
        await chat.ask("again")
        policy = chat.script.requests[-1].policy
        assert (policy.window, policy.n_sink, policy.layers[0].k_bits) == (512, 8, 3)
        with Store() as store:
            assert store.last().settings["window"] == 512
    async with running(model, last=True, window=256) as chat:
        await chat.ask("still")
        assert chat.script.requests[-1].policy.window == 512


@ui
async def test_memory_settings_are_reached_and_left_by_keys_alone(model):
    async with running(model) as chat:
        await chat.press("f3")
        await chat.until(lambda: "Memory of this" in chat.shown(), "the panel")
        names = []
        for _ in range(5):
            names.append(chat.app.screen.focused.id)
            await chat.press("tab")
        assert names == ["window", "n_sink", "k_bits", "v_bits", "pin"]
        await chat.press("escape")
        await chat.until(lambda: "Memory of this" not in chat.shown(), "left")


SETTINGS = ("/set temp 0.7", "/set max_tokens 9", "/seed 5", "/system Be kind.", "/think off")
WRONG = (
    ("/set temp hot", "expected a number"),
    ("/set x 1", "names are temp"),
    ("/think x", "takes on, off"),
)


@ui
async def test_sampling_system_and_seed_are_set_by_commands(model):
    async with running(model) as chat:
        for line in SETTINGS:
            await chat.command(line)
            await chat.until(lambda: not chat.composer.text, "taken")
        await chat.ask("hello")
        request = chat.script.requests[0]
        assert (request.sampling.temp, request.sampling.seed, request.max_tokens) == (0.7, 5, 9)
        assert chat.script.prompts()[0].startswith("<system>Be kind.\n<user>hello")
        for line, why in WRONG:
            await chat.command(line)
            await chat.until(lambda why=why: why in chat.banner, why)


@ui
async def test_a_new_chat_starts_from_what_the_app_was_started_with(model):
    async with running(model) as chat:
        await chat.command("/system Be odd.")
        await chat.ask("hello")
        await chat.press("ctrl+n")
        await chat.until(lambda: chat.messages == [], "new")
        await chat.ask("hello")
        assert chat.script.prompts()[1] == "<user>hello\n<assistant>"


@ui
async def test_the_palette_has_every_command(model):
    from edgekv.tui.commands import COMMANDS

    async with running(model) as chat:
        titles = {command.title for command in chat.app.get_system_commands(chat.screen)}
        assert {command.title for command in COMMANDS} <= titles
        await chat.press("ctrl+p")
        await chat.until(lambda: len(chat.app.screen_stack) == 3, "the palette")
        await chat.type("New chat")
        await chat.pilot.pause(0.3)
        await chat.press("enter", "enter")
        await chat.until(lambda: len(chat.app.screen_stack) == 2, "run")


@ui
async def test_loading_says_so_and_the_app_is_usable_meanwhile(model):
    script = Script()
    script.load_gate.clear()
    async with running(model, script, ready=False) as chat:
        await chat.until(lambda: "loading tiny.gguf" in chat.shown(), "said")
        await chat.send("early bird")
        assert "early bird" in chat.shown()
        script.load_gate.set()
        await chat.until(lambda: len(chat.messages) == 2, "answered once loaded")


@ui
async def test_the_default_of_the_first_run_is_written_down(tmp_path, monkeypatch):
    path = tmp_path / "new.gguf"
    path.touch()
    async with running(path) as chat:
        await chat.app.first_model("smollm2-360m")
        assert config.load().model == "smollm2-360m"
        assert chat.app.model_name == "smollm2-360m"


@ui
async def test_switching_the_model_stops_the_reply_first(model):
    other = model.with_name("other.gguf")
    other.touch()
    async with running(model, Script(["half", Gate()])) as chat:
        await chat.send("go")
        await chat.until(lambda: "half" in chat.shown(), "it writes")
        await chat.command(f"/model {other}")
        await chat.until(lambda: len(chat.script.engines) == 2, "switched")
        assert chat.messages[-1] == ("assistant", "half")
