"""The conversation on screen: a run of its messages, and more of them at both ends on demand."""

from collections.abc import Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message as Event
from textual.widget import Widget
from textual.widgets import Static

from edgekv.sessions import Message
from edgekv.tui.widgets.message import MessageView, ReplyMessage, view_of

FIRST, MORE, MOST = 20, 10, 60
"""Messages mounted at first, added at an end on demand, and kept while at the bottom."""

ROLL_TEXT = "older turns above are no longer seen by the model, or only in part"
EMPTY_TEXT = "Ask something below. F1 shows all keys and commands."


class Transcript(VerticalScroll, can_focus=False):
    """Shows messages by position; keeps to its end only while it is there."""

    DEFAULT_CSS = """
    Transcript { height: 1fr; }
    Transcript > .end { color: $text-muted; text-align: center; display: none; width: 1fr; }
    Transcript > .roll { color: $text-accent; text-align: center; width: 1fr; margin: 1 0; }
    """

    @dataclass
    class EarlierWanted(Event):
        """Messages before `position` are to be shown."""

        position: int

    @dataclass
    class LaterWanted(Event):
        """Messages after `position` are to be shown."""

        position: int

    def __init__(self) -> None:
        super().__init__(id="transcript")
        self._total = 0
        self._roll_at: int | None = None
        self._loading = False

    def compose(self) -> ComposeResult:
        yield Static("", id="earlier", classes="end", markup=False)
        yield Static("", id="later", classes="end", markup=False)

    def on_mount(self) -> None:
        self.anchor()
        self._hint()

    @property
    def views(self) -> list[MessageView]:
        return list(self.query_children(MessageView))

    def at(self, position: int) -> MessageView | None:
        """The view of the message at a position, if it is mounted."""
        return next((view for view in self.views if view.message.position == position), None)

    @property
    def _last(self) -> int:
        views = self.views
        return views[-1].message.position if views else -1

    @property
    def _first(self) -> int:
        views = self.views
        return views[0].message.position if views else 0

    async def show(self, messages: Sequence[Message], at: int | None = None) -> None:
        """Replace everything by the newest of `messages`, or by those around one."""
        self._total = len(messages)
        first = max(0, len(messages) - FIRST) if at is None else max(0, at - MORE)
        with self.app.batch_update():
            await self.remove_children(MessageView)
            views = [view_of(message) for message in messages[first : first + FIRST]]
            await self.mount_all(views, before="#later")
            self._settle()
        self.anchor(at is None)

    async def to_end(self, messages: Sequence[Message]) -> None:
        """Show the newest of the messages, and keep to the end from here on."""
        if self._last != len(messages) - 1:
            await self.show(messages)
        self.anchor()

    async def reveal(self, position: int, messages: Sequence[Message]) -> None:
        """Bring one message into sight and select it."""
        if self.at(position) is None:
            await self.show(messages, position)
        view = self.at(position)
        if view is not None:
            view.focus(scroll_visible=False)
            self.call_after_refresh(self.scroll_to_widget, view, animate=False, top=True)

    async def add(self, message: Message) -> None:
        """A new message at the end."""
        await self._add(view_of(message))

    async def add_live(self, message: Message, messages: Sequence[Message]) -> ReplyMessage:
        """A reply that grows, at the end; in place of the one that was cut short there."""
        if self._last < message.position - 1:
            await self.show(messages)
        await self.cut(message.position)
        view = ReplyMessage(message, live=True)
        await self._add(view)
        return view

    async def _add(self, view: MessageView) -> None:
        self._total = view.message.position + 1
        await self.mount(view, before="#later")
        views = self.views
        if len(views) > MOST and self.scroll_y >= self.max_scroll_y:
            for old in views[: len(views) - MOST + MORE]:
                await old.remove()
        self._settle()

    async def prepend(self, messages: Sequence[Message]) -> None:
        """Older messages at the top; what is in sight stays where it is."""
        before = self.max_scroll_y
        await self.mount_all([view_of(message) for message in messages], after="#earlier")
        self._settle()
        self.call_after_refresh(self._keep_place, before)

    def _keep_place(self, before: int) -> None:
        self.scroll_to(y=self.scroll_y + self.max_scroll_y - before, animate=False)
        self._loading = False

    async def extend(self, messages: Sequence[Message]) -> None:
        """Newer messages at the bottom."""
        await self.mount_all([view_of(message) for message in messages], before="#later")
        self._settle()
        self._loading = False

    async def cut(self, position: int) -> None:
        """Remove the messages from `position` on."""
        for view in self.views:
            if view.message.position >= position:
                await view.remove()
        self._total = min(self._total, position)
        self._settle()

    def roll_at(self, position: int | None) -> None:
        """Say above the message at `position` that what is older is no longer seen."""
        if position != self._roll_at:
            self._roll_at = position
            self._settle()

    def _settle(self) -> None:
        self._place_roll()
        self._hint()

    def _place_roll(self) -> None:
        lines = list(self.query_children(".roll"))
        view = None if self._roll_at is None else self.at(self._roll_at)
        if view is None:
            for line in lines:
                line.remove()
        elif lines:
            self.move_child(lines[0], before=view)
        else:
            line = Static(Content(f"─ {ROLL_TEXT} ─"), classes="roll", markup=False)
            self.mount(line, before=view)

    def _hint(self) -> None:
        earlier, later = self.query_one("#earlier", Static), self.query_one("#later", Static)
        earlier.display = self._first > 0 or not self._total
        text = f"▲ {self._first:,} earlier messages: scroll up" if self._total else EMPTY_TEXT
        earlier.update(Content(text))
        after = self._total - 1 - self._last
        later.display = after > 0
        later.update(Content(f"▼ {after:,} later messages: Ctrl+End goes to the last"))

    def page(self, step: int) -> None:
        """A page up or down; at an end, more messages."""
        if step < 0:
            if self.scroll_y <= 0:
                self._ask_earlier()
            self.scroll_page_up(animate=False)
        else:
            if self.scroll_y >= self.max_scroll_y and self._last < self._total - 1:
                self._ask(self.LaterWanted(self._last))
            self.scroll_page_down(animate=False)

    def select(self, selected: MessageView | None, step: int, home: Widget) -> None:
        """Focus the message before or after the selected one; behind the last stands `home`."""
        views = self.views
        at = (views.index(selected) if selected in views else len(views)) + step
        if at < 0:
            self._ask_earlier()
        elif at >= len(views):
            home.focus()
        else:
            views[at].focus(scroll_visible=False)
            self.scroll_to_widget(views[at], animate=False)

    def _ask_earlier(self) -> None:
        if self._first > 0:
            self._ask(self.EarlierWanted(self._first))

    def _ask(self, want: Event) -> None:
        if not self._loading:
            self._loading = True
            self.post_message(want)

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        super().watch_scroll_y(old_value, new_value)
        if new_value <= 0 < old_value:
            self._ask_earlier()

    def on_click(self) -> None:
        if self.scroll_y <= 0:
            self._ask_earlier()
