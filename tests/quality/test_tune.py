"""Bits by layer on the default model: 3.25 in the mean against three and four everywhere."""

import numpy as np
import pytest

from edgekv.cache.bits import with_bits
from edgekv.evaluation.tune import TOKENS, divide, sensitivities
from edgekv.evaluation.walk import Walk, Watch

pytestmark = pytest.mark.model


@pytest.mark.slow
def test_a_quarter_of_a_bit_in_the_right_places_is_worth_most_of_one(loaded, text):
    policy = loaded.policy(2048)
    measured = sensitivities(loaded.model, loaded.rope, policy, text[:TOKENS], Walk([]), Watch())
    tuned = with_bits(policy, divide(measured, 3.25))
    assert (tuned.k_bits + tuned.v_bits) / 2 <= 3.25
    policies = [tuned, *(loaded.policy(2048, bits) for bits in (3, 4))]
    passages = [text[at : at + 2048] for at in (TOKENS, TOKENS + 2048)]
    means = [[d.mean for d in loaded.divergences(policies, passage)] for passage in passages]
    found, three, four = np.mean(means, axis=0)
    assert found < three
    assert found <= 2 * four
