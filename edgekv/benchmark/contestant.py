"""The process of one contestant: its specification as an argument, its rows on standard output."""

import importlib
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from typing import Any

from edgekv.benchmark.contest import Contestant, Row, Task

Stream = Callable[[Sequence[int], int], Iterator[int]]
"""A prompt's token ids and how many to write → each token as it comes."""

MLX = "mlx.core"


def rates(stream: Stream, tokens: Sequence[int], answer: int) -> Row:
    """Tokens a second of reading a prompt and of writing behind the first token."""
    times = [time.perf_counter()]
    times += [time.perf_counter() for _ in stream(tokens, answer + 1)]
    prefill_s, decode_s = times[1] - times[0], times[-1] - times[1]
    return {
        "context": len(tokens),
        "prefill_tps": len(tokens) / prefill_s,
        "decode_tps": (len(times) - 2) / decode_s,
    }


def process_peak() -> int:
    """Bytes that this process has held at the most."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def words() -> str:
    """Ordinary prose."""
    return resources.files("edgekv.evaluation").joinpath("mansfield_park.txt").read_text("utf-8")


def prompts(tokens: list[int], contexts: Sequence[int]) -> list[list[int]]:
    """The first tokens of a text, repeated where it is too short."""
    return [(tokens * (n // len(tokens) + 1))[:n] for n in contexts]


def main() -> None:
    spec: dict[str, Any] = json.loads(sys.argv[1])
    contestant = Contestant(**spec["contestant"])
    task = Task(**{**spec["task"], "contexts": tuple(spec["task"]["contexts"])})
    library = importlib.import_module(f"edgekv.benchmark.{contestant.library}")
    print(json.dumps(library.measure(contestant.setting, task)))


if __name__ == "__main__":
    main()
