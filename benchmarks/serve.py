"""Several streams at once: total speed against one stream's, and the gaps beside a long prompt.

python benchmarks/serve.py -m MODEL [--tokens N] [--rounds N]
Prints one JSON object. Every figure is a ratio of two that were measured in one run.
"""

import argparse
import json
import statistics
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from edgekv.engine import Engine, Reply, Request, Text
from edgekv.sampling import Sampling

PROMPTS = (
    "Once upon a time there was a king who",
    "The history of the railway begins in",
    "A recipe for bread: take some flour and",
    "Dear sir, I am writing to you because",
)


class Timed(Reply):
    """A reply that notes when each piece of text came."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[float] = []
        self.text = ""

    def put(self, event: object) -> None:
        if isinstance(event, Text):
            self.times.append(time.perf_counter())
            self.text += event.text
        super().put(event)  # type: ignore[arg-type]


def ask(engine: Engine, text: str, n: int) -> Timed:
    tokens = tuple(engine.loaded.tokenizer.encode(text))
    reply = Timed()
    # A biased end keeps every reply at its full length.
    bias = tuple((token, -100.0) for token in engine.loaded.tokenizer.eos_ids)
    policy = engine.loaded.shape.policy()
    engine.submit(Request(tokens, policy, Sampling(logit_bias=bias), n), reply)
    return reply


def finish(replies: Sequence[Timed]) -> float:
    """Tokens a second of all replies together, from the last first token to the first end."""
    for reply in replies:
        list(reply)
    begin = max(reply.times[0] for reply in replies)
    end = min(reply.times[-1] for reply in replies)
    written = sum(sum(begin < at <= end for at in reply.times) for reply in replies)
    return written / (end - begin)


def gaps(times: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(times, times[1:], strict=False)]


def beside_a_prompt(engine: Engine, n: int, nth: int) -> dict[str, float]:
    """Gaps of a running stream, before and while another's 2,000 tokens are read."""
    running = ask(engine, PROMPTS[0], 100_000)
    while len(running.times) < n:
        time.sleep(0.01)
    begun = time.perf_counter()
    # Another one in every round: what was read is not read again.
    other = ask(engine, f"{nth} " + "word " * 2000, 1)
    threading.Thread(target=lambda: list(other)).start()
    while not other.times:
        time.sleep(0.01)
    ended = other.times[0]
    running.cancel()
    list(running)
    usual = statistics.median(gaps([t for t in running.times if t < begun]))
    during = sorted(gaps([t for t in running.times if begun <= t <= ended]))
    p99 = during[min(len(during) - 1, round(0.99 * len(during)))]
    return {
        "usual_gap_s": usual,
        "p99_gap_s": p99,
        "ratio": p99 / usual,
        "prompt_s": ended - begun,
    }


def measure(engine: Engine, n: int, nth: int) -> dict[str, object]:
    alone = [ask(engine, prompt, n) for prompt in PROMPTS[:1]]
    one = finish(alone)
    together = [ask(engine, prompt, n) for prompt in PROMPTS]
    four = finish(together)
    return {
        "one_tps": one,
        "four_tps": four,
        "ratio": four / one,
        "same_as_alone": together[0].text == alone[0].text,
        "gap": beside_a_prompt(engine, n, nth),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=1)
    options = parser.parse_args()
    with Engine(options.model) as engine:
        rounds = [measure(engine, options.tokens, nth) for nth in range(options.rounds)]
    print(json.dumps({"model": options.model.name, "rounds": rounds}, indent=2))


if __name__ == "__main__":
    main()
