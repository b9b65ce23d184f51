"""Perplexity of a stream whose sinks are seen from absolute positions: what edgekv avoids.

python benchmarks/absolute.py MODEL --file TEXT --tokens 32768 --window 508 > absolute.json

Like `edgekv eval ppl --json`, but a query's distance to the sinks grows with the text, as in
caches that keep sinks and count positions from the beginning. Interrupted, it goes on next time.
"""

import argparse
import json
import signal
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgekv import config
from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cli.meter import Meter
from edgekv.engine import Engine
from edgekv.evaluation.checkpoint import Checkpoint, key
from edgekv.evaluation.perplexity import Perplexity, nll_of
from edgekv.evaluation.walk import Watch, walk_on
from edgekv.generate import Cancelled
from edgekv.models.layers import Decoder


@dataclass(frozen=True)
class AbsolutePositions(CachePolicy):
    @property
    def last_slot(self) -> int:
        return 10**9


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--window", type=int, default=508)
    args = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda number, frame: stop.set())
    watch = Watch(Meter("absolute").told, stop.is_set)
    with Engine(args.model) as engine:
        text = args.file.read_text("utf-8")
        tokens = engine.loaded.tokenizer.encode(text, add_special=True)[: args.tokens]
        plain = engine.loaded.shape.policy(args.window)
        policy = AbsolutePositions(plain.window, plain.layers, plain.n_sink)
        folder = config.paths().data / "evaluations"
        place = Checkpoint(folder, key("absolute", args.model, tokens, [policy]))

        def job(model: Decoder, rope: Rope) -> Perplexity:
            walk = place.load([policy], rope)
            score = nll_of(model)
            return Perplexity(walk_on(model, walk, tokens, score, watch, place)[:, 0])

        try:
            found = engine.call(job).result()
        except Cancelled:
            sys.exit("interrupted; the same command goes on from here")
    place.forget()
    report: dict[str, Any] = {"ppl": found.ppl, "by_position": found.by_position()}
    json.dump(report, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
