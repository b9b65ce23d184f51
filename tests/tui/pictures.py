"""The app's main states as pictures, and the text of each for the tests.

`python -m tests.tui.pictures FOLDER` writes them as SVG at three widths.
"""

import asyncio
import os
import sys
import tempfile
from contextlib import asynccontextmanager
from pathlib import Path

from edgekv.sessions import Store
from edgekv.tui.screens.models import ModelChoice
from tests.tui.harness import running
from tests.tui.scripted import Gate, Script

WIDTHS = {40: 26, 80: 28, 160: 30}
INTRO = (
    "Attention **sinks** are the first few tokens of a text. Every later token gives them a large "
    "share of its attention, whatever they say:\n"
)
ANSWER = f"""{INTRO}

1. the softmax has to put its weight *somewhere*,
2. the first tokens are seen by all the others,
3. so they learn to take what nobody needs.

```python
def window(tokens, n_sink=4, size=4096):
    return tokens[:n_sink] + tokens[-size:]
```

| cache | perplexity |
|---|---|
| with sinks | 33.1 |
| without | 55.0 |
"""
MODELS = [
    ModelChoice("smollm2-135m", "SmolLM2 135M Instruct", False, 98_000_000, True),
    ModelChoice("llama-3.2-3b", "Llama 3.2 3B Instruct", False, 1_800_000_000, True),
    ModelChoice("qwen3-4b", "Qwen3 4B", False, 2_300_000_000, True),
    ModelChoice("a-larger-one", "Too much for this machine", False, 48_000_000_000, False),
]


def script(*more):
    """The answer, at a speed that a small model has on a laptop."""
    made = Script([*ANSWER], *more)
    made.decode_s, made.cached = len(ANSWER) / 83, 32
    return made


@asynccontextmanager
async def chat_state(model, size):
    async with running(model, script(), size=size, window=1024) as chat:
        await chat.ask("Why does a rolling cache keep the first four tokens?")
        yield "chat", chat


@asynccontextmanager
async def writing_state(model, size):
    gate = Gate()
    more = [*"The window holds the newest 512 tokens. ", gate]
    async with running(model, script(more), size=size, window=512, system="Be brief.") as chat:
        chat.screen.activity._clock = lambda: 100.0
        await chat.ask("Why does a rolling cache keep the first four tokens?")
        await chat.send("And what happens to the oldest turns?")
        await chat.until(lambda: "newest 512" in chat.shown(), "the reply")
        yield "rolling", chat
        gate.open()


@asynccontextmanager
async def sessions_state(model, size):
    with Store() as store:
        for name, n in (("Plans for the garden", 12), ("Sourdough, third try", 8)):
            session = store.create(name, "smollm2-135m")
            for i in range(n):
                role = ("user", "assistant")[i % 2]
                store.append(session.id, role, f"message {i}", finish_reason="stop")
    async with running(model, size=size) as chat:
        await chat.press("ctrl+s")
        await chat.until(lambda: "garden" in chat.shown(), "the list")
        yield "sessions", chat


@asynccontextmanager
async def memory_state(model, size):
    async with running(model, script(), size=size, window=1024) as chat:
        await chat.ask("Why does a rolling cache keep the first four tokens?")
        await chat.press("f3")
        await chat.until(lambda: "Memory of this" in chat.shown(), "the panel")
        chat.app.screen.query_one("#window").value = "256"
        chat.app.screen.query_one("#k_bits").value = 3
        await chat.until(lambda: "256 B" in chat.shown(), "the preview")
        yield "memory", chat


@asynccontextmanager
async def first_run_state(model, size):
    async with running("smollm2-135m", size=size, ready=False, models=MODELS) as chat:
        await chat.until(lambda: "No model is" in chat.shown(), "the offer")
        yield "first-run", chat


@asynccontextmanager
async def help_state(model, size):
    async with running(model, size=size) as chat:
        await chat.press("f1")
        await chat.until(lambda: len(chat.app.screen_stack) == 3, "the help")
        yield "help", chat


@asynccontextmanager
async def fault_state(model, size):
    async with running(model, Script(["Half an answer ", OSError("the disk is gone")])) as chat:
        await chat.resize(*size)
        os.environ.pop("EDGEKV_DEBUG", None)
        await chat.ask("Will this work?")
        await chat.until(lambda: chat.banner, "the banner")
        await chat.type("/re")
        yield "fault", chat


STATES = (
    chat_state,
    writing_state,
    sessions_state,
    memory_state,
    first_run_state,
    help_state,
    fault_state,
)


async def draw(folder):
    for state in STATES:
        for width, height in WIDTHS.items():
            with tempfile.TemporaryDirectory() as home:
                os.environ["EDGEKV_HOME"] = home
                model = Path(home) / "smollm2-135m.gguf"
                model.touch()
                async with state(model, (width, height)) as (name, chat):
                    await chat.pilot.pause(0.3)
                    svg = chat.app.export_screenshot(title=f"edgekv: {name}")
                    (folder / f"{name}-{width}.svg").write_text(svg)


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    asyncio.run(draw(target))
