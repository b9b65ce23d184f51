"""Conversations: new, another, renamed, branched, deleted, searched, exported."""

from pathlib import Path
from typing import TYPE_CHECKING

from edgekv.errors import EdgekvError, InvalidValue
from edgekv.sessions import SessionInUse
from edgekv.tui.actions.registry import action
from edgekv.tui.chat import Chat
from edgekv.tui.export import Facts, read_export, write_export
from edgekv.tui.occupancy import Occupancy
from edgekv.tui.screens.ask import Confirm
from edgekv.tui.screens.sessions import SessionsScreen

if TYPE_CHECKING:
    from edgekv.tui.screens.chat import ChatScreen


@action
async def new(screen: "ChatScreen", argument: str) -> None:
    await screen.open(screen.new_chat())


@action
async def sessions(screen: "ChatScreen", argument: str) -> None:
    store = screen.chat_app.store
    if store is None:
        raise EdgekvError("nothing is stored: the chat was started with --no-persist")
    screen.save_draft()
    current = screen.chat.session.id if screen.chat.session else None
    choice = await screen.app.push_screen_wait(SessionsScreen(store, current, argument))
    if choice is None:
        return
    if choice.session.id != current:
        await _open(screen, choice.session.id)
    if choice.position is not None:
        await show_found(screen, choice.words, choice.position)


async def _open(screen: "ChatScreen", session: str) -> None:
    store = screen.chat_app.store
    assert store is not None
    try:
        await screen.open(Chat.open(store, session, screen.fault))
    except SessionInUse as error:
        question = f"{error}. Open a branch of it?"
        if await screen.app.push_screen_wait(Confirm(question)):
            await screen.open(Chat.open(store, store.branch(session).id, screen.fault))


@action
async def rename(screen: "ChatScreen", argument: str) -> None:
    title = argument or await screen.ask_text("Title", screen.chat.title)
    if title and title.strip():
        screen.chat.rename(title)
        screen.show_title()


@action
async def branch(screen: "ChatScreen", argument: str) -> None:
    message = screen.selected_message
    end = len(screen.chat.messages) if message is None else message.position + 1
    await screen.open(screen.chat.branch(end))
    screen.toast(f"now in a copy: {screen.chat.title}")


@action
async def delete(screen: "ChatScreen", argument: str) -> None:
    session, store = screen.chat.session, screen.chat.store
    if session is None or store is None:
        raise EdgekvError("this conversation is not stored")
    screen.deleted.append(session.id)
    store.delete(session.id)
    await screen.open(screen.new_chat(), keep_draft=False)
    screen.toast(f"deleted {session.name}: /undelete brings it back")


@action
async def undelete(screen: "ChatScreen", argument: str) -> None:
    store = screen.chat_app.store
    if store is None or not screen.deleted:
        raise EdgekvError("nothing was deleted here: Ctrl+S, then Ctrl+T, lists what ever was")
    await _open(screen, store.undelete(screen.deleted.pop()).id)


@action
async def find(screen: "ChatScreen", argument: str) -> None:
    question = "Find in this conversation (empty: show no matches)"
    words = argument or await screen.ask_text(question, screen.looked_for)
    if words is not None:
        await show_found(screen, words.strip())


async def show_found(screen: "ChatScreen", words: str, position: int | None = None) -> None:
    """Go to a message with the words in it: that one, or the one before the last found."""
    screen.mark(words)
    if not words:
        return
    wanted = words.casefold()
    found = [m.position for m in screen.chat.messages if wanted in m.content.casefold()]
    if not found:
        raise EdgekvError(f"{words!r} is not in this conversation")
    if position not in found:
        here = screen.selected_message
        before = [each for each in found if here is not None and each < here.position]
        position = (before or found)[-1]
    await screen.transcript.reveal(position, screen.chat.messages)
    screen.mark(words)
    screen.toast(f"{found.index(position) + 1} of {len(found)}; Ctrl+F, Enter: the one before")


@action
async def export(screen: "ChatScreen", argument: str) -> None:
    if not screen.chat.messages:
        raise EdgekvError("there is nothing to export yet")
    name = "".join(c if c.isalnum() else "-" for c in screen.chat.title)[:60].strip("-") or "chat"
    path = argument or await screen.ask_text("Write to (.md or .json)", f"{name}.md")
    if path and path.strip():
        target = Path(path.strip()).expanduser()
        if target.exists() and not await screen.app.push_screen_wait(
            Confirm(f"{target} exists. Replace it?")
        ):
            return
        write_export(target, _facts(screen), screen.chat.messages)
        screen.toast(f"written to {target.absolute()}")


def _facts(screen: "ChatScreen") -> Facts:
    policy = screen.context.policy
    now = None if policy is None else Occupancy(policy, screen.context.tokens)
    return Facts(
        title=screen.chat.title,
        model=screen.chat_app.model_name,
        system=screen.settings.config.system,
        kv=now.bits if now else None,
        tokens=screen.context.tokens,
        evicted_tokens=now.evicted if now else None,
    )


@action
async def import_(screen: "ChatScreen", argument: str) -> None:
    if not argument:
        raise InvalidValue("/import needs the path of an exported conversation")
    title, messages = read_export(Path(argument).expanduser())
    chat = screen.new_chat()
    for role, text in messages:
        chat.add(role, text, title)
    await screen.open(chat)
