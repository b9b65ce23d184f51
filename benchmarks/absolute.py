"""Perplexity of a stream whose sinks are seen from absolute positions: what edgekv avoids.

python benchmarks/absolute.py MODEL --file TEXT [--tokens 32768] [--window 508] > absolute.json

Like `edgekv eval ppl --json`, but a query's distance to the sinks grows with the text, as in
caches that keep sinks and count positions from the beginning. Interrupted, it goes on next time.
"""

import json
import sys
from dataclasses import dataclass

from kept import arguments, walked

from edgekv.cache.policy import CachePolicy
from edgekv.evaluation.perplexity import Perplexity, nll_of
from edgekv.models.shape import ModelShape


@dataclass(frozen=True)
class AbsolutePositions(CachePolicy):
    @property
    def last_slot(self) -> int:
        return 10**9


def main() -> None:
    parser = arguments(__doc__, 32768)
    parser.add_argument("--window", type=int, default=508)
    args = parser.parse_args()

    def policies(shape: ModelShape) -> list[CachePolicy]:
        plain = shape.policy(args.window)
        return [AbsolutePositions(plain.window, plain.layers, plain.n_sink)]

    found = Perplexity(walked(args, policies, nll_of)[:, 0])
    json.dump({"ppl": found.ppl, "by_position": found.by_position()}, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
