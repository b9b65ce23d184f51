"""A text walked through caches of any policies, kept when interrupted, for the other scripts."""

import argparse
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from edgekv import config
from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cli.meter import Meter
from edgekv.engine import Engine
from edgekv.evaluation.checkpoint import Checkpoint, key
from edgekv.evaluation.walk import Numbers, Score, Watch, walk_on
from edgekv.generate import Cancelled
from edgekv.models.layers import Decoder
from edgekv.models.shape import ModelShape


def arguments(about: str | None, tokens: int) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(about or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="GGUF file or folder")
    parser.add_argument("--file", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=tokens)
    return parser


def walked(
    args: argparse.Namespace,
    policies: Callable[[ModelShape], Sequence[CachePolicy]],
    score: Callable[[Decoder], Score],
) -> Numbers:
    """The numbers of a text's tokens, on the engine's thread; interrupted, it goes on next time."""
    stop = threading.Event()
    signal.signal(signal.SIGINT, lambda number, frame: stop.set())
    watch = Watch(Meter(Path(sys.argv[0]).stem).told, stop.is_set)
    with Engine(args.model) as engine:
        text = args.file.read_text("utf-8")
        tokens = engine.loaded.tokenizer.encode(text, add_special=True)[: args.tokens]
        several = policies(engine.loaded.shape)
        name = key(score.__name__, args.model, tokens, several)
        place = Checkpoint(config.paths().data / "evaluations", name)

        def job(model: Decoder, rope: Rope) -> Numbers:
            return walk_on(model, place.load(several, rope), tokens, score(model), watch, place)

        try:
            found = engine.call(job).result()
        except Cancelled:
            sys.exit("interrupted; the same command goes on from here")
    place.forget()
    return found
