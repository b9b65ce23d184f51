"""Counts since the start, in Prometheus' text format and as JSON for the status page."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from edgekv.engine import Load
from edgekv.server.generation import Generation

BUCKETS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the time to the first token, in seconds."""


class Metrics:
    """Owned by the server's event loop."""

    def __init__(self) -> None:
        self._statuses: Counter[tuple[str, int]] = Counter()
        self._reasons: Counter[str] = Counter()
        self._first = [0] * (len(BUCKETS) + 1)
        self._first_sum = 0.0
        self.cached_tokens = self.evicted_tokens = 0
        self.decode_tps = self.prefill_tps = 0.0
        """Tokens a second of the newest answer."""

    def responded(self, route: str, status: int) -> None:
        self._statuses[route, status] += 1

    def answered(self, generation: Generation) -> None:
        """An answer has ended, or been given up."""
        finished = generation.finished
        if finished is None:
            self._reasons["abandoned"] += 1
            return
        self._reasons[finished.reason] += 1
        self.cached_tokens += finished.cached_tokens
        self.evicted_tokens += finished.evicted_tokens
        self.decode_tps, self.prefill_tps = finished.decode_tps, finished.prefill_tps
        if generation.first_s is not None:
            self._first[bisect_left(BUCKETS, generation.first_s)] += 1
            self._first_sum += generation.first_s

    def text(self, load: Load, in_flight: int, budget: int) -> str:
        """Prometheus' exposition format, version 0.0.4."""
        lines = list(self._statuses_lines())
        lines += _metric("answers_total", "counter", "Answers by how they ended.", ())
        lines += [
            f'edgekv_answers_total{{reason="{reason}"}} {n}'
            for reason, n in sorted(self._reasons.items())
        ]
        counts = {
            "prompt_tokens_total": ("Tokens of prompts.", load.prompt_tokens),
            "completion_tokens_total": ("Tokens written.", load.completion_tokens),
            "cached_tokens_total": ("Tokens of prompts not computed again.", self.cached_tokens),
            "evicted_tokens_total": ("Tokens that left a window.", self.evicted_tokens),
        }
        for name, (text, value) in counts.items():
            lines += _metric(name, "counter", text, [("", value)])
        gauges = {
            "requests_in_flight": ("Requests let in and not answered yet.", in_flight),
            "requests_running": ("Replies under way.", load.running),
            "requests_waiting": ("Requests in the queue.", load.waiting),
            "kv_bytes": ("Bytes of KV held by replies under way.", load.kv_bytes),
            "kv_budget_bytes": ("Bytes of KV that all may have.", budget),
        }
        for name, (text, value) in gauges.items():
            lines += _metric(name, "gauge", text, [("", value)])
        lines += self._first_lines()
        return "\n".join(lines) + "\n"

    def _statuses_lines(self) -> Iterator[str]:
        yield from _metric("http_responses_total", "counter", "Responses by status.", ())
        for (route, status), n in sorted(self._statuses.items()):
            yield f'edgekv_http_responses_total{{route="{route}",status="{status}"}} {n}'

    def _first_lines(self) -> Iterator[str]:
        name = "time_to_first_token_seconds"
        yield from _metric(name, "histogram", "From a request to its first token.", ())
        totals = list(accumulate(self._first))
        for bound, total in zip((*map(str, BUCKETS), "+Inf"), totals, strict=True):
            yield f'edgekv_{name}_bucket{{le="{bound}"}} {total}'
        yield f"edgekv_{name}_sum {self._first_sum:.6f}"
        yield f"edgekv_{name}_count {totals[-1]}"

    def summary(self) -> dict[str, Any]:
        """The same for the status page."""
        return {
            "answers": dict(self._reasons),
            "cached_tokens": self.cached_tokens,
            "evicted_tokens": self.evicted_tokens,
            "decode_tps": self.decode_tps,
            "prefill_tps": self.prefill_tps,
        }


def _metric(
    name: str, kind: str, text: str, values: list[tuple[str, float]] | tuple[()]
) -> list[str]:
    head = [f"# HELP edgekv_{name} {text}", f"# TYPE edgekv_{name} {kind}"]
    return head + [f"edgekv_{name}{labels} {value}" for labels, value in values]
