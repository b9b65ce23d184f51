"""One reply as it is written: the next token out of scores, and text out of tokens."""

import time

import mlx.core as mx
import numpy as np

from edgekv.cache.sequence import SequenceCache
from edgekv.events import Finished, FinishReason, Reply, Request, Text, TokenScore
from edgekv.grammar import Matcher
from edgekv.metal.merge import MASKED
from edgekv.sampling import fresh_seed, make_adjustments, make_sampler
from edgekv.stops import StopFilter
from edgekv.tokenizer import Tokenizer


class Chooser:
    """Draws a reply's tokens. With a grammar, a draw waits for the scores; else nothing does."""

    def __init__(self, request: Request, vocab_size: int, matcher: Matcher | None) -> None:
        sampling = request.sampling
        seed = fresh_seed() if sampling.seed is None else sampling.seed
        self._sampler = make_sampler(sampling, seed)
        self._adjustments = make_adjustments(sampling, request.prompt, vocab_size)
        self._n_scores = request.scores
        self.matcher = matcher

    def draw(self, logits: mx.array) -> "Drawn":
        """A token from scores (vocab_size,) in fp32."""
        adjusted = logits
        for adjustment in self._adjustments:
            adjusted = adjustment(adjusted)
        if self.matcher is not None:
            adjusted = mx.where(mx.array(self.matcher.allowed()), adjusted, MASKED)
        token = self._sampler(adjusted)
        for adjustment in self._adjustments:
            adjustment.observe(token)
        if self.matcher is not None:
            self.matcher.take(int(token.item()))  # type: ignore[arg-type]
        return Drawn(token, *self._score(logits, token))

    def _score(self, logits: mx.array, token: mx.array) -> tuple[mx.array, ...]:
        if self._n_scores is None:
            return ()
        logprobs = logits - mx.logsumexp(logits)
        best = mx.argsort(-logprobs)[: self._n_scores]
        return logprobs[token], best, logprobs[best]


class Drawn:
    """A token (1,) that may not be computed yet, and its scores where they are wanted."""

    def __init__(self, token: mx.array, *scores: mx.array) -> None:
        self.token = token
        self._scores = scores

    def arrays(self) -> tuple[mx.array, ...]:
        return (self.token, *self._scores)

    def read(self) -> tuple[int, TokenScore | None]:
        """The token's id and scores; waits for them."""
        token = int(self.token.item())  # type: ignore[arg-type]
        if not self._scores:
            return token, None
        own, best, values = (np.array(array).tolist() for array in self._scores)
        return token, TokenScore(token, own[0], tuple(zip(best, values, strict=True)))


class Writer:
    """Turns a reply's tokens into its events, and says when and why it ends."""

    def __init__(self, request: Request, reply: Reply, tokenizer: Tokenizer) -> None:
        self._reply = reply
        self._eos_ids = tokenizer.eos_ids
        self._detokenizer = tokenizer.detokenizer()
        self._stops = StopFilter(request.stops)
        self._max_tokens = request.max_tokens
        self._scores: list[TokenScore] = []
        self._unshown = 0
        self.n_tokens = 0
        self.said: list[int] = []
        """The reply's tokens, without the one that ended it."""

    @property
    def stopped_by(self) -> str | None:
        return self._stops.stopped_by

    def add(self, token: int, score: TokenScore | None) -> FinishReason | None:
        """Take a token; returns why the reply ends with it, or None."""
        self.n_tokens += 1
        if token in self._eos_ids:
            return "stop"
        self._unshown += 1
        self.said.append(token)
        if score is not None:
            self._scores.append(score)
        self._show(self._stops.add(self._detokenizer.add(token)))
        if self._stops.stopped:
            return "stop"
        return "length" if self.n_tokens == self._max_tokens else None

    def finish(self) -> bool:
        """Show what was held back; returns whether it ends in a stop string after all."""
        self._show(self._stops.add(self._detokenizer.finish()) + self._stops.finish())
        return self._stops.stopped

    def _show(self, text: str) -> None:
        if text:
            self._reply.put(Text(text, self._unshown, tuple(self._scores)))
            self._scores, self._unshown = [], 0


class Tally:
    """Counts and times of one reply: made when its prompt is begun, of which it was asked before.

    asked: on the clock of time.perf_counter.
    """

    def __init__(
        self, asked: float, cache: SequenceCache, prompt_tokens: int, cached_tokens: int
    ) -> None:
        self._asked, self._cache = asked, cache
        self._prompt_tokens, self._cached_tokens = prompt_tokens, cached_tokens
        self._start = time.perf_counter()
        self._prefilled: float | None = None
        self._first: float | None = None
        self._peak = cache.nbytes

    def measure(self) -> None:
        self._peak = max(self._peak, self._cache.nbytes)

    def prefilled(self) -> None:
        """The prompt is read, and the first token drawn: what follows is decoding."""
        self._prefilled = time.perf_counter()

    def token(self) -> None:
        if self._first is None:
            self._first = time.perf_counter()

    def finished(self, reason: FinishReason, writer: Writer) -> Finished:
        self.measure()
        now = time.perf_counter()
        prefilled = self._prefilled or now
        return Finished(
            reason=reason,
            prompt_tokens=self._prompt_tokens,
            completion_tokens=writer.n_tokens,
            evicted_tokens=self._cache.evicted_tokens,
            ttft_s=(self._first or now) - self._asked,
            prefill_s=prefilled - self._start,
            decode_s=now - prefilled,
            kv_bytes=self._cache.nbytes,
            kv_peak_bytes=self._peak,
            cached_tokens=self._cached_tokens,
            tokens=tuple(writer.said),
            stop=writer.stopped_by,
        )
