"""The step of a forward pass: new tokens of one sequence, and their attention in every layer."""

from edgekv.cache.decode import DecodeStep
from edgekv.cache.prefill import PrefillStep
from edgekv.cache.sequence import SequenceCache

Step = DecodeStep | PrefillStep


def takes_one(cache: SequenceCache, n: int) -> bool:
    """Whether n new tokens are one behind the sinks, for which there are shorter ways."""
    return n == 1 and cache.length >= cache.policy.n_sink


def make_step(cache: SequenceCache, n: int) -> Step:
    """Take n new tokens into a sequence: afterwards every layer must be attended once."""
    if takes_one(cache, n):
        return DecodeStep(cache)
    return PrefillStep(cache, n)
