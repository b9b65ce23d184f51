"""How long a key waits while the chat is busy: `python benchmarks/chat_latency.py [--out FILE]`.

A scripted engine streams 80 tokens a second into the app; keys are pressed meanwhile, and the time
from each press to the frame that shows it is taken. Needs the package's `test` extra.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

import edgekv.tui  # noqa: E402, F401 - before Textual, which it sets up
from tests.tui.harness import running, stored  # noqa: E402
from tests.tui.scripted import Gate, Script  # noqa: E402

RATE = 80
KEYS = 100
PROSE = "Some words of a reply, **bold** and `code`, that go on for a while. " * 6 + "\n\n"
TEXTS = {
    "prose": PROSE,
    "list": "- an item of a list, of some length, as models write them\n",
    "code": "    value = call(first, second, 'three')  # with a comment\n",
    "table": "| one | two | three |\n",
}
HEADS = {"code": "```python\n", "table": "| a | b | c |\n|---|---|---|\n"}


class Paced(Gate):
    """Holds the engine for a token's time, on one clock, so that it does not drift."""

    def __init__(self) -> None:
        super().__init__()
        self.due = 0.0
        self.event = self
        self.reached = threading.Event()

    def wait(self, timeout: float | None = None) -> bool:
        now = time.perf_counter()
        self.due = max(self.due + 1 / RATE, now - 1)
        time.sleep(max(0.0, self.due - now))
        return True


def script(kind: str, n: int = 4000) -> Script:
    whole = HEADS.get(kind, "") + TEXTS[kind] * (4 * n // len(TEXTS[kind]) + 1)
    pieces, pace = [], Paced()
    for i in range(n):
        pieces += [pace, whole[4 * i : 4 * i + 4]]
    return Script(pieces)


async def keys_while_streaming(model: Path, kind: str) -> list[tuple[float, float]]:
    """(by the clock, of the app's own CPU time): ms from each of KEYS presses to its paint."""
    stored(200, text="message {} " + PROSE)
    waits = []
    async with running(model, script(kind), size=(120, 40), last=True) as chat:
        await chat.send("go")
        await chat.until(lambda: len(chat.messages) == 202, "the reply begins")
        await asyncio.sleep(6)  # into a reply of some length
        paints = record_paints(chat)
        for i in range(KEYS):
            before = chat.composer.text
            start, worked = time.perf_counter(), time.thread_time()
            chat.app.post_message(key("abcdefgh"[i % 8]))
            while not paints or paints[-1].text == before:
                await asyncio.sleep(0.001)
            first = next(paint for paint in paints if paint.text != before)
            waits.append((1000 * (first.clock - start), 1000 * (first.cpu - worked)))
            paints.clear()
            await asyncio.sleep(0.03)
        chat.screen.stop_reply()
        await chat.idle()
    return waits


class Paint(NamedTuple):
    """When the app wrote to its terminal, by the clock and in CPU time, and what was typed then."""

    clock: float
    cpu: float
    text: str


def record_paints(chat: Any) -> list[Paint]:  # noqa: ANN401 - the tests' own driver
    """The paints from now on."""
    display, paints = chat.app._display, []

    def recorded(*args: object) -> None:
        display(*args)
        paints.append(Paint(time.perf_counter(), time.thread_time(), chat.composer.text))

    chat.app._display = recorded
    return paints


def key(character: str) -> Any:  # noqa: ANN401 - imported late
    from textual.events import Key

    return Key(character, character)


async def escape(model: Path) -> float:
    """Milliseconds from Escape to the end of the reply, the engine's token included."""
    async with running(model, script("prose"), size=(120, 40)) as chat:
        await chat.send("go")
        await chat.until(lambda: len(chat.messages) == 2, "the reply begins")
        await asyncio.sleep(2)
        start = time.perf_counter()
        await chat.press("escape")
        while chat.screen.running:
            await asyncio.sleep(0.001)
        return 1000 * (time.perf_counter() - start)


async def opening(model: Path, n: int = 2000) -> float:
    """Milliseconds from Enter in the list of sessions to the newest message of one of `n`."""
    stored(n, "long", "message {} " + PROSE)
    async with running(model, size=(120, 40), ready=False) as chat:
        await chat.press("ctrl+s")
        await chat.until(lambda: "long" in chat.shown(), "the list")
        start = time.perf_counter()
        await chat.press("enter")
        while f"message {n - 1}" not in chat.shown():
            await asyncio.sleep(0.005)
        return 1000 * (time.perf_counter() - start)


async def paste(model: Path) -> float:
    """Milliseconds from a paste of one megabyte to its mark on the screen."""
    from textual.events import Paste

    async with running(model, size=(120, 40)) as chat:
        start = time.perf_counter()
        chat.composer.post_message(Paste("a line of some length, pasted\n" * 35_000))
        while "[pasted" not in chat.shown():
            await asyncio.sleep(0.002)
        return 1000 * (time.perf_counter() - start)


def at_home(measure: Callable[..., Any], *args: object) -> Any:  # noqa: ANN401
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGEKV_HOME"] = home
        model = Path(home) / "model.gguf"
        model.touch()
        return asyncio.run(measure(model, *args))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    os.environ["TEXTUAL_ANIMATIONS"] = "none"
    found = {"host": platform.platform(), "python": platform.python_version(), "keys_ms": {}}
    for kind in TEXTS:
        clock, cpu = zip(*at_home(keys_while_streaming, kind), strict=True)
        row = {
            "p50": statistics.median(clock),
            "p95": statistics.quantiles(clock, n=20)[18],
            "max": max(clock),
            "cpu_p95": statistics.quantiles(cpu, n=20)[18],
        }
        found["keys_ms"][kind] = {name: round(value, 1) for name, value in row.items()}
        print(kind, found["keys_ms"][kind], flush=True)
    for name, measure in (("escape_ms", escape), ("open_2000_ms", opening), ("paste_ms", paste)):
        found[name] = sorted(round(at_home(measure), 1) for _ in range(5))
        print(name, found[name], flush=True)
    if out:
        out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
