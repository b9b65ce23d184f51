"""What storing keys and values in few bits costs, over 2,048 tokens of prose."""

import pytest

from tests.quality.measure import PREFILL_CHUNK, divergence

pytestmark = pytest.mark.model
N = 2048


def measured(loaded, text, bits):
    full = loaded.cache(loaded.policy(N, bits=16))
    return divergence(loaded.model, full, loaded.cache(loaded.policy(N, bits)), text[:N])


def test_four_bits_stay_within_a_hundredth_of_a_nat(loaded, text):
    found = measured(loaded, text, bits=4)
    assert len(found.kld) == N
    assert found.mean <= 0.010
    assert found.top1 >= 0.95
    # Were it zero, nothing would have been quantized.
    assert found.mean > 1e-4


def test_two_bits_are_told_from_four(loaded, text):
    full = loaded.cache(loaded.policy(512, bits=16))
    found = divergence(loaded.model, full, loaded.cache(loaded.policy(512, bits=2)), text[:512])
    assert found.mean > 0.02


@pytest.mark.slow
def test_eight_bits_stay_within_a_thousandth_of_a_nat(loaded, text):
    found = measured(loaded, text, bits=8)
    assert 0 < found.mean <= 0.001
    assert found.top1 >= 0.99


def test_chunks_of_another_size_change_nothing_but_rounding(loaded, text):
    policy = loaded.policy(256, bits=16)
    found = divergence(
        loaded.model,
        loaded.cache(policy),
        loaded.cache(policy),
        text[:640],
        sizes=(PREFILL_CHUNK, 192),
    )
    assert abs(found.mean) < 1e-5
    assert found.top1 > 0.995
