"""`edgekv eval`: what a cache policy does to a model, measured on its own forward path."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from edgekv.cache.bits import with_bits, write_bits
from edgekv.cache.policy import CachePolicy
from edgekv.cli.measuring import TOKENS, Bench, on_bench
from edgekv.cli.options import chain, model_option, policy_options
from edgekv.errors import InvalidValue
from edgekv.evaluation import perplexity, tune
from edgekv.evaluation.checkpoint import key
from edgekv.evaluation.divergence import Divergence, compare, each, reference_policy
from edgekv.evaluation.needle import Found, search
from edgekv.quality import record_kld


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


@evaluate.command()
@measured
@file_option
@click.option("--fresh", is_flag=True, help="Also each stretch behind a new cache, for comparison.")
def ppl(file: Path | None, fresh: bool, **options: Any) -> int:  # noqa: ANN401
    """Perplexity of a text by position: drift shows as a rise."""

    def measure(bench: Bench) -> dict[str, Any]:
        tokens = bench.text(file, options["tokens"])
        numbers = bench.walk("ppl", tokens, [bench.policy], perplexity.nll_of)
        report = _ppl_report(bench, perplexity.Perplexity(numbers[:, 0]))
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
        policies = [reference_policy(bench.policy, len(tokens)), bench.policy]
        found = Divergence(bench.walk("kld", tokens, policies, compare))
        pairs = {(layer.k_bits, layer.v_bits) for layer in bench.policy.layers}
        if len(pairs) == 1:
            with suppress(OSError):  # the chat shows it where it can be kept
                record_kld(bench.name, pairs.pop(), found.mean)
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
        policy, tokenizer = bench.policy, bench.tokenizer
        found = bench.kept(
            "needle",
            key(f"needle {length} {policy}", bench.path, [], []),
            lambda model, rope, watch, place: search(
                model, rope, policy, tokenizer, length, place.load([], rope), watch, place
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


@evaluate.command(name="tune")
@measured
@file_option
@click.option("--mean-bits", type=float, metavar="F", help="Bits of a number, in the mean.")
@click.option("--out", type=Path, metavar="FILE", help="Write the bits here, for --kv-policy.")
def tune_command(
    file: Path | None,
    mean_bits: float | None,
    out: Path | None,
    kv_budget: int | None,
    **options: Any,  # noqa: ANN401
) -> int:
    """Divide a budget among layers: measure what each bears, then give bits where they help most.

    The budget is --kv-budget at the window given, or --mean-bits. The first tokens of the text
    decide, the tokens behind them are what the result is compared on.
    """
    if (mean_bits is None) == (kv_budget is None):
        raise InvalidValue("give a budget: either --kv-budget or --mean-bits")
    if mean_bits is not None and not tune.CHOICES[0] <= mean_bits <= tune.CHOICES[-1]:
        raise InvalidValue(f"--mean-bits: expected a number from 2 to 8, got {mean_bits:g}")
    if out is not None and not out.parent.is_dir():
        raise InvalidValue(f"--out {out}: there is no folder {out.parent}")

    def measure(bench: Bench) -> dict[str, Any]:
        if mean_bits is not None:
            mean = mean_bits
        else:
            mean = tune.mean_bits_of(bench.policy, kv_budget or 0)
        tokens = bench.text(file, tune.TOKENS + (options["tokens"] or TOKENS))
        costs = _costs(bench, tokens[: tune.TOKENS])
        bits = tune.divide(costs, mean)
        tuned = with_bits(bench.policy, bits)
        compared = _compare(bench, tokens[tune.TOKENS :], tuned)
        if out is not None:
            write_bits(out, bits, f"{bench.name}: {mean:.4g} bits in the mean")
        bench.policy = tuned
        rows = [
            {
                "layer": i,
                "k_bits": k,
                "v_bits": v,
                "k_cost": float(cost[0, tune.PROBE]),
                "v_cost": float(cost[1, tune.PROBE]),
            }
            for i, ((k, v), cost) in enumerate(zip(bits, costs, strict=True))
        ]
        return bench.report(compared=compared, layers=rows)

    return on_bench(options | {"kv_budget": None}, measure)


def _costs(bench: Bench, tokens: list[int]) -> tune.Costs:
    policy = bench.policy
    return bench.kept(
        "layers",
        key(
            f"tune {policy.n_sink} {tune.CHOICES} {tune.PROBE} {tune.GROUP}", bench.path, tokens, []
        ),
        lambda model, rope, watch, place: tune.sensitivities(
            model, rope, policy, tokens, place.load([], rope), watch, place
        ),
    )


def _compare(bench: Bench, tokens: list[int], tuned: CachePolicy) -> list[dict[str, Any]]:
    """Divergences of the tuned policy and of the same bits everywhere, on one text."""
    policies = {"tuned": tuned}
    for b in (3, 4):
        policies[f"K{b}V{b}"] = with_bits(tuned, [(b, b)] * len(tuned.layers))
    every = [reference_policy(tuned, len(tokens)), *policies.values()]
    found = each(bench.walk("compare", tokens, every, compare))
    return [
        {
            "name": name,
            "mean_bits": (policy.k_bits + policy.v_bits) / 2,
            "kld_mean": one.mean,
            "top1": one.top1,
            "bytes": policy.nbytes,
        }
        for (name, policy), one in zip(policies.items(), found, strict=True)
    ]
