"""The app's main states at 40, 80 and 160 columns, held to what was looked at and found good.

`NEW_PICTURES=1 pytest -m slow tests/tui/test_pictures.py` writes them anew: look at them.
"""

import os
from pathlib import Path

import pytest

from tests.tui.harness import ui
from tests.tui.pictures import STATES, WIDTHS

KEPT = Path(__file__).parent / "screens"


@pytest.mark.slow
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("state", STATES, ids=lambda state: state.__name__)
@ui
async def test_the_screen_is_as_it_was_looked_at(state, width, tmp_path):
    model = tmp_path / "smollm2-135m.gguf"
    model.touch()
    async with state(model, (width, WIDTHS[width])) as (name, chat):
        path = KEPT / f"{name}-{width}.txt"
        if os.environ.get("NEW_PICTURES"):
            await chat.pilot.pause(0.3)
            path.parent.mkdir(exist_ok=True)
            path.write_text(chat.shown() + "\n", "utf-8")
        kept = path.read_text("utf-8")
        await chat.until(lambda: chat.shown() + "\n" == kept, f"the screen of {path.name}")
