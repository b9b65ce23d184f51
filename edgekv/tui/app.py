"""The app: it owns the store, the model and the settings, and opens at once without any of them."""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from textual.app import App, SystemCommand
from textual.screen import Screen

from edgekv import catalog, config, download
from edgekv.errors import EdgekvError
from edgekv.quality import measured_kld
from edgekv.sessions import Session, SessionNotFound, Store
from edgekv.tui.chat import Chat, Say
from edgekv.tui.commands import COMMANDS
from edgekv.tui.preferences import load_preferences, save_preferences
from edgekv.tui.preview import Quality
from edgekv.tui.prompts import PromptHistory
from edgekv.tui.screens.chat import ChatScreen
from edgekv.tui.screens.models import ListModels
from edgekv.tui.settings import Settings
from edgekv.tui.themes import THEMES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from edgekv.tui.model import MakeEngine, Model

HISTORY, PREFERENCES = "prompts.jsonl", "chat.json"
LIGHT = "textual-light"
MOUSE = (1000, 1003, 1006)
"""The modes of xterm in which it reports the mouse."""


@dataclass(frozen=True)
class Start:
    """What the chat is started with.

    list_models: what the models screen shows.
    session: a name or id to open, made where there is none; last: open the one used last.
    persist: whether anything may be written to disk.
    light: whether the terminal's background is a light one.
    """

    settings: Settings
    list_models: ListModels
    session: str | None = None
    last: bool = False
    persist: bool = True
    light: bool = False


class ChatApp(App[None]):
    """Use `run()`. make_engine: what makes an engine of a model's path; tests give their own."""

    TITLE = "edgekv"
    CSS_PATH = "edgekv.tcss"
    ENABLE_COMMAND_PALETTE = True
    AUTO_FOCUS = None

    def __init__(self, start: Start, make_engine: "MakeEngine | None" = None) -> None:
        super().__init__()
        self.start = start
        self.store: Store | None = None
        self.settings = start.settings
        self.model_name = start.settings.config.model
        self.preferences = load_preferences(_data(PREFERENCES))
        self._make_engine = make_engine
        self._model: asyncio.Future[Model] | None = None
        self._open: list[Model] = []
        self.prompts = PromptHistory()

    def on_mount(self) -> None:
        for theme in THEMES:
            self.register_theme(theme)
        wanted = self.preferences.theme or (LIGHT if self.start.light else None)
        if wanted in self.available_themes:
            self.theme = str(wanted)
        chat = ChatScreen(self.settings)
        self.push_screen(chat)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP):
            # A window that is closed, a machine that shuts down: the draft is kept.
            loop.add_signal_handler(number, chat.run_command, "exit")

    def choose_theme(self, theme: str) -> None:
        """Draw with a theme from now on, and the next time. Raises EdgekvError."""
        self.theme = theme
        self.prefer(theme=theme)

    def open_store(self) -> None:
        """Open what is on disk; called on a thread. Raises StoreUnavailable."""
        if self.start.persist:
            if self.preferences.history:
                self.prompts.keep(_data(HISTORY))
            self.store = Store()

    def prefer(self, **changes: object) -> None:
        """Change preferences and, where anything may be written, keep them. Raises EdgekvError."""
        self.preferences = replace(self.preferences, **changes)  # type: ignore[arg-type]
        if self.start.persist:
            save_preferences(_data(PREFERENCES), self.preferences)

    def keep_prompts(self, keep: bool) -> None:
        """Remember prompts from now on, or forget all of them. Raises EdgekvError."""
        if not keep:
            self.prompts.forget()
        elif self.start.persist:
            self.prompts.keep(_data(HISTORY))
        self.prefer(history=keep)

    # The model

    def model(self) -> "asyncio.Future[Model]":
        """The model, being loaded if it was not; a failed load is tried again."""
        if self._model is None or (self._model.done() and _failed(self._model)):
            name = self.model_name
            self._model = asyncio.ensure_future(asyncio.to_thread(self._load, name))
            self._model.add_done_callback(_seen)
        return self._model

    @property
    def loaded(self) -> "Model | None":
        """The model, if it is ready."""
        ready = self._model is not None and self._model.done() and not _failed(self._model)
        return self._model.result() if ready and self._model is not None else None

    def _load(self, name: str) -> "Model":
        from edgekv.tui.model import load

        path = download.find_local(catalog.resolve(name))
        if path is None:
            raise EdgekvError(f"model {name} is not on this machine: Ctrl+O gets it")
        model = load(name, path, self.store, self._make_engine)
        self._open.append(model)
        return model

    def is_here(self, name: str) -> bool:
        """Whether a model can be loaded without a download. Raises ModelNotFound."""
        return download.find_local(catalog.resolve(name)) is not None

    async def use_model(self, name: str) -> None:
        """Switch to another model; the old one's memory is given back first."""
        old, self._model = self._model, None
        self.model_name = name
        if old is not None:
            with contextlib.suppress(Exception):  # a model that did not load has nothing to close
                await old
            await asyncio.to_thread(self.close_models)

    def close(self) -> None:
        """Called when the app has ended: the engine's thread, then the store."""
        self.close_models()
        if self.store is not None:
            self.store.close()

    def close_models(self) -> None:
        """End the engines' threads. Called when the app has ended, and before another model."""
        while self._open:
            self._open.pop().close()

    async def first_model(self, name: str) -> None:
        """The model that was chosen on the first run is the default from now on."""
        self.model_name = name
        if name != config.load().model:
            config.set_model(name)

    def measure_download(self, name: str) -> int:
        """Bytes of a model on this machine so far."""
        return sum(map(download.size_on_disk, download.owned(catalog.resolve(name))))

    def quality(self, name: str) -> Quality:
        """What `edgekv eval` has measured for a model."""
        return measured_kld(name)

    # Conversations

    def first_chat(self, complain: Say) -> Chat | None:
        """What to open at the start; None for a new conversation.

        Without being told, that is the last one if something in it is unfinished: a reply cut
        short, a question without a reply, a draft.
        """
        store, start = self.store, self.start
        if store is None:
            return None
        if start.session is not None:
            return Chat.open(store, self._named(store, start.session).id, complain)
        last = store.last()
        if last is None or not (start.last or _unfinished(store, last)):
            return None
        return Chat.open(store, last.id, complain)

    def _named(self, store: Store, name: str) -> Session:
        try:
            return store.get(name)
        except SessionNotFound:
            return store.create(name, self.model_name, self.settings.stored())

    def release_mouse(self, released: bool) -> None:
        """Leave the mouse to the terminal, or take it back."""
        if self._driver is not None:
            self._driver.write("".join(f"\x1b[?{mode}{'l' if released else 'h'}" for mode in MOUSE))

    # The palette

    def get_system_commands(self, screen: Screen[Any]) -> "Iterable[SystemCommand]":
        """The table of commands, then Textual's own that have no twin in it."""
        chat = next((each for each in self.screen_stack if isinstance(each, ChatScreen)), None)
        if chat is not None:
            for command in COMMANDS:
                yield SystemCommand(command.title, command.help, _runner(chat, command.name))
        own = {"Quit", "Keys", *(command.title for command in COMMANDS)}
        for each in super().get_system_commands(screen):
            if each.title not in own:
                yield each


def _unfinished(store: Store, session: Session) -> bool:
    if session.draft.strip():
        return True
    messages = store.messages(session.id)
    return bool(messages) and (messages[-1].partial or messages[-1].role == "user")


def _runner(chat: ChatScreen, name: str) -> Callable[[], None]:
    return lambda: chat.run_command(name)


def _data(name: str) -> Path:
    return config.paths().data / name


def _failed(done: "asyncio.Future[Any] | Future[Any]") -> bool:
    return done.cancelled() or done.exception() is not None


def _seen(done: "asyncio.Future[Any]") -> None:
    # A load that nobody waits for must not complain at exit: whoever asks next gets its fault.
    if not done.cancelled():
        done.exception()
