"""All conversations: list, search in what was said, resume, rename, delete and bring back."""

import asyncio
import time
from dataclasses import dataclass

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from edgekv.errors import EdgekvError
from edgekv.sessions import Hit, Session, Store
from edgekv.sessions.search import search
from edgekv.tui.chat import tokens_of
from edgekv.tui.figures import age, plural, size
from edgekv.tui.printable import one_line
from edgekv.tui.screens.ask import AskText

HITS = 50
WAIT_S = 0.15
"""Seconds without a key from which what was typed is looked for."""


@dataclass(frozen=True)
class Choice:
    """The session to open; position and words of what was found in it, if it was found so."""

    session: Session
    position: int | None = None
    words: str = ""


class SessionsScreen(ModalScreen[Choice | None]):
    """Typing filters titles and searches what was said. `current` is the open session's id."""

    BINDINGS = [
        Binding("escape", "dismiss(None)", "Back"),
        Binding("up", "move(-1)", show=False, priority=True),
        Binding("down", "move(1)", show=False, priority=True),
        Binding("pageup", "move(-10)", show=False, priority=True),
        Binding("pagedown", "move(10)", show=False, priority=True),
        Binding("f2", "rename", "Rename", priority=True),
        Binding("delete", "delete", "Delete", priority=True),
        Binding("ctrl+z", "undelete", "Undo delete", priority=True),
        Binding("ctrl+t", "trash", "Deleted ones", priority=True),
    ]

    def __init__(self, store: Store, current: str | None, words: str = "") -> None:
        super().__init__()
        self._store = store
        self._current = current
        self._words = words
        self._trash = False
        self._choices: list[Choice] = []
        self._deleted: list[str] = []
        self._kv_bytes: dict[str, int] = {}

    def compose(self) -> ComposeResult:
        with Vertical(classes="page"):
            yield Static("Sessions", classes="heading", markup=False)
            yield Input(self._words, placeholder="search titles and everything that was said")
            yield OptionList()
            yield Static("", classes="hint", markup=False)

    def on_mount(self) -> None:
        self.query_one(Input).focus()
        self._look()

    def on_input_changed(self) -> None:
        self._look()

    def on_input_submitted(self) -> None:
        self._choose(self.query_one(OptionList).highlighted)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        self._choose(event.option_index)

    def _choose(self, index: int | None) -> None:
        if index is None or index >= len(self._choices):
            return
        choice = self._choices[index]
        if choice.session.deleted:
            choice = Choice(self._store.undelete(choice.session.id), choice.position, choice.words)
        self.dismiss(choice)

    @work(exclusive=True)
    async def _look(self, keep: int | None = None) -> None:
        words = self.query_one(Input).value.strip()
        await asyncio.sleep(WAIT_S if words else 0)
        try:
            sessions, hits = await asyncio.to_thread(self._found, words)
        except EdgekvError as error:
            self._say(str(error))
            return
        self._choices = [Choice(session) for session in sessions]
        self._choices += [Choice(hit.session, hit.position, words) for hit in hits]
        options = [self._option(session) for session in sessions]
        options += [_hit(hit) for hit in hits]
        box = self.query_one(OptionList)
        box.clear_options()
        box.add_options([Option(content) for content in options])
        if options:
            box.highlighted = min(keep or 0, len(options) - 1)
        self._say("" if options else "nothing found" if words else "no sessions yet")

    def _found(self, words: str) -> tuple[list[Session], list[Hit]]:
        sessions = self._store.sessions(deleted=self._trash)
        wanted = words.casefold()
        named = [session for session in sessions if wanted in session.name.casefold()]
        self._kv_bytes = self._store.kv_bytes()
        hits = search(self._store, words, HITS) if words and not self._trash else []
        return named, hits

    def _option(self, session: Session) -> Content:
        """Title, then what is known of it; warm is one whose KV does not have to be read again."""
        kv, tokens = self._kv_bytes.get(session.id, 0), tokens_of(session)
        facts = [
            session.model.rpartition("/")[2],
            age(time.time() - session.updated),
            plural(session.n_messages, "message"),
            "" if tokens is None else plural(tokens, "token"),
            f"warm, {size(kv)} of KV" if kv else "cold",
            "draft" if session.draft.strip() else "",
            "open" if session.id == self._current else "",
        ]
        detail = " · ".join(fact for fact in facts if fact)
        return Content.assemble(
            (one_line(session.name), "bold"), "\n", (one_line(detail), "$foreground 60%")
        )

    def _say(self, text: str) -> None:
        keys = "Enter restores" if self._trash else "Enter opens · F2 renames · Del deletes"
        undo = " · Ctrl+Z undoes" if self._deleted else ""
        shown = "shows the others" if self._trash else "shows deleted ones"
        hint = f"{keys}{undo} · Ctrl+T {shown} · Esc"
        self.query_one(".hint", Static).update(Content(f"{text}\n{hint}" if text else hint))

    def _selected(self) -> Session | None:
        at = self.query_one(OptionList).highlighted
        return None if at is None or at >= len(self._choices) else self._choices[at].session

    def action_move(self, step: int) -> None:
        box = self.query_one(OptionList)
        if box.option_count:
            at = (box.highlighted or 0) + step
            box.highlighted = max(0, min(box.option_count - 1, at))

    @work
    async def action_rename(self) -> None:
        session = self._selected()
        if session is None:
            return
        name = await self.app.push_screen_wait(AskText("Title", session.name))
        if name:
            self._change(lambda: self._store.rename(session.id, name.strip()))

    def action_delete(self) -> None:
        session = self._selected()
        if session is None or session.deleted:
            return
        if session.id == self._current:
            self._say("this one is open: /delete deletes it")
            return
        self._deleted.append(session.id)
        self._change(lambda: self._store.delete(session.id))

    def action_undelete(self) -> None:
        if self._deleted:
            gone = self._deleted.pop()
            self._change(lambda: self._store.undelete(gone))

    def action_trash(self) -> None:
        self._trash = not self._trash
        title = "Deleted sessions" if self._trash else "Sessions"
        self.query_one(".heading", Static).update(title)
        self._look()

    def _change(self, change: "object") -> None:
        try:
            assert callable(change)
            change()
        except EdgekvError as error:
            self._say(str(error))
            return
        self._look(self.query_one(OptionList).highlighted)


def _hit(hit: Hit) -> Content:
    who = {"user": "you", "assistant": "reply"}.get(hit.role, hit.role)
    return Content.assemble(
        (one_line(hit.session.name), "bold"),
        (f" · {who}", "$foreground 60%"),
        "\n",
        one_line(f"…{hit.excerpt}…"),
    )
