"""Replies: stopped, made again, gone on with, taken back."""

from typing import TYPE_CHECKING

from edgekv.errors import EdgekvError
from edgekv.sessions import Message
from edgekv.tui.actions.registry import action
from edgekv.tui.widgets.message import ReplyMessage

if TYPE_CHECKING:
    from edgekv.tui.screens.chat import ChatScreen


@action
def stop(screen: "ChatScreen", argument: str) -> None:
    """The innermost thing that can be stopped or closed."""
    if screen.prompt.close_completions() or screen.stop_reply() or screen.banner.dismiss():
        return
    if screen.looked_for:
        screen.mark("")
    screen.composer.focus()


def _question(screen: "ChatScreen") -> Message:
    """The selected question, that of the selected reply, or the last one."""
    chosen = screen.selected_message
    end = len(screen.chat.messages) if chosen is None else chosen.position + 1
    asked = [each for each in screen.chat.messages[:end] if each.role == "user"]
    if not asked:
        raise EdgekvError("nothing was asked yet")
    return asked[-1]


@action
async def retry(screen: "ChatScreen", argument: str) -> None:
    question = _question(screen)
    await screen.stop_and_wait()
    await screen.cut(question.position + 1)
    screen.reply()


@action
async def edit(screen: "ChatScreen", argument: str) -> None:
    question = _question(screen)
    await screen.stop_and_wait()
    if screen.prompt.value.strip():
        screen.chat_app.prompts.add(screen.prompt.value)
    await screen.cut(question.position)
    screen.prompt.value = question.content
    screen.composer.focus()
    screen.toast("edit it and press Enter; /redo brings back what stood here")


@action
async def undo(screen: "ChatScreen", argument: str) -> None:
    question = _question(screen)
    await screen.stop_and_wait()
    await screen.cut(question.position)
    screen.toast("taken back; /redo brings it back")


@action
async def redo(screen: "ChatScreen", argument: str) -> None:
    await screen.stop_and_wait()
    if not screen.chat.restore():
        raise EdgekvError("nothing was taken back")
    await screen.show_chat()


@action
async def continue_(screen: "ChatScreen", argument: str) -> None:
    messages = screen.chat.messages
    if not messages or screen.running:
        raise EdgekvError("there is no reply to go on with")
    screen.banner.dismiss()
    screen.reply(messages[-1] if messages[-1].role == "assistant" else None)


@action
def thinking(screen: "ChatScreen", argument: str) -> None:
    views = [view for view in screen.transcript.views if isinstance(view, ReplyMessage)]
    shown = bool(views) and not views[-1].shows_thinking
    for view in views:
        if view.shows_thinking != shown:
            view.action_fold()


@action
def answer(screen: "ChatScreen", argument: str) -> None:
    if not screen.end_thinking():
        raise EdgekvError("the model is not thinking now")
