"""The chat as lines: no screen is drawn, so that a screen reader or a script can follow."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from edgekv import catalog, config, download
from edgekv.cli.interrupt import interrupting
from edgekv.cli.store import open_store
from edgekv.conversation import checked
from edgekv.errors import EdgekvError, InvalidValue
from edgekv.files import private_folder
from edgekv.sessions import Message, SessionNotFound, Store, StoreUnavailable
from edgekv.tui.chat import Chat
from edgekv.tui.inbox import Inbox
from edgekv.tui.printable import printable, typed
from edgekv.tui.reply import SAVE_S, took
from edgekv.tui.settings import Settings

if TYPE_CHECKING:
    from edgekv.tui.model import Model

HISTORY = "lines.history"
HELP = """/new      start a new conversation
/retry    answer the last question once more
/undo     take back the last question and its reply
/continue go on with a reply that was cut short
/history  show the conversation
/sessions list the stored conversations; `/open NAME` opens one
/exit     leave; Ctrl-D does so too
A line that ends with a backslash goes on in the next one."""


class PlainChat:
    """Reads a line, writes a reply, until /exit or the end of the input."""

    def __init__(self, settings: Settings, session: str | None, last: bool, persist: bool) -> None:
        self._base = settings
        self._persist = persist
        self._store = _store() if persist else None
        self._model: Model
        self._chat = self._first(session, last)
        self._commands: dict[str, Callable[[str], None]] = {
            "new": self._new,
            "retry": self._retry,
            "undo": self._undo,
            "continue": self._continue,
            "history": self._show,
            "sessions": self._list,
            "open": self._open,
            "help": lambda _: click.echo(HELP, err=True),
        }

    def run(self) -> None:
        """The whole conversation. Raises what finding and loading the model raises."""
        from edgekv.tui.model import load

        name = self._base.config.model
        path = download.locate(catalog.resolve(name), progress=download.for_stderr())
        self._model = load(name, path, self._store)
        try:
            with _history(self._persist):
                self._greet()
                for text in _prompts():
                    self._take(text)
        finally:
            self._chat.close()
            self._model.close()
            if self._store is not None:
                self._store.close()

    def _greet(self) -> None:
        _say(f"{self._model.name}; /help says what can be typed")
        if self._store is not None and not self._chat.persisted:
            _say(f"nothing is kept: {self._store.folder} cannot be written")
        if self._chat.messages:
            _say(f"{self._chat.title}: {len(self._chat.messages):,} messages, /history shows them")
        if self._chat.messages and self._chat.messages[-1].partial:
            _say("the last reply was interrupted: /continue goes on with it")

    def _take(self, text: str) -> None:
        try:
            if text.startswith("/"):
                name, _, argument = text[1:].strip().partition(" ")
                if name not in self._commands:
                    known = {**self._commands, "exit": None}
                    raise InvalidValue(f"no command /{name}{config.nearest(name, known)}")
                self._commands[name](argument.strip())
            elif text.strip():
                self._chat.say(checked(text))
                self._answer()
        except EdgekvError as error:
            _say(str(error))

    def _answer(self, begun: Message | None = None) -> None:
        """Write a reply as it comes; Ctrl-C stops it and keeps what there is."""
        from edgekv.tui.model import follow

        chat, settings = self._chat, self._base.of_session(self._chat.settings)
        said = chat.messages[: begun.position] if begun else list(chat.messages)
        start = begun.content if begun else ""
        session = chat.session.id if chat.session and chat.persisted else None
        asked = self._model.ask(said, settings, start, session)
        inbox = _Lines(chat, start, begun is not None)
        with interrupting(asked.reply.cancel):
            follow(asked.reply, inbox)
        news = inbox.take()
        click.echo()
        for text in (*news.notices, *self._model.notices()):
            _say(text)
        if inbox.text:
            done = news.finished
            tokens = done.tokens if done and begun is None else ()
            chat.end(inbox.text, tokens, done.reason if done else None)
        if news.error is not None:
            raise news.error
        if news.finished is not None:
            _say(took(news.finished))

    def _first(self, session: str | None, last: bool) -> Chat:
        store = self._store
        if store is None or (session is None and not last):
            return self._fresh()
        newest = store.last() if last else None
        name = newest.id if newest else session
        if name is None:
            return self._fresh()
        try:
            return Chat.open(store, name, _say)
        except SessionNotFound:
            made = store.create(name, self._base.config.model, self._base.stored())
            return Chat.open(store, made.id, _say)

    def _fresh(self) -> Chat:
        return Chat(self._store, _say, self._base.config.model, self._base.stored())

    def _switch(self, chat: Chat) -> None:
        self._chat.close()
        self._chat = chat
        _say(chat.title)

    def _new(self, argument: str) -> None:
        self._switch(self._fresh())

    def _open(self, argument: str) -> None:
        if self._store is None:
            raise InvalidValue("nothing is stored: this chat was started with --no-persist")
        self._switch(Chat.open(self._store, argument, _say))

    def _list(self, argument: str) -> None:
        for session in self._store.sessions() if self._store else []:
            click.echo(f"{printable(session.name)} ({session.n_messages:,} messages)")

    def _show(self, argument: str) -> None:
        for message in self._chat.messages:
            click.echo(f"{'You' if message.role == 'user' else 'Reply'}:")
            click.echo(printable(message.content) + "\n")

    def _last_question(self) -> int:
        asked = [each.position for each in self._chat.messages if each.role == "user"]
        if not asked:
            raise InvalidValue("nothing was asked yet")
        return asked[-1]

    def _retry(self, argument: str) -> None:
        self._chat.cut(self._last_question() + 1)
        self._answer()

    def _undo(self, argument: str) -> None:
        self._chat.cut(self._last_question())
        _say("taken back")

    def _continue(self, argument: str) -> None:
        if not self._chat.messages:
            raise InvalidValue("there is no reply to go on with")
        last = self._chat.messages[-1]
        self._answer(last if last.role == "assistant" else None)


class _Lines(Inbox):
    """Writes a reply to standard output as it comes, and keeps it."""

    def __init__(self, chat: Chat, text: str, begun: bool) -> None:
        super().__init__()
        self._chat = chat
        self._begun = begun
        self._saved = time.monotonic()
        self.text = text

    def write(self, text: str) -> None:
        self.text += text
        if not self._begun:
            self._begun = True
            self._chat.begin(self.text)
        elif time.monotonic() > self._saved + SAVE_S:
            self._chat.grow(self.text)
            self._saved = time.monotonic()
        click.echo(printable(text), nl=False)
        sys.stdout.flush()


def _store() -> Store | None:
    """Where the conversation is kept; without it, it goes on all the same."""
    try:
        return open_store()
    except StoreUnavailable as fault:
        _say(f"nothing is kept: {fault}")
        return None


def _say(text: str) -> None:
    click.echo(f"edgekv: {printable(text)}", err=True)


def _prompts() -> Iterator[str]:
    """What is typed, a prompt at a time; Ctrl-C forgets the line, Ctrl-D and /exit end it."""
    # The question goes to a person alone: a script reads replies and nothing else.
    shown = "> " if sys.stdin.isatty() else ""
    lines: list[str] = []
    while True:
        try:
            line = typed(input("" if lines and shown else shown))
        except KeyboardInterrupt:
            lines.clear()
            _say("Ctrl-D or /exit leaves")
            continue
        except EOFError:
            break
        if line.strip() == "/exit" and not lines:
            return
        if line.endswith("\\"):
            lines.append(line.removesuffix("\\"))
            continue
        yield "\n".join([*lines, line])
        lines.clear()
    if lines:
        yield "\n".join(lines)


@contextmanager
def _history(keep: bool) -> Iterator[None]:
    """Line editing, and the lines of earlier chats under the Up key."""
    if not sys.stdin.isatty():
        yield
        return
    try:
        import readline
    except ImportError:  # some builds of Python have none; lines can still be typed
        yield
        return
    path = config.paths().data / HISTORY
    if keep and path.exists():
        with contextlib.suppress(OSError):
            readline.read_history_file(path)
    try:
        yield
    finally:
        if keep:
            with contextlib.suppress(OSError):
                private_folder(path.parent)
                path.touch(mode=0o600)
                readline.write_history_file(path)
