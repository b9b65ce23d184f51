"""The default model, loaded once, and what the product's own measures say of its policies."""

import functools
from dataclasses import dataclass
from pathlib import Path

from edgekv import blas
from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.evaluation.divergence import compare, each, reference_policy
from edgekv.evaluation.perplexity import nll_of
from edgekv.evaluation.walk import Walk, walk_on
from edgekv.loading import open_checkpoint
from edgekv.models.layers import Decoder
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape
from edgekv.tokenizer import Tokenizer

TEXT = Path(__file__).parent.parent / "data" / "mansfield_park.txt"


@dataclass(frozen=True)
class Loaded:
    """A model with all that a sequence of it needs."""

    model: Decoder
    rope: Rope
    shape: ModelShape
    tokenizer: Tokenizer

    def cache(self, policy: CachePolicy) -> SequenceCache:
        return SequenceCache(policy, self.rope)

    def policy(self, window: int, bits: int = 4, n_sink: int = 4) -> CachePolicy:
        return self.shape.policy(window, n_sink, bits, bits)

    def text(self) -> list[int]:
        return self.tokenizer.encode(TEXT.read_text("utf-8"))

    def nll(self, cache, tokens, **options):
        """Losses of all tokens but the first, or the first `skip`, fed as a prompt."""
        return self.walk_on([cache], tokens, nll_of, **options)[:, 0]

    def divergences(self, policies, tokens):
        """Of each policy from a 16-bit cache of everything."""
        every = [reference_policy(policies[0], len(tokens)), *policies]
        return each(self.walk_on([self.cache(p) for p in every], tokens, compare))

    def walk_on(self, caches, tokens, score, **options):
        return walk_on(self.model, Walk(caches), tokens, score(self.model), **options)


@functools.cache
def load(path: Path) -> Loaded:
    blas.install()
    checkpoint = open_checkpoint(path)
    shape = ModelShape.from_config(checkpoint.config)
    model = build(checkpoint.config, checkpoint.weights)
    return Loaded(model, make_rope(checkpoint.config, shape.head_dim), shape, checkpoint.tokenizer)
