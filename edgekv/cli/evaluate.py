"""`edgekv eval`: what a cache policy does to a model, measured on its own forward path."""

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
from edgekv.cli.options import chain, make_policy, model_option, policy_options
from edgekv.cli.output import write_facts, write_json, write_table
from edgekv.conversation import Prompt
from edgekv.engine import Engine
from edgekv.errors import ExitCode, InvalidValue
from edgekv.evaluation import perplexity
from edgekv.evaluation.checkpoint import Checkpoint, key
from edgekv.evaluation.divergence import Divergence, divergences, reference_policy
from edgekv.evaluation.needle import Found, search
from edgekv.evaluation.walk import Walk, Watch
from edgekv.generate import Cancelled
from edgekv.models.layers import Decoder
from edgekv.tokenizer import Tokenizer

T = TypeVar("T")
TOKENS = 2048
"""Read where nobody says how many."""


@click.group(name="eval", no_args_is_help=True)
def evaluate() -> None:
    """Measure what a cache policy does to a model."""


tokens_option = click.option(
    "--tokens", type=click.IntRange(2), metavar="N", help=f"Tokens to read (default {TOKENS:,})."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
measured = chain(model_option, policy_options, tokens_option, json_option)
file_option = click.option(
    "--file",
    type=Path,
    metavar="PATH",
    help="The text; without it, the first chapters of Mansfield Park.",
)


class Bench:
    """A model on its engine, with the policy and the text of one measurement."""

    def __init__(self, engine: Engine, path: Path, options: dict[str, Any]) -> None:
        keys = ("model", "window", "n_sink", "kv_bits", "k_bits", "v_bits")
        settings = config.load({key: options[key] for key in keys})
        self.engine, self.path, self.name = engine, path, settings.model
        shape = engine.loaded.shape
        self.policy = make_policy(settings, shape, Prompt(()), False, options["kv_budget"])

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
        measure: Callable[[Decoder, Walk, Watch, Checkpoint], T],
    ) -> T:
        """Feed a text through caches."""

        def job(model: Decoder, rope: Rope, watch: Watch, place: Checkpoint) -> T:
            walk = place.load(policies, rope)
            if walk.done:
                click.echo(f"going on from token {walk.done:,}", err=True)
            return measure(model, walk, watch, place)

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
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"--file {file}: cannot be read as text: {error}") from None


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


@evaluate.command()
@measured
@file_option
@click.option("--fresh", is_flag=True, help="Also each stretch behind a new cache, for comparison.")
def ppl(file: Path | None, fresh: bool, **options: Any) -> int:  # noqa: ANN401
    """Perplexity of a text by position: drift shows as a rise."""

    def measure(bench: Bench) -> dict[str, Any]:
        tokens = bench.text(file, options["tokens"])
        found = bench.walk(
            "ppl",
            tokens,
            [bench.policy],
            lambda model, walk, watch, keep: perplexity.perplexity(
                model, walk, tokens, watch, keep
            ),
        )
        report = _ppl_report(bench, found)
        return report | ({"fresh": _fresh(bench, tokens)} if fresh else {})

    return on_bench(options, measure)


def _fresh(bench: Bench, tokens: list[int]) -> list[tuple[int, int, float]]:
    policy = bench.policy
    return bench.kept(
        "fresh",
        key(f"fresh {policy}", bench.path, tokens, []),
        lambda model, rope, watch, place: perplexity.fresh(
            model, policy, rope, tokens, place.load([], rope), watch, place
        ),
    )


def _ppl_report(bench: Bench, found: perplexity.Perplexity) -> dict[str, Any]:
    return bench.report(
        ppl=found.ppl,
        nll=float(found.nll.mean(dtype="float64")),
        tokens=len(found.nll),
        by_position=found.by_position(),
    )


@evaluate.command()
@measured
@file_option
def kld(file: Path | None, **options: Any) -> int:  # noqa: ANN401
    """Divergence from an fp16 cache of everything: mean, 99th percentile, same best token."""

    def measure(bench: Bench) -> dict[str, Any]:
        tokens = bench.text(file, options["tokens"])
        (found,) = bench.walk(
            "kld",
            tokens,
            [reference_policy(bench.policy, len(tokens)), bench.policy],
            lambda model, walk, watch, keep: divergences(model, walk, tokens, watch, keep),
        )
        return bench.report(**kld_report(found))

    return on_bench(options, measure)


def kld_report(found: Divergence) -> dict[str, Any]:
    return {
        "kld_mean": found.mean,
        "kld_p99": found.p99,
        "top1": found.top1,
        "ppl": found.ppl,
        "ppl_ref": found.ppl_reference,
        "tokens": len(found.kld),
    }


@evaluate.command()
@measured
def needle(**options: Any) -> int:  # noqa: ANN401
    """Hide a number at several depths of a long text and ask for it, inside the window and out."""

    def measure(bench: Bench) -> dict[str, Any]:
        length = options["tokens"] or TOKENS
        found = bench.run(
            "needle",
            lambda model, rope, watch: list(
                search(model, rope, bench.policy, bench.tokenizer, length, watch)
            ),
        )
        return bench.report(**_needle_report(found))

    return on_bench(options, measure)


def _needle_report(found: list[Found]) -> dict[str, Any]:
    """Counts of what the window holds; what has left it is counted apart."""
    rows = []
    for depth in sorted({answer.depth for answer in found}):
        here = [answer for answer in found if answer.depth == depth]
        rows.append({"depth": depth} | _counts(here))
    return _counts(found) | {"by_depth": rows}


def _counts(answers: list[Found]) -> dict[str, int]:
    held = [answer for answer in answers if not answer.evicted]
    gone = [answer for answer in answers if answer.evicted]
    return {
        "found": sum(answer.right for answer in held),
        "asked": len(held),
        "evicted": len(gone),
        "evicted_found": sum(answer.right for answer in gone),
    }


def _write_text(found: dict[str, Any]) -> None:
    tables = {name: found.pop(name) for name in TABLES if name in found}
    layers = found.pop("policy")
    facts = [(name, _text(value)) for name, value in found.items()]
    write_facts([*facts, ("policy", plan.policy_line(layers))])
    for name, rows in tables.items():
        click.echo()
        cells = [list(row.values()) if isinstance(row, dict) else row for row in rows]
        write_table(TABLES[name], [[_text(cell) for cell in row] for row in cells])


TABLES = {
    "by_position": ("FIRST", "LAST", "PERPLEXITY"),
    "fresh": ("FIRST", "LAST", "PERPLEXITY, FRESH"),
    "by_depth": ("DEPTH", "FOUND", "ASKED", "EVICTED", "EVICTED, FOUND"),
}


def _text(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
