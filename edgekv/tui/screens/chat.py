"""The chat screen: the transcript, the prompt, and the reply under way."""

import asyncio
import contextlib
import inspect
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, cast

from textual import getters, on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.content import Content
from textual.css.query import NoMatches
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Static

from edgekv.errors import EdgekvError
from edgekv.sessions import Message
from edgekv.tui.actions.registry import ACTIONS
from edgekv.tui.chat import Chat
from edgekv.tui.commands import bindings, idle_hints
from edgekv.tui.context import Context
from edgekv.tui.faults import in_a_line
from edgekv.tui.printable import one_line
from edgekv.tui.reply import Outcome, ReplyRun
from edgekv.tui.screens.ask import AskText
from edgekv.tui.settings import Settings
from edgekv.tui.startup import start
from edgekv.tui.widgets.activity import Activity, ActivityLine
from edgekv.tui.widgets.banner import Banner
from edgekv.tui.widgets.composer import Composer
from edgekv.tui.widgets.gauge import Gauge
from edgekv.tui.widgets.message import MessageView, ReplyMessage, Typed
from edgekv.tui.widgets.prompt import PromptBox
from edgekv.tui.widgets.transcript import MORE, Transcript

if TYPE_CHECKING:
    from edgekv.tui.app import ChatApp
    from edgekv.tui.model import Asked

PATIENCE_S = 2.0
BELL_S = 10.0
"""Seconds of a reply from which its end may ring."""


class ChatScreen(Screen[None]):
    """One open conversation. The functions of `edgekv.tui.actions` act on it."""

    BINDINGS = [
        *bindings(),
        Binding("alt+up", "select(-1)", "Message before", show=False, priority=True),
        Binding("alt+down", "select(1)", "Message after", show=False, priority=True),
        Binding("pageup", "page(-1)", "Page up", show=False, priority=True),
        Binding("pagedown", "page(1)", "Page down", show=False, priority=True),
        Binding("ctrl+home", "top", "Beginning", show=False, priority=True),
        Binding("ctrl+end", "bottom", "End", show=False, priority=True),
    ]

    transcript = getters.query_one(Transcript)
    composer = getters.query_one(Composer)
    banner = getters.query_one(Banner)
    gauge = getters.query_one(Gauge)
    activity = getters.query_one(ActivityLine)
    prompt = getters.query_one(PromptBox)

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.chat = Chat(None, self.fault)
        self.settings = settings
        self.context = Context()
        self.deleted: list[str] = []
        self.looked_for = ""
        self.copied_code = 0
        self.mouse_released = False
        self.asked_to_quit = False
        self.started = False
        self._run: ReplyRun | None = None
        self._over = asyncio.Event()
        self._over.set()

    def compose(self) -> ComposeResult:
        yield Static("edgekv", id="title", markup=False)
        yield Transcript()
        yield Banner()
        yield PromptBox(self.chat_app.prompts)
        yield ActivityLine(idle_hints())
        yield Gauge()

    @property
    def chat_app(self) -> "ChatApp":
        return cast("ChatApp", self.app)

    @property
    def model_title(self) -> str:
        """The model's name, a path's last part."""
        return one_line(self.chat_app.model_name.rpartition("/")[2])

    # What is shown

    def fault(self, text: str) -> None:
        """Say what went wrong, above the prompt. May be called from any thread."""
        self.app.call_later(self.banner.fault, text)

    def offer(self, text: str) -> None:
        """Say what is so, or what can be done, above the prompt."""
        self.app.call_later(self.banner.offer, text)

    def toast(self, text: str) -> None:
        """Say something in passing."""
        self.app.notify(one_line(text, 300), markup=False)

    async def ask_text(self, question: str, value: str = "") -> str | None:
        """A line of text from the user; None when they would rather not."""
        return await self.app.push_screen_wait(AskText(question, value))

    def show_title(self) -> None:
        """The head line: title, model, and whether it is kept."""
        kept = "" if self.chat.persisted else " · not stored"
        title = one_line(self.chat.title, 120)
        line = Content.assemble((title, "bold"), f" · {self.model_title}{kept}")
        self.query_one("#title", Static).update(line)

    def show_activity(self, activity: Activity | None) -> None:
        self.activity.show(activity)

    def show_tokens(self, asked: "Asked", tokens: int) -> None:
        """Where the conversation stands while it is read and written."""
        self.context.asked(asked, len(self.chat.messages), tokens)
        self.show_context()

    def show_context(self) -> None:
        """The gauge, and the line above what the model still sees."""
        self.gauge.show(self.context.occupancy)
        self.transcript.roll_at(self.context.first_seen())

    async def show_reply(self, message: Message) -> ReplyMessage:
        return await self.transcript.add_live(message, self.chat.messages)

    async def show_chat(self, at: int | None = None) -> None:
        """Mount the newest messages, or those around one."""
        await self.transcript.show(self.chat.messages, at)
        self.show_title()
        self.show_context()

    def mark(self, words: str) -> None:
        """Show where words stand in the messages; nowhere for an empty string."""
        self.looked_for = words
        for view in self.transcript.views:
            view.mark(words)

    # The selected message

    @property
    def selected_view(self) -> MessageView | None:
        focused = self.focused
        return focused if isinstance(focused, MessageView) else None

    @property
    def selected_message(self) -> Message | None:
        return None if self.selected_view is None else self.selected_view.message

    def action_select(self, step: int) -> None:
        self.transcript.select(self.selected_view, step, self.composer)

    def action_page(self, step: int) -> None:
        self.transcript.page(step)

    def action_top(self) -> None:
        self._beside(self.transcript.reveal(0, self.chat.messages))

    async def action_bottom(self) -> None:
        await self.transcript.to_end(self.chat.messages)

    # Conversations

    def new_chat(self) -> Chat:
        """An empty conversation with what the user started the app with."""
        app = self.chat_app
        return Chat(app.store, self.fault, app.model_name, app.settings.stored())

    async def open(self, chat: Chat, keep_draft: bool = True) -> None:
        """Show another conversation in place of this one, whose draft is kept."""
        await self.stop_and_wait()
        if keep_draft:
            self.save_draft()
        self.chat.close()
        self.chat = chat
        self.settings = self.chat_app.settings.of_session(chat.settings)
        self.context = Context()
        self.banner.dismiss()
        self.composer.value = chat.session.draft if chat.session else ""
        await self.show_chat()
        self.composer.focus()
        if chat.messages and chat.messages[-1].partial:
            self.banner.offer("the last reply was interrupted: F5 goes on with it")
        elif chat.messages and chat.messages[-1].role == "user":
            self.banner.offer("the last question has no reply: F5 answers it")
        self._beside(self.measure(), group="measure", exclusive=True)

    async def measure(self) -> None:
        """Count the tokens of the conversation, once the model is there."""
        chat, settings = self.chat, self.settings
        with contextlib.suppress(Exception):  # a fault of loading is shown by the one who loads
            model = await asyncio.shield(self.chat_app.model())
            policy = await asyncio.to_thread(model.policy, settings)
            messages = list(chat.messages)
            ends = await asyncio.to_thread(model.measure, messages, settings)
            if chat is self.chat and not self.running:
                self.context.measured(policy, ends)
                self.show_context()
                chat.count(self.context.tokens)

    async def cut(self, position: int) -> None:
        """Take away the messages from `position` on."""
        self.chat.cut(position)
        self.context.cut(position)
        await self.transcript.cut(position)
        self.show_context()

    async def configure(self, settings: Settings) -> None:
        """Other settings for this conversation."""
        self.chat.configure(self.chat_app.model_name, settings.stored())
        self.settings = settings
        await self.measure()

    # The prompt

    @on(PromptBox.Send)
    async def _send(self, event: PromptBox.Send) -> None:
        await self.send(event.text)

    @on(PromptBox.Run)
    def _run_slash(self, event: PromptBox.Run) -> None:
        self.run_command(event.name, event.argument)

    @on(PromptBox.Refused)
    def _refused(self, event: PromptBox.Refused) -> None:
        self.fault(event.why)

    @on(PromptBox.DraftDue)
    def save_draft(self) -> None:
        self.chat.save_draft(self.prompt.value)

    @on(Typed)
    def _typed(self, event: Typed) -> None:
        self.prompt.type(event.character)

    async def send(self, text: str) -> None:
        """Ask the model. The prompt stays where it is while it cannot be sent."""
        if not text.strip():
            return
        if self.running:
            self.toast("a reply is under way: Esc stops it")
            return
        try:
            self._check(text)
        except EdgekvError as error:
            self.fault(str(error))
            return
        self.banner.dismiss()
        self.composer.value = ""
        message = self.chat.say(text)
        self.save_draft()
        with contextlib.suppress(EdgekvError):  # a prompt that cannot be recalled is no fault
            self.chat_app.prompts.add(text)
        await self.transcript.to_end(self.chat.messages[:-1])
        await self.transcript.add(message)
        self.show_title()
        self.reply()

    def _check(self, text: str) -> None:
        from edgekv.conversation import checked

        checked(text)
        if not self.chat_app.is_here(self.chat_app.model_name):
            raise EdgekvError(f"model {self.chat_app.model_name} is not here: Ctrl+O gets it")

    # Replies

    @property
    def running(self) -> bool:
        return self._run is not None

    def reply(self, begun: Message | None = None) -> None:
        """Have the conversation answered; `begun` is a reply to go on with."""
        for text in self.chat_app.loaded.notices() if self.chat_app.loaded else []:
            self.offer(text)
        self._run = run = ReplyRun(self, self.settings, begun)
        self._over.clear()
        self._beside(self._reply(run), group="reply", exclusive=True, exit_on_error=False)

    async def _reply(self, run: ReplyRun) -> None:
        try:
            outcome = await run.run(self.chat_app.model)
            self._ended(outcome)
        finally:
            self._run = None
            self._over.set()

    def _ended(self, outcome: Outcome) -> None:
        finished = outcome.finished
        if finished is not None:
            self.context.finished(finished, len(self.chat.messages))
            self.show_context()
            self.chat.count(self.context.tokens)
            if self.chat_app.preferences.bell and finished.decode_s > BELL_S:
                self.app.bell()
        if outcome.message is None and not self.banner.text:
            self.banner.offer("stopped before the first word: F5 answers it after all")

    def stop_reply(self) -> bool:
        """Stop the reply under way; whether there was one."""
        if self._run is None:
            return False
        self._run.stop()
        self.show_activity(Activity("stopping", hint=""))
        return True

    def end_thinking(self) -> bool:
        """Have the answer begin; whether the model was thinking."""
        thinking = self._run is not None and self._run.thinking
        if thinking and self._run is not None:
            self._run.end_thinking()
        return thinking

    async def stop_and_wait(self) -> None:
        """Stop the reply under way, and go on when what there is of it is kept."""
        if self.stop_reply():
            await self._over.wait()

    # Commands

    def action_command(self, name: str) -> None:
        self.run_command(name)

    @on(MessageView.Command)
    def _message_command(self, event: MessageView.Command) -> None:
        self.run_command(event.name)

    def run_command(self, name: str, argument: str = "") -> None:
        """Run a command of the table; a fault of it is shown."""
        self._beside(self._command(name, argument), group=f"command-{name}")

    async def _command(self, name: str, argument: str) -> None:
        try:
            result = ACTIONS[name](self, argument)
            if inspect.isawaitable(result):
                await result
        except Exception as error:
            self.fault(in_a_line(error))

    async def leave(self) -> None:
        """Quit, everything kept."""
        self.save_draft()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.stop_and_wait(), PATIENCE_S)
        self.chat.close()
        self.app.exit()

    # Start

    def on_mount(self) -> None:
        self.composer.focus()
        self.show_title()
        self.call_after_refresh(lambda: self._beside(start(self)))

    def _beside(
        self,
        work: Coroutine[Any, Any, object],
        **options: Any,  # noqa: ANN401 - passed on
    ) -> None:
        """Run work beside the events of the screen; options are those of a worker."""
        self.run_worker(self._until_closed(work), **options)

    async def _until_closed(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        except NoMatches:
            # A screen that closes loses its parts before its work is cancelled.
            if self.children:
                raise

    @on(Transcript.EarlierWanted)
    async def _earlier(self, event: Transcript.EarlierWanted) -> None:
        first = max(0, event.position - MORE)
        await self.transcript.prepend(self.chat.messages[first : event.position])
        self.mark(self.looked_for)

    @on(Transcript.LaterWanted)
    async def _later(self, event: Transcript.LaterWanted) -> None:
        after = event.position + 1
        await self.transcript.extend(self.chat.messages[after : after + MORE])
        self.mark(self.looked_for)

    def on_resize(self, event: Resize) -> None:
        self.set_class(event.size.width < 60, "-narrow")
        self.set_class(event.size.height < 20, "-short")
