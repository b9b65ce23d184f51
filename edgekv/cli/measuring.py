"""What the commands of `edgekv eval` share: a model at work, its text, and how results look."""

import threading
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import click

from edgekv import catalog, config, download, plan
from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cli.interrupt import interrupting
from edgekv.cli.meter import Meter
from edgekv.cli.options import CACHE_SETTINGS
from edgekv.cli.output import write_facts, write_json, write_table
from edgekv.conversation import Prompt
from edgekv.engine import Engine
from edgekv.errors import ExitCode, InvalidValue
from edgekv.evaluation.checkpoint import Checkpoint, key
from edgekv.evaluation.walk import Numbers, Score, Watch, walk_on
from edgekv.generate import Cancelled
from edgekv.models.layers import Decoder
from edgekv.policies import make_policy
from edgekv.tokenizer import Tokenizer

T = TypeVar("T")
TOKENS = 2048
"""Read where nobody says how many."""

TABLES = {
    "by_position": ("FIRST", "LAST", "PERPLEXITY"),
    "fresh": ("FIRST", "LAST", "PERPLEXITY, FRESH"),
    "by_depth": ("DEPTH", "FOUND", "ASKED", "EVICTED", "EVICTED, FOUND"),
    "compared": ("POLICY", "BITS", "DIVERGENCE", "SAME BEST", "BYTES"),
    "layers": ("LAYER", "KEY BITS", "VALUE BITS", "COST OF KEYS", "COST OF VALUES"),
}
"""Results that are tables, and their heads."""


class Bench:
    """A model on its engine, with the policy and the text of one measurement."""

    def __init__(self, engine: Engine, path: Path, options: dict[str, Any]) -> None:
        settings = config.load({key: options[key] for key in ("model", *CACHE_SETTINGS)})
        self.engine, self.path, self.name = engine, path, settings.model
        shape = engine.loaded.shape
        self.policy = make_policy(settings, shape, Prompt(()), False, options["kv_budget"])
        if (raised := shape.raised(settings.k_bits, settings.kv_policy)) is not None:
            click.echo(f"edgekv: {raised}", err=True)

    @property
    def tokenizer(self) -> Tokenizer:
        return self.engine.loaded.tokenizer

    def text(self, file: Path | None, n: int | None) -> list[int]:
        """The first n tokens of a file. Raises InvalidValue where it has not so many."""
        tokens = self.tokenizer.encode(_read(file), add_special=True)
        if len(tokens) < (n or 2):
            raise InvalidValue(
                f"the text has {len(tokens):,} tokens of the {n or 2:,} wanted: "
                "give a longer --file, or fewer --tokens"
            )
        return tokens[: n or TOKENS]

    def run(self, what: str, job: Callable[[Decoder, Rope, Watch], T]) -> T:
        """Run a measurement on the engine's thread. Raises Cancelled after an interrupt."""
        stop = threading.Event()
        watch = Watch(Meter(what).told, stop.is_set)
        with interrupting(stop.set):
            return self.engine.call(lambda model, rope: job(model, rope, watch)).result()

    def kept(
        self, what: str, name: str, measure: Callable[[Decoder, Rope, Watch, Checkpoint], T]
    ) -> T:
        """Run a measurement that keeps itself; interrupted, it goes on from there next time."""
        place = Checkpoint(config.paths().data / "evaluations", name)
        found = self.run(what, lambda model, rope, watch: measure(model, rope, watch, place))
        place.forget()
        return found

    def walk(
        self,
        what: str,
        tokens: Sequence[int],
        policies: Sequence[CachePolicy],
        score: Callable[[Decoder], Score],
    ) -> Numbers:
        """Feed a text through caches and score it."""

        def job(model: Decoder, rope: Rope, watch: Watch, place: Checkpoint) -> Numbers:
            walk = place.load(policies, rope)
            if walk.done:
                click.echo(f"going on from token {walk.done:,}", err=True)
            return walk_on(model, walk, tokens, score(model), watch, place)

        return self.kept(what, key(what, self.path, tokens, policies), job)

    def report(self, **found: Any) -> dict[str, Any]:  # noqa: ANN401
        return {"model": self.name, **found, "policy": plan.policy_report(self.policy)}


def _read(file: Path | None) -> str:
    if file is None:
        return (
            resources.files("edgekv.evaluation").joinpath("mansfield_park.txt").read_text("utf-8")
        )
    try:
        return file.read_text("utf-8")
    except OSError as error:
        raise InvalidValue(f"--file {file}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InvalidValue(f"--file {file}: byte {error.start} is not valid UTF-8") from None


def on_bench(options: dict[str, Any], measure: Callable[[Bench], dict[str, Any]]) -> int:
    """Load the model, measure, and print; an interrupted measurement is kept where it can be."""
    name = config.load({"model": options["model"]}).model
    path = download.locate(catalog.resolve(name), progress=download.for_stderr())
    try:
        with Engine(path) as engine:
            found = measure(Bench(engine, path, options))
    except Cancelled:
        click.echo("edgekv: interrupted; the same command goes on from here", err=True)
        return ExitCode.INTERRUPTED
    if options["as_json"]:
        write_json(found)
    else:
        _write_text(found)
    return ExitCode.OK


def _write_text(found: dict[str, Any]) -> None:
    tables = {name: found.pop(name) for name in TABLES if name in found}
    layers = found.pop("policy")
    facts = [(name, _text(value)) for name, value in found.items()]
    write_facts([*facts, ("policy", plan.policy_line(layers))])
    for name, rows in tables.items():
        click.echo()
        cells = [list(row.values()) if isinstance(row, dict) else row for row in rows]
        write_table(TABLES[name], [[_text(cell) for cell in row] for row in cells])


def _text(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
