"""`edgekv plan`: what a model and its KV cache will take here, before anything is loaded."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from edgekv import catalog, config, download, plan
from edgekv.cache.policy import CachePolicy
from edgekv.catalog import ModelEntry
from edgekv.cli import machine
from edgekv.cli.models import entry_shape
from edgekv.cli.options import CACHE_SETTINGS, policy_options
from edgekv.cli.output import amount, bold, write_facts, write_json, write_table
from edgekv.conversation import Prompt
from edgekv.errors import ModelNotFound
from edgekv.hardware import GB_PER_S, predict
from edgekv.models.memory import loaded_nbytes
from edgekv.plan import Subject
from edgekv.policies import make_policy


@click.command(name="plan")
@click.argument("model", required=False)
@policy_options
@click.option(
    "--pinned",
    type=click.IntRange(0),
    default=0,
    metavar="N",
    help="Tokens of a system message that is kept for good (default 0).",
)
@click.option(
    "--hardware",
    metavar="CHIP",
    help="Predict the speed on an Apple chip from its bandwidth: M4, 'M4 Max', …, or all.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def plan_command(
    model: str | None,
    pinned: int,
    hardware: str | None,
    as_json: bool,
    **options: Any,  # noqa: ANN401
) -> None:
    """Show what MODEL's KV cache takes by window and bits, what fits here, and what is advised.

    The last line is the policy of the options given, in the bytes that `edgekv run` then takes.
    """
    settings = config.load({key: options[key] for key in CACHE_SETTINGS} | {"model": model})
    subject = _subject(catalog.resolve(settings.model))
    prompt = Prompt((), pinned)
    chosen = make_policy(settings, subject.shape, prompt, True, options["kv_budget"])
    total = machine.total_memory()
    found = plan.report(subject, chosen, total, machine.usable_memory())
    if hardware is not None:
        found["predicted"] = _predicted(hardware, subject, chosen)
    if as_json:
        write_json(found)
    else:
        _write_text(found)


def _predicted(hardware: str, subject: Subject, policy: CachePolicy) -> list[dict[str, Any]]:
    chips = GB_PER_S if hardware == "all" else [hardware]
    floors = [predict(chip, policy, subject.shape.n_heads, subject.stored) for chip in chips]
    return [
        asdict(floor) | {"ms_per_token": floor.seconds * 1e3, "tokens_per_s": floor.tokens_per_s}
        for floor in floors
    ]


def _subject(model: catalog.Model) -> Subject:
    path = download.find_local(model)
    biased = isinstance(model, ModelEntry) and model.architecture in plan.KEY_BIAS
    if isinstance(model, ModelEntry) and not (biased and path):
        return Subject(
            model.alias,
            model.architecture,
            entry_shape(model),
            model.weight_bytes,
            _loaded(model.parameters, model.weight_bytes),
        )
    name = download.name_of(model)
    if path is None:
        raise ModelNotFound(f"{name} is neither in the catalog nor downloaded: pull it first")
    return local_subject(name, path)


def local_subject(name: str, path: Path) -> Subject:
    """A model that is here, by its files."""
    # Reading a model's files takes MLX, which a catalog entry does without.
    from edgekv.loading import read_config, read_key_biases
    from edgekv.models.guard import guarded
    from edgekv.models.load import count_weights
    from edgekv.models.rope import make_rope
    from edgekv.models.shape import ModelShape

    facts = read_config(path)
    shape = ModelShape.from_config(facts)
    shape = guarded(shape, read_key_biases(path), make_rope(facts, shape.head_dim))
    stored = download.size_on_disk(path)
    loaded = _loaded(count_weights(facts), stored)
    return Subject(name, facts["model_type"], shape, stored, loaded, checked=True)


def _loaded(n_weights: int, stored: int) -> int:
    return loaded_nbytes(n_weights, stored, machine.total_memory(), sys.platform == "darwin")


def _write_text(found: dict[str, Any]) -> None:
    seen, weights, memory = found["attention"], found["weights"], found["memory"]
    per_token = [f"{amount(size)} at {b} bits" for b, size in found["bytes_per_token"].items()]
    total = "unknown" if memory["total"] is None else amount(memory["total"])
    usable = "" if memory["usable"] is None else f", {amount(memory['usable'])} for models"
    write_facts(
        [
            ("model", found["model"]),
            (
                "attention",
                f"{seen['n_layers']} layers, {seen['n_heads']} query heads over "
                f"{seen['n_kv_heads']} KV heads of {seen['head_dim']}, "
                f"trained on {seen['context']:,} tokens",
            ),
            ("weights", f"{amount(weights['stored'])}, {amount(weights['loaded'])} when loaded"),
            ("memory", total + usable),
            ("KV a token", ", ".join(per_token)),
        ]
    )
    click.echo()
    _write_windows(found["windows"])
    click.echo()
    _write_policies(found)


def _write_windows(rows: list[dict[str, Any]]) -> None:
    heads = ["WINDOW", "FP16, ALL KEPT", *(f"{bits} BITS" for bits in rows[0]["bytes"])]
    cells = [
        [
            f"{row['window']:,}" + ("" if row["trained"] else " *"),
            amount(row["fp16_full_bytes"]),
            *(_size(size, row["fits"][bits]) for bits, size in row["bytes"].items()),
        ]
        for row in rows
    ]
    write_table(heads, cells)
    if not all(row["trained"] for row in rows):
        click.echo("* longer than the model was trained on")


def _size(size: int, fits: bool | None) -> str:
    return f"({amount(size)})" if fits is False else amount(size)


def _write_policies(found: dict[str, Any]) -> None:
    click.echo(bold("advised"))
    advised = found["advised"]
    if advised["policy"] is not None:
        click.echo(f"  {plan.policy_line(advised['policy'])}")
    for reason in advised["reasons"]:
        click.echo(f"  - {reason}")
    click.echo(bold("chosen"))
    beyond = " (does not fit here)" if found["chosen"]["fits"] is False else ""
    click.echo(f"  {plan.policy_line(found['chosen'])}{beyond}")
    if "predicted" in found:
        _write_predictions(found["predicted"])


def _write_predictions(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    click.echo(bold("predicted, not measured: the peak bandwidth allows no more"))
    click.echo(
        f"  a token reads {amount(first['weight_nbytes'])} of weights and, with the window full, "
        f"{amount(first['kv_nbytes'])} of KV"
    )
    for row in rows:
        click.echo(
            f"  {row['chip']}, {row['gb_per_s']} GB/s: at least {row['ms_per_token']:.2f} ms "
            f"a token, at most {row['tokens_per_s']:.0f} tokens/s"
        )
