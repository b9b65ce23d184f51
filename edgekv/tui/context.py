"""Where the open conversation stands in its cache: tokens up to each message, what is forgotten."""

from typing import TYPE_CHECKING

from edgekv.cache.policy import CachePolicy
from edgekv.tui.occupancy import Occupancy

if TYPE_CHECKING:
    from edgekv.engine import Finished
    from edgekv.tui.model import Asked


class Context:
    """policy and tokens are those of the last reply, or measured. prefill_tps: 0 is unknown."""

    def __init__(self) -> None:
        self.policy: CachePolicy | None = None
        self.tokens = 0
        self.prefill_tps = 0.0
        self._ends: list[int] = []

    @property
    def occupancy(self) -> Occupancy | None:
        return None if self.policy is None else Occupancy(self.policy, self.tokens)

    def measured(self, policy: CachePolicy, ends: list[int]) -> None:
        """Counted without the engine: tokens up to the end of each message."""
        self.policy, self._ends = policy, ends
        self.tokens = ends[-1] if ends else 0

    def asked(self, asked: "Asked", n_messages: int, tokens: int) -> None:
        """A reply is under way; the last of the messages is its own, once it has begun."""
        self.policy = asked.policy
        self.tokens = tokens
        del self._ends[n_messages:]

    def finished(self, finished: "Finished", n_messages: int) -> None:
        """A reply has ended: its counts are exact."""
        self.tokens = finished.prompt_tokens + finished.completion_tokens
        if finished.prefill_s and finished.prompt_tokens > finished.cached_tokens:
            read = finished.prompt_tokens - finished.cached_tokens
            self.prefill_tps = read / finished.prefill_s
        exact = [finished.prompt_tokens, self.tokens]
        self._ends = [*self._ends[: n_messages - 2], *exact][:n_messages]

    def cut(self, position: int) -> None:
        """The messages from `position` on are gone."""
        del self._ends[position:]
        self.tokens = self._ends[-1] if self._ends else 0

    def first_seen(self) -> int | None:
        """Position of the oldest message that is still seen whole; None while all are."""
        now = self.occupancy
        if now is None or not now.evicted:
            return None
        gone = now.policy.n_sink + now.policy.n_pinned + now.evicted
        starts = [0, *self._ends[:-1]]
        return next((i for i, start in enumerate(starts) if start >= gone), len(self._ends) - 1)
