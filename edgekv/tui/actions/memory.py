"""The model, its memory, and how it draws its words."""

from dataclasses import replace
from typing import TYPE_CHECKING

from edgekv.cache.policy import CachePolicy
from edgekv.errors import EdgekvError, InvalidValue
from edgekv.tui.actions.registry import action
from edgekv.tui.preview import Preview, preview
from edgekv.tui.screens.memory import MemoryScreen
from edgekv.tui.settings import SAMPLING, Settings
from edgekv.tui.startup import choose_model, use_model

if TYPE_CHECKING:
    from edgekv.tui.screens.chat import ChatScreen


@action
async def model(screen: "ChatScreen", argument: str) -> None:
    if argument and not screen.chat_app.is_here(argument):
        raise EdgekvError(f"model {argument} is not on this machine: Ctrl+O gets it")
    name = argument or await choose_model(screen)
    if name and name != screen.chat_app.model_name:
        await screen.stop_and_wait()
        await use_model(screen, name)


@action
async def settings(screen: "ChatScreen", argument: str) -> None:
    loaded = screen.chat_app.loaded
    if loaded is None:
        raise EdgekvError("the model is not loaded yet, so its memory is not known")
    now = screen.context.policy or loaded.policy(screen.settings)

    def look(wanted: Settings) -> Preview:
        then: CachePolicy = loaded.policy(wanted)
        quality = screen.chat_app.quality(loaded.name)
        return preview(now, then, screen.context.tokens, screen.context.prefill_tps, quality)

    chosen = await screen.app.push_screen_wait(MemoryScreen(screen.settings, now.window, look))
    if chosen is not None:
        await screen.configure(chosen)
        screen.toast("applies from the next reply on")


@action
async def system(screen: "ChatScreen", argument: str) -> None:
    asked = argument or await screen.ask_text(
        "System message (empty: none)", screen.settings.config.system or ""
    )
    if asked is not None:
        await screen.configure(screen.settings.changed(system=asked.strip() or None))
        screen.toast("system message set" if asked.strip() else "no system message")


@action
async def set_(screen: "ChatScreen", argument: str) -> None:
    name, _, text = argument.partition(" ")
    if name not in SAMPLING or not text.strip():
        known = ", ".join(SAMPLING)
        raise InvalidValue(f"/set takes a name and a value; names are {known}")
    await _sample(screen, name, text.strip())


@action
async def seed(screen: "ChatScreen", argument: str) -> None:
    if not argument:
        raise InvalidValue("/seed takes a number, or none")
    await _sample(screen, "seed", argument)


async def _sample(screen: "ChatScreen", name: str, text: str) -> None:
    from edgekv import config

    nothing = name == "seed" and text == "none"
    value = None if nothing else config.from_text(name, text, f"/set {name}")
    await screen.configure(screen.settings.changed(**{name: value}))
    screen.toast(f"{name} is {'fresh each time' if value is None else value}")


@action
async def think(screen: "ChatScreen", argument: str) -> None:
    if argument in ("on", "off"):
        chosen = replace(screen.settings, think=argument == "on", think_tokens=None)
    elif argument.isdecimal() and int(argument):
        chosen = replace(screen.settings, think=True, think_tokens=int(argument))
    else:
        raise InvalidValue("/think takes on, off, or how many tokens at the most")
    await screen.configure(chosen)
    screen.toast(f"thinking: {argument}")
