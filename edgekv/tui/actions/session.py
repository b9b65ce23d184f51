"""The app itself: colours, bell, help, and leaving."""

from typing import TYPE_CHECKING

from edgekv.errors import InvalidValue
from edgekv.tui.actions.copying import to_clipboard
from edgekv.tui.actions.registry import action
from edgekv.tui.commands import help_text
from edgekv.tui.screens.ask import Confirm
from edgekv.tui.screens.help import HelpScreen

if TYPE_CHECKING:
    from edgekv.tui.screens.chat import ChatScreen


@action
def theme(screen: "ChatScreen", argument: str) -> None:
    if not argument:
        screen.app.search_themes()
        return
    if argument not in screen.app.available_themes:
        known = ", ".join(sorted(screen.app.available_themes))
        raise InvalidValue(f"no theme {argument!r}; known are {known}")
    screen.chat_app.choose_theme(argument)


@action
def bell(screen: "ChatScreen", argument: str) -> None:
    if argument not in ("on", "off"):
        raise InvalidValue("/bell takes on or off")
    screen.chat_app.prefer(bell=argument == "on")


@action
def help(screen: "ChatScreen", argument: str) -> None:
    screen.app.push_screen(HelpScreen(help_text()))


@action
async def interrupt(screen: "ChatScreen", argument: str) -> None:
    """Copy what is selected; else stop the reply; else, the second time, ask to quit."""
    selected = screen.get_selected_text() or screen.composer.selected_text
    if selected:
        screen.clear_selection()
        to_clipboard(screen, selected, "the selection")
    elif screen.stop_reply():
        screen.asked_to_quit = False
    elif not screen.asked_to_quit:
        screen.asked_to_quit = True
        screen.toast("Ctrl+C once more asks to quit; Ctrl+D quits")
    elif await screen.app.push_screen_wait(Confirm("Quit? Everything is kept.")):
        await screen.leave()
    else:
        screen.asked_to_quit = False


@action
async def exit(screen: "ChatScreen", argument: str) -> None:
    await screen.leave()
