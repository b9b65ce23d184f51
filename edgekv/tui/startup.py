"""What happens behind the first paint: the store, the conversation, then the model."""

import asyncio
from typing import TYPE_CHECKING

from edgekv.errors import EdgekvError
from edgekv.tui.context import Context
from edgekv.tui.faults import in_a_line
from edgekv.tui.screens.models import ModelsScreen
from edgekv.tui.widgets.activity import Activity

if TYPE_CHECKING:
    from edgekv.tui.screens.chat import ChatScreen

OTHERS = "(Ctrl+O: other models)"


async def start(screen: "ChatScreen") -> None:
    """Open what is on disk, show the conversation, and get the model ready."""
    app = screen.chat_app
    faults: list[str] = []
    try:
        await asyncio.to_thread(app.open_store)
    except EdgekvError as error:
        faults.append(f"nothing is kept: {error}")
    try:
        chat = await asyncio.to_thread(app.first_chat, screen.fault)
    except EdgekvError as error:
        faults.append(str(error))
        chat = None
    # Behind the reading, which restores what is damaged.
    if app.store is not None:
        faults += app.store.notes
    await screen.open(chat or screen.new_chat())
    if faults:
        screen.banner.fault("; ".join(faults))
    screen.started = True
    try:
        here = await asyncio.to_thread(app.is_here, app.model_name)
    except EdgekvError as error:
        screen.fault(f"{error} {OTHERS}")
        return
    if not here:
        painted = asyncio.Event()
        screen.call_after_refresh(painted.set)
        await painted.wait()
        name = await choose_model(screen, first_run=True)
        if name is None:
            screen.offer("no model is here yet: Ctrl+O gets one")
            return
        await app.first_model(name)
        screen.show_title()
    await load_model(screen)


async def choose_model(screen: "ChatScreen", first_run: bool = False) -> str | None:
    """Ask which model to use; it is downloaded where it is not here."""
    app = screen.chat_app
    models = await asyncio.to_thread(app.start.list_models)
    shown = ModelsScreen(models, app.model_name, app.measure_download, first_run)
    return await app.push_screen_wait(shown)


async def use_model(screen: "ChatScreen", name: str) -> None:
    """Switch the model of the app and of the open conversation."""
    await screen.chat_app.use_model(name)
    screen.chat.configure(name, screen.settings.stored())
    screen.context = Context()
    screen.show_title()
    screen.show_context()
    await load_model(screen)


async def load_model(screen: "ChatScreen") -> None:
    """Load the model, saying so; a fault is shown, and another choice can follow."""
    screen.show_activity(Activity(f"loading {screen.model_title}", hint=""))
    try:
        await asyncio.shield(screen.chat_app.model())
    except Exception as error:
        screen.fault(f"{in_a_line(error)} {OTHERS}")
    if not screen.running:
        screen.show_activity(None)
    await screen.measure()
