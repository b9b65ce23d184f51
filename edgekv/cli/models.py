"""`edgekv models`: the catalog, and what of it is on this machine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from edgekv import catalog, config, download
from edgekv.cache.policy import describe
from edgekv.catalog import ModelEntry
from edgekv.cli import machine
from edgekv.cli.confirm import confirm, yes_option
from edgekv.cli.output import amount, count, write_facts, write_json, write_table, yes_no
from edgekv.models.shape import ModelShape

# How the facts that are not plain text look to people.
HUMAN: dict[str, Callable[[Any], str]] = {
    "size_on_disk": amount,
    "download_size": amount,
    "parameters": count,
    "kv_bytes_per_token_4bit": amount,
    "files": lambda files: ", ".join(f"{n} ({amount(s)})" for n, s in files.items()) or "none",
    "sources": ", ".join,
    "policy": lambda rows: _policy(rows),
}

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(no_args_is_help=True)
def models() -> None:
    """List, download, remove and choose models."""


def entry_shape(entry: ModelEntry) -> ModelShape:
    """The numbers of a catalog entry that its cache follows from."""
    return ModelShape(entry.layers, entry.n_heads, entry.n_kv_heads, entry.head_dim, entry.context)


def facts(entry: ModelEntry, default: str) -> dict[str, object]:
    """One catalog entry with what is known of it here; sizes in bytes."""
    path = download.find_local(entry)
    window = entry.default_window or entry_shape(entry).default_window
    needed = entry.weight_bytes + window * entry.kv_bytes_per_token()
    return {
        "alias": entry.alias,
        "title": entry.title,
        "default": entry.alias == default,
        "downloaded": path is not None,
        "path": str(path) if path else None,
        "size_on_disk": _size(path) if path else 0,
        "download_size": entry.weight_bytes,
        "parameters": entry.parameters,
        "architecture": entry.architecture,
        "layers": entry.layers,
        "n_heads": entry.n_heads,
        "n_kv_heads": entry.n_kv_heads,
        "head_dim": entry.head_dim,
        "context": entry.context,
        "weight_bits": entry.weight_bits,
        "kv_bytes_per_token_4bit": entry.kv_bytes_per_token(),
        "window": window,
        "fits": machine.fits(needed),
        "license": entry.license,
        "sources": [str(source) for source in entry.sources],
    }


def _size(path: Path) -> int:
    # The files of a hub snapshot are links, whose targets are what takes the room.
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


@models.command("list")
@json_option
def list_models(as_json: bool) -> None:
    """Show the catalog: what is downloaded, its size, whether it fits here."""
    default = config.load().model
    rows = [facts(entry, default) for entry in catalog.entries().values()]
    if as_json:
        write_json({"models": rows})
        return
    heads = ("MODEL", "DOWNLOADED", "SIZE", "PARAMETERS", "KV/TOKEN", "FITS", "")
    write_table(heads, [_cells(row) for row in rows])


def _cells(row: dict[str, object]) -> tuple[str, ...]:
    here = bool(row["downloaded"])
    size = row["size_on_disk"] if here else row["download_size"]
    kv, parameters, fits = row["kv_bytes_per_token_4bit"], row["parameters"], row["fits"]
    assert isinstance(size, int) and isinstance(kv, float) and isinstance(parameters, int)
    assert fits is None or isinstance(fits, bool)
    return (
        str(row["alias"]),
        yes_no(here),
        amount(size),
        count(parameters),
        amount(kv),
        yes_no(fits),
        "default" if row["default"] else "",
    )


@models.command()
@click.argument("name")
@json_option
def pull(name: str, as_json: bool) -> None:
    """Download a model and print where it is."""
    path = download.locate(catalog.resolve(name), progress=download.for_stderr())
    if as_json:
        write_json({"model": name, "path": str(path), "size_on_disk": _size(path)})
    else:
        click.echo(path)


@models.command()
@click.argument("name")
@json_option
def show(name: str, as_json: bool) -> None:
    """Show what is known of a model, and its files."""
    model = catalog.resolve(name)
    path = download.find_local(model)
    known: dict[str, object]
    shape: ModelShape | None
    if isinstance(model, ModelEntry):
        known = facts(model, config.load().model)
        shape = entry_shape(model)
    else:
        known = {
            "model": download.name_of(model),
            "downloaded": path is not None,
            "path": str(path) if path else None,
            "size_on_disk": _size(path) if path else 0,
        }
        shape = None if path is None else ModelShape.from_config(_read_config(path))
    known["files"] = _files(path)
    known["policy"] = [] if shape is None else describe(shape.policy())
    if as_json:
        write_json(known)
    else:
        write_facts([(key, HUMAN.get(key, _text)(value)) for key, value in known.items()])


def _read_config(path: Path) -> dict[str, Any]:
    # Reading a model's files takes MLX, which a catalog entry does without.
    from edgekv.loading import read_config

    return read_config(path)


def _policy(rows: list[dict[str, int | str]]) -> str:
    """One line for each run of equal layers."""
    lines = (
        f"layers {row['layers']}: {row['kind']} window {row['window']:,}, {row['n_sink']} sinks, "
        f"keys {row['k_bits']} bits, values {row['v_bits']} bits, "
        f"{row['n_kv_heads']} KV heads of {row['head_dim']}, "
        f"{amount(float(row['block_bytes']))} a block of 64 tokens"
        for row in rows
    )
    return "; ".join(lines) or "unknown until downloaded"


def _files(path: Path | None) -> dict[str, int]:
    """File names and sizes in bytes."""
    if path is None:
        return {}
    if path.is_file():
        return {path.name: path.stat().st_size}
    return {file.name: file.stat().st_size for file in sorted(path.iterdir()) if file.is_file()}


def _text(value: object) -> str:
    return yes_no(value) if isinstance(value, bool) else str("-" if value is None else value)


@models.command()
@click.argument("name")
@yes_option
@json_option
def rm(name: str, yes: bool, as_json: bool) -> None:
    """Remove what edgekv downloaded of a model."""
    model = catalog.resolve(name)
    places = download.owned(model)
    if places and not yes:
        title, size = download.name_of(model), sum(map(download.size_on_disk, places))
        confirm(f"Remove {title} ({amount(size)})?", title, "removing")
    freed = download.remove(model)
    if as_json:
        write_json({"model": name, "freed": freed})
    else:
        click.echo(f"removed {download.name_of(model)}, {amount(freed)} freed", err=True)


@models.command()
@click.argument("name")
@json_option
def use(name: str, as_json: bool) -> None:
    """Make a model the default, in config.toml."""
    model = catalog.resolve(name)
    # A relative path would mean something else in another folder.
    value = str(model.path) if isinstance(model, catalog.LocalModel) else name
    path = config.set_model(value)
    if as_json:
        write_json({"model": value, "config": str(path)})
    else:
        click.echo(f"default model is now {value} ({path})", err=True)
