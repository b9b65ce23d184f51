"""The app driven as its user drives it: keys in, what is on the screen out."""

import asyncio
import functools
import time
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from textual.events import Key, Resize
from textual.geometry import Size

from edgekv import config
from edgekv.sessions import Store
from edgekv.tui.app import ChatApp, Start
from edgekv.tui.screens.models import ModelChoice
from edgekv.tui.settings import Settings
from tests.tui.scripted import Script

PATIENCE_S = 20


def ui(test):
    """Run an async test on a loop of its own."""

    @functools.wraps(test)
    def run(*args, **kwargs):
        asyncio.run(test(*args, **kwargs))

    return run


@dataclass
class Driver:
    """The running app and its pilot."""

    app: ChatApp
    pilot: object
    script: Script

    @property
    def screen(self):
        """The chat screen, whatever is open above it."""
        return self.app.screen_stack[1]

    @property
    def transcript(self):
        return self.screen.transcript

    @property
    def composer(self):
        return self.screen.composer

    @property
    def banner(self):
        return self.screen.banner.text

    @property
    def toasts(self):
        return " | ".join(toast.message for toast in self.app._notifications)

    @property
    def messages(self):
        return [(each.role, each.content) for each in self.screen.chat.messages]

    @property
    def gauge(self):
        return self.screen.gauge.render().plain

    def shown(self):
        """The text of the whole screen, a line a row."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)

    async def press(self, *keys):
        """Press keys, each when the one before has been dealt with."""
        for key in keys:
            self.app.post_message(Key(key, key if len(key) == 1 else None))
            await self.pilot.pause(0)
            await self.pilot.pause(0)

    async def type(self, text):
        """Keys one behind the other, as fast as they come."""
        for character in text:
            self.app.post_message(Key(KEYS.get(character, character), character))
        await self.pilot.pause(0)
        await self.pilot.pause(0)

    async def until(self, condition, what=""):
        """Wait for what the app does in its own time."""
        end = time.monotonic() + PATIENCE_S
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"never: {what}\n{self.shown()}")
            await asyncio.sleep(0.005)
        await self.pilot.pause(0)

    async def ready(self):
        await self.until(lambda: self.app.loaded is not None, "the model loads")
        await self.idle()

    async def idle(self):
        await self.until(lambda: not self.screen.running, "the reply ends")

    async def resize(self, width, height):
        self.app._driver._size = (width, height)
        self.app.post_message(Resize(Size(width, height), Size(width, height)))
        await self.pilot.pause(0)

    async def put(self, text):
        """A prompt that is there at once."""
        self.composer.focus()
        self.screen.prompt.value = text
        await self.pilot.pause(0)

    async def send(self, text):
        await self.put(text)
        await self.press("enter")
        await self.until(lambda: not self.composer.text, "the prompt is sent")

    async def ask(self, text):
        """Send, and wait for the whole reply."""
        await self.send(text)
        await self.idle()

    async def command(self, text):
        await self.put(text)
        await self.press("enter")
        await self.pilot.pause(0)


KEYS = {" ": "space", "/": "slash", "@": "at", ".": "full_stop", "\n": "enter"}


def settings(model, **values):
    own = {key: values.pop(key) for key in ("overflow", "budget", "pin_system") if key in values}
    return Settings(replace(config.Config(model=str(model)), **values), **own)


@asynccontextmanager
async def running(model, script=None, size=(100, 30), ready=True, **options):
    """The app on a scripted engine; `options` are those of Start, and settings."""
    script = script or Script()
    start = {
        key: options.pop(key) for key in ("session", "last", "persist", "light") if key in options
    }
    models = options.pop("models", [ModelChoice(str(model), "A model", True, 98_000_000, True)])
    app = ChatApp(Start(settings(model, **options), lambda: models, **start), script)
    async with app.run_test(size=size) as pilot:
        driver = Driver(app, pilot, script)
        await driver.until(lambda: len(app.screen_stack) > 1 and driver.screen.started, "starts")
        if ready:
            await driver.ready()
        yield driver
        if driver.screen.running:
            driver.screen.stop_reply()
            await driver.idle()
        driver.screen.chat.close()
    app.close()


def stored(n, name="old", text="message {}"):
    """A stored session of n messages, questions and replies in turn."""
    with Store() as store:
        session = store.create(name)
        # The second copy of the transcript is written whole each time: once is enough here.
        copy, store._copy = store._copy, lambda session: None
        for i in range(n):
            if i == n - 1:
                store._copy = copy
            role = ("user", "assistant")[i % 2]
            reason = None if role == "user" else "stop"
            store.append(session.id, role, text.format(i), finish_reason=reason)
        return session
