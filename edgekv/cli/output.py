"""Writing to standard output: aligned text for people, JSON for programs."""

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

import click


def write_json(value: Any) -> None:  # noqa: ANN401 - whatever json can write
    """One JSON document and a newline. Text outside ASCII is escaped, so any locale will do."""
    click.echo(json.dumps(value, indent=2))


def write_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Left-aligned columns, the heads in bold on a terminal."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    click.echo(bold(_line(heads, widths)))
    for row in rows:
        click.echo(_line(row, widths))


def write_facts(facts: Sequence[tuple[str, object]]) -> None:
    """`name  value` lines, aligned."""
    width = max(len(name) for name, _ in facts)
    for name, value in facts:
        click.echo(f"{name.ljust(width)}  {value}")


def bold(text: str) -> str:
    """`text` in bold where standard output is a terminal that wants colour."""
    plain = bool(os.environ.get("NO_COLOR")) or not sys.stdout.isatty()
    return text if plain else click.style(text, bold=True)


def yes_no(value: bool | None) -> str:
    """A tri-state for people."""
    return {True: "yes", False: "no", None: "unknown"}[value]


def amount(size: float) -> str:
    """Bytes for people, in decimal units: "98.4 MB"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.1f} {unit}"
    return f"{size:g} B"


def count(number: int) -> str:
    """Parameters for people: "135M", "1.7B"."""
    return f"{number / 1e9:.1f}B" if number >= 1e9 else f"{number / 1e6:.0f}M"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "  ".join(padded).rstrip()
