"""One reply from the question to its end: asked, followed, shown, kept."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from edgekv.sessions import Message
from edgekv.tui.chat import Chat
from edgekv.tui.faults import in_a_line
from edgekv.tui.figures import plural, thousands
from edgekv.tui.inbox import Inbox, News
from edgekv.tui.settings import Settings
from edgekv.tui.thinking import CLOSE, OPEN
from edgekv.tui.widgets.activity import Activity
from edgekv.tui.widgets.message import ReplyMessage

if TYPE_CHECKING:
    from edgekv.engine import Finished
    from edgekv.tui.model import Asked, Model

LOOK_S = 0.08
"""Seconds between two looks at what has come: no more than 12 paints a second."""
SHARE = 4
"""A look waits this many times what the last one cost, so that drawing never starves keys."""
SAVE_S = 1.0
"""Seconds of a reply that a killed process may lose."""

END_THOUGHT = f"\n{CLOSE}\n\n"


class Stage(Protocol):
    """What of the screen a reply needs."""

    chat: Chat

    async def show_reply(self, message: Message) -> ReplyMessage: ...

    def show_activity(self, activity: Activity | None) -> None: ...

    def show_tokens(self, asked: "Asked", tokens: int) -> None: ...

    def fault(self, text: str) -> None: ...

    def offer(self, text: str) -> None: ...


@dataclass
class Outcome:
    """How a reply ended; tokens of the whole conversation then."""

    message: Message | None
    finished: "Finished | None" = None


class ReplyRun:
    """Runs one reply on the screen's own event loop; `stop` ends it at any stage."""

    def __init__(self, stage: Stage, settings: Settings, begun: Message | None = None) -> None:
        self._stage = stage
        self._settings = settings
        self._text = begun.content if begun else ""
        self._whole = begun is None
        self._message = begun
        self._view: ReplyMessage | None = None
        self._asked: Asked | None = None
        self._saved = time.monotonic()
        self.stopped = False
        self.answer_now = False

    @property
    def thinking(self) -> bool:
        return self._view is not None and self._view.thinking

    def stop(self) -> None:
        """Seen within a token, or within a chunk of the prompt."""
        self.stopped = True
        if self._asked is not None:
            self._asked.reply.cancel()

    def end_thinking(self) -> None:
        """Have the answer begin now."""
        self.answer_now = True
        if self._asked is not None:
            self._asked.reply.cancel()

    async def run(self, model: "Callable[[], asyncio.Future[Model]]") -> Outcome:
        """The whole of it. Faults are shown and what had come is kept; none is raised."""
        try:
            loaded = await self._wait(model())
            if loaded is None:
                return Outcome(None)
            finished = await self._ask(loaded)
            if self.answer_now and not self.stopped:
                finished = await self._go_on_with_the_answer(loaded)
            return await self._end(finished)
        except Exception as error:
            return await self._broken(in_a_line(error))
        finally:
            self._stage.show_activity(None)

    async def _wait(self, model: "asyncio.Future[Model]") -> "Model | None":
        """The model once it is loaded; None when stopped before."""
        while not self.stopped:
            done, _ = await asyncio.wait([model], timeout=LOOK_S)
            if done:
                return model.result()
        return None

    async def _go_on_with_the_answer(self, model: "Model") -> "Finished | None":
        self.answer_now = self._whole = False
        await self._write(END_THOUGHT)
        return await self._ask(model)

    async def _ask(self, model: "Model") -> "Finished | None":
        """Ask once and follow to the end; None when it was stopped before it began."""
        from edgekv.tui.model import follow

        chat = self._stage.chat
        said = chat.messages[: None if self._message is None else self._message.position]
        self._stage.show_activity(Activity("reading", unit="tokens"))
        session = chat.session.id if chat.session and chat.persisted else None
        asked = await asyncio.to_thread(model.ask, list(said), self._settings, self._text, session)
        self._asked = asked
        if self.stopped:
            asked.reply.cancel()
        inbox = Inbox()
        follower = asyncio.create_task(asyncio.to_thread(follow, asked.reply, inbox))
        try:
            return await self._watch(asked, inbox)
        finally:
            asked.reply.cancel()
            await follower

    async def _watch(self, asked: "Asked", inbox: Inbox) -> "Finished":
        if self._message is not None and self._view is None:
            self._view = await self._stage.show_reply(self._message)
        pause = LOOK_S
        while True:
            await asyncio.sleep(pause)
            news, start = inbox.take(), time.monotonic()
            await self._show(asked, news)
            if news.error is not None:
                raise news.error
            if news.finished is not None:
                return news.finished
            pause = max(LOOK_S, SHARE * (time.monotonic() - start))

    async def _show(self, asked: "Asked", news: News) -> None:
        for text in news.notices:
            self._stage.offer(text)
        if news.text:
            await self._write(news.text, asked.thinking)
        if not news.over:
            self._stage.show_activity(self._activity(asked, news))
        self._stage.show_tokens(asked, asked.prompt_tokens * (news.tokens > 0) + news.tokens)
        limit = self._settings.think_tokens
        if limit is not None and self.thinking and news.tokens > limit:
            self.end_thinking()

    def _activity(self, asked: "Asked", news: News) -> Activity:
        if self.stopped:
            return Activity("stopping", hint="")
        if not news.tokens:
            done, total = news.read or (0, asked.prompt_tokens)
            return Activity("reading", done, total)
        what = "thinking" if self.thinking else "writing"
        hint = "Esc stops, F6 has it answer" if self.thinking else "Esc stops"
        return Activity(what, news.tokens, hint=hint)

    async def _write(self, text: str, thinking: bool = False) -> None:
        self._text += text
        chat = self._stage.chat
        if self._message is None:
            # A template that opens the thought itself leaves the tag out of the reply.
            self._text = f"{OPEN}\n{self._text}" if thinking else self._text
            self._message = chat.begin(self._text)
            self._view = await self._stage.show_reply(self._message)
            return
        assert self._view is not None
        self._view.grow(text)
        if time.monotonic() - self._saved > SAVE_S:
            self._saved = time.monotonic()
            await asyncio.to_thread(chat.grow, self._text)

    async def _end(self, finished: "Finished | None") -> Outcome:
        if self._message is None or self._view is None:
            return Outcome(None, finished)
        reason = finished.reason if finished else "cancelled"
        # The ids of a reply that was gone on with are not known from its beginning.
        tokens = finished.tokens if finished and self._whole else ()
        message = self._stage.chat.end(self._text, tokens, reason)
        self._view.finish(message, took(finished) if finished else "")
        return Outcome(message, finished)

    async def _broken(self, why: str) -> Outcome:
        """A fault: what had come is kept and marked."""
        self._stage.fault(why)
        if self._message is not None and self._view is not None:
            message = self._stage.chat.end(self._text, (), None)
            self._view.finish(message)
        return Outcome(None)


def took(finished: "Finished") -> str:
    """What a reply took, for the line below it."""
    parts = [
        f"{plural(finished.completion_tokens, 'token')} at {finished.decode_tps:.1f}/s",
        f"first after {finished.ttft_s:.2f} s",
        f"prompt {thousands(finished.prompt_tokens)}, {thousands(finished.cached_tokens)} cached",
    ]
    if finished.evicted_tokens:
        parts.append(f"{thousands(finished.evicted_tokens)} evicted")
    return " · ".join(parts)
