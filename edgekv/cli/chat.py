"""`edgekv chat`, which is also `edgekv` alone: the app, or a plain loop of lines."""

import sys
from typing import Any

import click

from edgekv import catalog, config
from edgekv.cli import models
from edgekv.cli.options import (
    cache_options,
    model_option,
    sampling_options,
    session_options,
)
from edgekv.errors import InvalidValue
from edgekv.stops import StopFilter
from edgekv.tui.screens.models import ModelChoice
from edgekv.tui.settings import Settings


@click.command()
@model_option
@cache_options
@sampling_options
@session_options
@click.option("--plain", is_flag=True, help="Lines in and out: for screen readers and scripts.")
def chat(**options: Any) -> None:  # noqa: ANN401
    """Chat in the terminal. Conversations are kept and can be resumed."""
    settings = _settings(options)
    session, last = options["session"], options["last"]
    if session is not None and last:
        raise click.UsageError("--session and -c each choose a session: give one of them")
    if options["no_persist"] and (last or session is not None):
        raise click.UsageError("--no-persist keeps no session to open")
    if options["plain"]:
        from edgekv.cli.plain import PlainChat

        PlainChat(settings, session, last, not options["no_persist"]).run()
        return
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("the chat needs a terminal; --plain does not, nor does `edgekv run`")
    _open_app(settings, session, last, not options["no_persist"])


def _open_app(settings: Settings, session: str | None, last: bool, persist: bool) -> None:
    from edgekv.tui.app import ChatApp, Start
    from edgekv.tui.background import has_light_background

    light = bool(has_light_background())
    app = ChatApp(Start(settings, _models, session, last, persist, light))
    try:
        app.run()
    finally:
        app.close()
    if app.return_code:
        sys.exit(app.return_code)


def _settings(options: dict[str, Any]) -> Settings:
    flags = {key: options.get(key) for key in config.RULES}
    budget, window = options["kv_budget"], options["window"]
    if budget is not None and window is not None:
        raise InvalidValue("--kv-budget chooses the window: give it or --window, not both")
    StopFilter(options["stops"])
    given = {key for key, value in flags.items() if value is not None}
    if "kv_bits" in given:
        given |= {"k_bits", "v_bits"}
    return Settings(
        config.load(flags),
        pin_system=options["pin_system"],
        budget=budget,
        overflow=options["overflow"],
        stops=options["stops"],
        given=frozenset(given | ({"window"} if budget is not None else set())),
    )


def _models() -> list[ModelChoice]:
    """The catalog as the models screen shows it."""
    choices = []
    for entry in catalog.entries().values():
        known = models.facts(entry, "")
        nbytes = known["size_on_disk"] if known["downloaded"] else known["download_size"]
        fits = known["fits"]
        assert isinstance(nbytes, int) and (fits is None or isinstance(fits, bool))
        here = bool(known["downloaded"])
        choices.append(ModelChoice(entry.alias, entry.title, here, nbytes, fits))
    return choices
