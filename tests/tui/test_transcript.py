"""The transcript: what is mounted, where it is scrolled, what the model still sees."""

from tests.tui.harness import running, stored, ui
from tests.tui.scripted import Gate, Script


def at_end(chat):
    return chat.transcript.scroll_y >= chat.transcript.max_scroll_y


@ui
async def test_it_keeps_to_the_end_only_while_at_the_end(model):
    gates = [Gate() for _ in range(3)]
    lines = [f"line {i}\n\n" for i in range(60)]
    script = Script([*lines, gates[0], *lines, gates[1], *lines, gates[2]])
    async with running(model, script) as chat:
        await chat.send("go")
        await chat.until(lambda: "line 59" in chat.shown(), "the first part")
        assert at_end(chat)
        await chat.press("pageup")
        await chat.pilot.pause()
        here = chat.transcript.scroll_y
        gates[0].open()
        await chat.until(lambda: gates[1].reached.is_set(), "the second part")
        await chat.pilot.pause(0.3)
        assert chat.transcript.scroll_y == here and not at_end(chat)
        await chat.press("ctrl+end")
        gates[1].open()
        await chat.until(lambda: gates[2].reached.is_set(), "the third part")
        await chat.pilot.pause(0.3)
        assert at_end(chat)


@ui
async def test_of_two_thousand_messages_the_newest_are_mounted(model):
    stored(2000)
    async with running(model, ready=False) as chat:
        await chat.press("ctrl+s")
        await chat.until(lambda: "old" in chat.shown(), "the list")
        await chat.press("enter")
        await chat.until(lambda: "message 1999" in chat.shown(), "the newest message")
        assert len(chat.transcript.views) == 20


@ui
async def test_older_messages_come_on_demand_and_what_is_in_sight_stays(model):
    stored(100)
    async with running(model, last=True) as chat:
        assert "message 99" in chat.shown()
        while len(chat.transcript.views) == 20:
            await chat.press("pageup")
        await chat.pilot.pause(0.1)
        # The hint that stood above it has become messages: it is where it was, within two rows.
        lines = chat.shown().splitlines()
        assert next(i for i, line in enumerate(lines) if "message 80" in line) <= 3
        await chat.press("ctrl+home")
        await chat.until(lambda: "message 0" in chat.shown(), "the beginning")
        assert "later messages" in chat.shown() or len(chat.transcript.views) == 20
        await chat.press("ctrl+end")
        await chat.until(lambda: "message 99" in chat.shown(), "the end")


@ui
async def test_later_messages_come_on_demand_too(model):
    stored(100)
    async with running(model, last=True) as chat:
        await chat.press("ctrl+home")
        await chat.until(lambda: "message 0" in chat.shown(), "the beginning")
        for _ in range(8):
            await chat.press("pagedown")
        await chat.until(lambda: len(chat.transcript.views) >= 30, "ten more")


@ui
async def test_a_long_chat_does_not_pile_up_widgets(model, monkeypatch):
    monkeypatch.setattr("edgekv.tui.widgets.transcript.MOST", 14)
    async with running(model, Script(default="ok"), size=(80, 20)) as chat:
        for i in range(12):
            await chat.ask(f"question {i}")
        assert len(chat.messages) == 24
        assert len(chat.transcript.views) <= 14


@ui
async def test_the_gauge_turns_colour_before_anything_is_forgotten(model):
    async with running(model, Script(["x" * 10]), window=256, size=(140, 30)) as chat:
        await chat.until(lambda: chat.screen.gauge.has_class("-room"), "the gauge")
        await chat.ask("a" * 200)
        assert "evicted 0" in chat.gauge and "nearly full" in chat.gauge
        assert chat.screen.gauge.has_class("-nearly-full")
        await chat.ask("a" * 200)
        assert "rolling" in chat.gauge and "evicted 0" not in chat.gauge
        assert chat.screen.gauge.has_class("-rolling")


@ui
async def test_the_gauge_shows_sinks_pinned_tokens_bytes_and_bits(model):
    async with running(model, window=256, k_bits=3, system="s" * 100, size=(140, 30)) as chat:
        await chat.ask("hello")
        assert "sinks 4" in chat.gauge
        assert "pinned 128" in chat.gauge
        assert "K3 V4" in chat.gauge
        policy = chat.screen.context.policy
        assert f"of {policy.nbytes / 1e3:.0f} kB" in chat.gauge


@ui
async def test_a_line_stands_where_the_model_stopped_seeing_older_turns(model):
    async with running(model, Script(default="y" * 50), window=200, size=(100, 60)) as chat:
        for i in range(4):
            await chat.ask(f"question {i} " + "x" * 40)
        shown = chat.shown()
        assert "older turns above are no longer seen by the model" in shown
        now = chat.screen.context.occupancy
        gone = now.policy.n_sink + now.evicted
        ends, total = [], 0
        for role, text in chat.messages:
            total += len(f"<{role}>{text}\n")
            ends.append(total)
        first = next(i for i, start in enumerate([0, *ends]) if start >= gone)
        assert abs(chat.screen.context.first_seen() - first) <= 1
        children = list(chat.transcript.children)
        line = next(i for i, child in enumerate(children) if child.has_class("roll"))
        seen = chat.transcript.at(chat.screen.context.first_seen())
        assert children[line + 1] is seen


@ui
async def test_the_line_and_gauge_are_there_when_a_long_session_is_opened(model):
    stored(40, text="message {} " + "x" * 60)
    async with running(model, last=True, window=512, size=(100, 40)) as chat:
        await chat.until(lambda: "rolling" in chat.gauge, "measured")
        assert chat.screen.context.first_seen() > 25
        assert "no longer seen" in chat.shown()


@ui
async def test_long_user_messages_are_folded(model):
    async with running(model) as chat:
        await chat.ask("\n".join(f"row {i}" for i in range(100)))
        assert "84 more lines" in chat.shown()
        await chat.press("alt+up", "alt+up", "enter")
        await chat.until(lambda: "84 more lines" not in chat.shown(), "unfolded")
