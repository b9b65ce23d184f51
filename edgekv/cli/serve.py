"""`edgekv serve`: the model over HTTP, for programs that speak OpenAI's or Anthropic's API."""

import ipaddress
import logging
import sys
from pathlib import Path
from typing import Any

import click

from edgekv import catalog, config, download
from edgekv.cli.options import (
    cache_options,
    draw_options,
    model_option,
)
from edgekv.cli.output import amount
from edgekv.cli.store import open_store, warn
from edgekv.config import Config
from edgekv.conversation import Prompt
from edgekv.engine import Engine, Limits
from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.models.shape import ModelShape
from edgekv.policies import make_policy
from edgekv.server.app import make_app
from edgekv.server.listen import bind, listen
from edgekv.server.security import Access
from edgekv.server.service import Service, Settings

_SETTINGS = tuple(key for key in config.RULES if key != "system")
PINNED_ROOM = 1024
"""Tokens of a system message that the budget has room for in each request, unless it is given."""


@click.command()
@model_option
@cache_options
@draw_options
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=8787, show_default=True, type=click.IntRange(0, 65535))
@click.option("--api-key", envvar="EDGEKV_API_KEY", metavar="KEY", help="Ask clients for it.")
@click.option("--api-key-file", type=Path, metavar="PATH", help="Read the key from a file.")
@click.option("--allow-host", "hosts", multiple=True, metavar="NAME", help="A name it answers to.")
@click.option(
    "--allow-origin", "origins", multiple=True, metavar="URL", help="A web page that may call."
)
@click.option(
    "--parallel",
    default=4,
    show_default=True,
    type=click.IntRange(1, 64),
    help="Requests answered at a time.",
)
@click.option(
    "--queue", default=32, show_default=True, type=click.IntRange(0, 1024), help="That may wait."
)
@click.option("--verbose", is_flag=True, help="Log requests on standard error.")
def serve(**options: Any) -> None:  # noqa: ANN401
    """Serve the model over HTTP, for programs that speak OpenAI's API."""
    settings = config.load({key: options.get(key) for key in _SETTINGS})
    access = _access(options)
    with bind(options["host"], options["port"]) as listener:
        path = download.locate(catalog.resolve(settings.model), progress=download.for_stderr())
        with open_store() as store, Engine(path, store) as engine:
            served = _served(settings, engine.loaded.shape, options)
            engine.limit(Limits(served.running, served.kv_budget))
            service = Service(engine, served, store)
            level = "info" if options["verbose"] else "warning"
            logging.basicConfig(stream=sys.stderr, format="%(levelname)s: %(message)s")
            logging.getLogger("edgekv").setLevel(level.upper())
            if not store.writable:
                warn(f"KV is not kept on disk: {store.folder} cannot be written")
            _announce(served, options["host"], listener.getsockname()[1])
            listen(make_app(service, access), service, listener, level)


def _access(options: dict[str, Any]) -> Access:
    """Who may call. Raises InvalidValue for an address that others reach, without a key."""
    key = options["api_key"]
    if options["api_key_file"] is not None:
        key = _read_key(options["api_key_file"])
    if key is not None and not (key.strip() and key.isascii() and key.isprintable()):
        raise InvalidValue("--api-key: a key is one line of printable ASCII characters")
    host = options["host"]
    if key is None and not _is_loopback(host):
        raise InvalidValue(
            f"--host {host}: others can reach this address, so give --api-key or --api-key-file"
        )
    hosts = frozenset(name.lower() for name in (host, f"[{host}]", *options["hosts"]))
    return Access(key, hosts, not _is_loopback(host), frozenset(options["origins"]))


def _read_key(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidValue(f"--api-key-file {path}: cannot be read: {error}") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _served(settings: Config, shape: ModelShape, options: dict[str, Any]) -> Settings:
    """The cache of one request, and the bytes that all have together."""
    running, budget = options["parallel"], options["kv_budget"]
    share = None if budget is None or settings.window is not None else budget // running
    policy = make_policy(settings, shape, Prompt(()), False, share)
    if budget is None:
        budget = running * policy.with_pinned(PINNED_ROOM).nbytes
    if (told := shape.raised(settings.k_bits, settings.kv_policy)) is not None:
        click.echo(f"edgekv: {told}", err=True)
    if policy.nbytes > budget:
        raise DoesNotFit(
            f"--kv-budget of {budget:,} bytes is below the {policy.nbytes:,} bytes that a window "
            f"of {policy.window:,} tokens takes"
        )
    name, aliases = _names(settings.model)
    return Settings(
        name=name,
        config=settings,
        policy=policy,
        aliases=aliases,
        overflow=options["overflow"],
        pin_system=options["pin_system"],
        running=running,
        queue=options["queue"],
        kv_budget=budget,
    )


def _names(model: str) -> tuple[str, frozenset[str]]:
    """The name that clients see, which tells no path, and others it goes by."""
    is_path = catalog.existing(model) is not None and model not in catalog.entries()
    name = Path(model).stem if is_path else model
    return name, frozenset({model, "default"})


def _announce(served: Settings, host: str, port: int) -> None:
    name = f"[{host}]" if ":" in host else host
    most = amount(served.kv_budget)
    click.echo(
        f"{served.name} on http://{name}:{port}/v1: {served.running} requests at a time, "
        f"a window of {served.policy.window:,} tokens each, at most {most} of KV in all",
        err=True,
    )
