"""Contestants measured in turn, round after round, each time in a new process."""

import importlib.util
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from edgekv.errors import EdgekvError, InvalidValue

Row = dict[str, Any]
"""A measurement: name, context, and numbers."""


@dataclass(frozen=True)
class Contestant:
    """A library in one setting, `name` in the tables and `library` a module of this package."""

    name: str
    library: str
    setting: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Task:
    """What each of them does: read so many tokens, then write so many more."""

    model: str
    contexts: tuple[int, ...]
    answer: int


# peer → (the package it needs, its settings on Metal, what it is tried in besides on a CPU)
PEERS: dict[str, tuple[str, tuple[Contestant, ...], tuple[Contestant, ...]]] = {
    "mlx-lm": (
        "mlx_lm",
        (
            Contestant("mlx-lm", "mlx_lm", {"weights": "packed", "kv_bits": 16}),
            Contestant("mlx-lm, 4-bit KV", "mlx_lm", {"weights": "packed", "kv_bits": 4}),
        ),
        (
            Contestant("mlx-lm, dense fp32", "mlx_lm", {"weights": "dense", "kv_bits": 16}),
            Contestant(
                "mlx-lm, dense fp32, edgekv's BLAS",
                "mlx_lm",
                {"weights": "dense", "kv_bits": 16, "fast_blas": True},
            ),
        ),
    ),
    "llama-cpp": (
        "xllamacpp",
        (
            Contestant("llama.cpp", "llama_cpp", {"kv_type": "F16"}),
            Contestant("llama.cpp, q4_0 KV", "llama_cpp", {"kv_type": "Q4_0"}),
        ),
        (),
    ),
}


def peers(names: Sequence[str], metal: bool) -> list[Contestant]:
    """The contestants of some peers. Raises InvalidValue where a package is not installed."""
    found: list[Contestant] = []
    for name in names:
        package, always, on_cpu = PEERS[name]
        if importlib.util.find_spec(package) is None:
            wanted = package.replace("_", "-")
            raise InvalidValue(f"--against {name} needs {wanted}: run `pip install {wanted}`")
        found += always if metal else always + on_cpu
    return found


def run(
    contestants: Sequence[Contestant],
    task: Task,
    rounds: int,
    told: Callable[[int, int], None],
) -> list[Row]:
    """A row for each contestant and context: medians over the rounds, and the samples."""
    samples: dict[tuple[str, int], list[Row]] = {}
    total = rounds * len(contestants)
    for turn in range(total):
        contestant = contestants[turn % len(contestants)]
        for row in in_a_process(contestant, task):
            samples.setdefault((contestant.name, row["context"]), []).append(row)
        told(turn + 1, total)
    return [_median(name, rows) for (name, _), rows in samples.items()]


def _median(name: str, rows: Sequence[Row]) -> Row:
    medians: Row = {}
    for key, value in rows[0].items():
        known = value is not None
        medians[key] = statistics.median(row[key] for row in rows) if known else None
    raw = {key: [row[key] for row in rows] for key in ("prefill_tps", "decode_tps")}
    return {"name": name} | medians | {"samples": raw}


def in_a_process(contestant: Contestant, task: Task) -> Any:  # noqa: ANN401 - its own report
    """What one contestant reports. Raises EdgekvError where its process fails."""
    spec = json.dumps({"contestant": asdict(contestant), "task": asdict(task)})
    command = [sys.executable, "-m", "edgekv.benchmark.contestant", spec]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise EdgekvError(f"{contestant.name} on {Path(task.model).name} failed: {last}")
    return json.loads(done.stdout.splitlines()[-1])
