"""The step of a forward pass: new tokens of one sequence, and their attention in every layer."""

from edgekv.cache.decode import DecodeStep
from edgekv.cache.prefill import PrefillStep
from edgekv.cache.sequence import SequenceCache

Step = DecodeStep | PrefillStep


def make_step(cache: SequenceCache, n: int) -> Step:
    """Take n new tokens into a sequence: afterwards every layer must be attended once."""
    if n == 1 and cache.length >= cache.policy.n_sink:
        return DecodeStep(cache)
    return PrefillStep(cache, n)
