"""`edgekv bench`: speed and memory here, of this and of other libraries on the same file."""

import os
import platform
import sys
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from edgekv import catalog, config, download
from edgekv.benchmark import contest
from edgekv.benchmark.contest import Contestant, Row, Task
from edgekv.cache.policy import CachePolicy
from edgekv.cli import machine
from edgekv.cli.meter import Meter
from edgekv.cli.options import CACHE_SETTINGS, model_option, policy_options
from edgekv.cli.output import amount, write_facts, write_json, write_table
from edgekv.cli.plan import local_subject
from edgekv.conversation import Prompt
from edgekv.policies import make_policy

CONTEXTS = (512, 2048)
ANSWER = 32
BITS = (16, 8, 4)
"""Measured where no bits are asked for."""


@click.command()
@model_option
@policy_options
@click.option(
    "--context",
    "contexts",
    type=click.IntRange(128),
    multiple=True,
    default=CONTEXTS,
    show_default=True,
    metavar="N",
    help="Tokens of the prompt; repeatable.",
)
@click.option(
    "--rounds", type=click.IntRange(1), default=3, show_default=True, help="Medians of so many."
)
@click.option(
    "--stream",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Also the time of a token behind N tokens against that when the window had filled.",
)
@click.option(
    "--against",
    type=click.Choice(list(contest.PEERS)),
    multiple=True,
    help="Another library on the same file; repeatable.",
)
@click.option(
    "--kernels",
    is_flag=True,
    help="Only attention of one token: the Metal kernel, its twin, and MLX's own at fp16.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def bench(
    contexts: tuple[int, ...],
    rounds: int,
    stream: int,
    against: tuple[str, ...],
    kernels: bool,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Measure reading and writing, each time in a new process, in alternating rounds."""
    settings = config.load({key: options[key] for key in ("model", *CACHE_SETTINGS)})
    path = download.locate(catalog.resolve(settings.model), progress=download.for_stderr())
    policies = _policies(path, settings, options)
    if kernels:
        _bench_kernels(settings.model, path, contexts, rounds, as_json)
        return
    others = contest.peers(against, sys.platform == "darwin")
    task = Task(str(path), contexts, ANSWER)
    rows = contest.run(
        [_ours(policy) for policy in policies] + others, task, rounds, Meter("bench").told
    )
    report: dict[str, Any] = {"model": settings.model, "host": _host(against), "rounds": rounds}
    report |= {"answer": ANSWER, "rows": rows}
    report["resume"] = contest.in_a_process(_ours(policies[-1], resume=True), task)
    if stream:
        report["flat"] = contest.in_a_process(_ours(policies[-1], stream=stream), task)
    if as_json:
        write_json(report)
    else:
        _write_text(report)


def _bench_kernels(
    model: str, path: Path, windows: tuple[int, ...], rounds: int, as_json: bool
) -> None:
    from edgekv.benchmark import kernels

    shape = local_subject(model, path).shape
    rows = kernels.rows(shape, windows, rounds)
    host = _host(()) | {"gpu": kernels.gpu(), "peak_gb_per_s": kernels.peak_gb_per_s()}
    if as_json:
        write_json({"model": model, "host": host, "rounds": rounds, "rows": rows})
        return
    write_facts([(key, value) for key, value in host.items()])
    click.echo()
    heads = ("", "WINDOW", "K, V BITS", "US A LAYER", "FLOOR", "GB/S")
    cells = [
        (
            row["name"],
            f"{row['context']:,}",
            f"{row['k_bits']}, {row['v_bits']}",
            f"{row['us']:.1f}",
            "-" if row["floor_us"] is None else f"{row['floor_us']:.1f}",
            f"{row['gb_per_s']:.1f}",
        )
        for row in rows
    ]
    write_table(heads, cells)


def _policies(path: Path, settings: config.Config, options: dict[str, Any]) -> list[CachePolicy]:
    """The policy asked for, at several bits where none are."""
    shape = local_subject(settings.model, path).shape
    asked = any(options[key] is not None for key in ("kv_bits", "k_bits", "v_bits", "kv_policy"))
    bits = [(settings.k_bits, settings.v_bits)] if asked else [(b, b) for b in BITS]
    several = [replace(settings, k_bits=k, v_bits=v) for k, v in bits]
    return [make_policy(s, shape, Prompt(()), False, options["kv_budget"]) for s in several]


def _ours(policy: CachePolicy, **more: int) -> Contestant:
    from edgekv.benchmark.ours import policy_setting

    bits = sorted({(layer.k_bits, layer.v_bits) for layer in policy.layers})
    name = "edgekv, " + " and ".join(f"K{k}V{v}" for k, v in bits)
    return Contestant(name, "ours", policy_setting(policy) | more)


def _host(against: tuple[str, ...]) -> dict[str, Any]:
    packages = ["edgekv", "mlx", *(contest.PEERS[name][0].replace("_", "-") for name in against)]
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": machine.total_memory(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in packages},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _write_text(report: dict[str, Any]) -> None:
    write_facts([(key, value) for key, value in report["host"].items()])
    click.echo()
    heads = ("", "CONTEXT", "READ, TOKENS/S", "WRITE, TOKENS/S", "KV", "MLX PEAK", "PROCESS PEAK")
    write_table(heads, [_cells(row) for row in report["rows"]])
    kept = report["resume"]
    click.echo(
        f"\nfirst token of a session of {kept['context']:,} tokens: {kept['cold_s']:.3f} s when "
        f"read anew, {kept['resumed_s']:.3f} s with {kept['cached_tokens']:,} of them on disk"
    )
    if flat := report.get("flat"):
        (first, last), (begin, end) = flat["token_ms"], flat["positions"]
        click.echo(
            f"a token behind {begin:,} tokens takes {first:.2f} ms, "
            f"behind {end:,} {last:.2f} ms: {flat['ratio']:.3f} times"
        )


def _cells(row: Row) -> tuple[str, ...]:
    sizes = (row[key] for key in ("kv_bytes", "peak_bytes", "process_peak_bytes"))
    return (
        row["name"],
        f"{row['context']:,}",
        f"{row['prefill_tps']:.1f}",
        f"{row['decode_tps']:.2f}",
        *("-" if size is None else amount(size) for size in sizes),
    )
