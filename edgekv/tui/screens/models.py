"""The models: what is on this machine, what fits it, and getting another one."""

import asyncio
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, ProgressBar, Static
from textual.widgets.option_list import Option

from edgekv.tui.figures import size
from edgekv.tui.printable import one_line

PULL = (sys.executable, "-m", "edgekv", "models", "pull")
LOOK_S = 0.25
PATIENCE_S = 6.0
"""Seconds that a cancelled download has to put its files away."""


@dataclass(frozen=True)
class ModelChoice:
    """A model for people: sizes in bytes; fits None where the machine's memory is unknown."""

    name: str
    title: str
    here: bool
    nbytes: int
    fits: bool | None


ListModels = Callable[[], Sequence[ModelChoice]]
Measure = Callable[[str], int]


class ModelsScreen(ModalScreen[str | None]):
    """Gives the name of a model that is on this machine; None when none was chosen.

    current: the model in use. first_run: whether there is none yet. measure: bytes of a model
    that are on this machine so far.
    """

    BINDINGS = [
        Binding("escape,ctrl+c", "back", "Back", priority=True),
        Binding("ctrl+d", "leave", "Quit", priority=True),
    ]

    def __init__(
        self, models: Sequence[ModelChoice], current: str, measure: Measure, first_run: bool = False
    ) -> None:
        super().__init__()
        self._models = models
        self._current = current
        self._measure = measure
        self._first_run = first_run
        self._process: asyncio.subprocess.Process | None = None
        self._cancelled = False

    def compose(self) -> ComposeResult:
        with Vertical(classes="page"):
            yield Static(self._heading(), classes="heading", markup=False)
            yield OptionList(*(Option(self._row(model)) for model in self._models))
            yield ProgressBar(show_eta=False)
            yield Static("", classes="hint", markup=False)

    def on_mount(self) -> None:
        box = self.query_one(OptionList)
        names = [model.name for model in self._models]
        box.highlighted = names.index(self._current) if self._current in names else 0
        box.focus()
        self.query_one(ProgressBar).display = False
        self._say("Enter uses it, downloading it first where needed · Esc: back")

    def _heading(self) -> str:
        if self._first_run:
            return "No model is on this machine yet. Enter gets the selected one."
        return "Models"

    def _row(self, model: ModelChoice) -> Content:
        fits = {True: "fits here", False: "too large for this machine", None: ""}[model.fits]
        facts = [
            "in use" if model.name == self._current and model.here else "",
            f"{size(model.nbytes)}" if model.here else f"{size(model.nbytes)} to download",
            fits,
        ]
        detail = " · ".join(fact for fact in facts if fact)
        style = "$text-error" if model.fits is False else "$foreground 60%"
        return Content.assemble(
            (one_line(model.name), "bold"), f"  {one_line(model.title)}\n", (detail, style)
        )

    def _say(self, text: str) -> None:
        self.query_one(".hint", Static).update(Content(one_line(text, 400)))

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        if self._process is not None:
            return
        model = self._models[event.option_index]
        if model.here:
            self.dismiss(model.name)
        else:
            self._fetch(model)

    @work(exclusive=True)
    async def _fetch(self, model: ModelChoice) -> None:
        """Download in a process of its own, so that it can be ended at any moment."""
        bar = self.query_one(ProgressBar)
        bar.display = True
        bar.update(total=model.nbytes, progress=0)
        self._cancelled = False
        self._process = process = await asyncio.create_subprocess_exec(
            *PULL,
            model.name,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            code, words = await self._watch(process, model)
        finally:
            await self._end()
            bar.display = False
        if code == 0:
            self.dismiss(model.name)
        elif self._cancelled or code in (-signal.SIGINT, 130):
            # A process that is interrupted before it runs our code ends with other codes.
            self._say("cancelled: nothing of it is kept · Enter starts again")
        else:
            self._say(words or f"the download failed with exit code {code}")

    async def _watch(
        self, process: asyncio.subprocess.Process, model: ModelChoice
    ) -> tuple[int, str]:
        assert process.stderr is not None
        output = asyncio.create_task(process.stderr.read())
        bar = self.query_one(ProgressBar)
        while not output.done():
            done = await asyncio.to_thread(self._measure, model.name)
            bar.update(progress=min(done, model.nbytes))
            self._say(f"{size(done)} of {size(model.nbytes)} · Esc cancels")
            await asyncio.wait([output], timeout=LOOK_S)
        code = await process.wait()
        lines = (await output).decode("utf-8", "replace").splitlines()
        return code, lines[-1] if lines else ""

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.send_signal(signal.SIGINT)
        try:
            await asyncio.wait_for(process.wait(), PATIENCE_S)
        except TimeoutError:
            process.kill()
            await process.wait()

    def action_back(self) -> None:
        if self._process is not None:
            self._cancelled = True
            self._process.send_signal(signal.SIGINT)
        else:
            self.dismiss(None)

    async def action_leave(self) -> None:
        await self._end()
        self.app.exit()
