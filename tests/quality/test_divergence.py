"""What storing keys and values in few bits costs, over prose."""

import numpy as np
import pytest

pytestmark = pytest.mark.model
N = 2048


def measured(loaded, tokens, *bits):
    """Divergences of policies of (key bits, value bits)."""
    policies = [loaded.shape.policy(len(tokens), k_bits=k, v_bits=v) for k, v in bits]
    return loaded.divergences(policies, tokens)


def test_bits_cost_what_they_should(loaded, text):
    sixteen, eight, keys, values = measured(loaded, text[:768], (16, 16), (8, 8), (3, 8), (8, 3))
    assert len(sixteen.kld) == 767
    assert abs(sixteen.mean) < 1e-5 and sixteen.top1 == 1
    assert 1e-6 < eight.mean < 0.001
    assert sixteen.ppl == pytest.approx(eight.ppl_reference, rel=1e-5)
    # The damage of few bits is in the keys.
    assert keys.mean > 2 * values.mean > 2 * eight.mean
    assert keys.p99 > keys.mean


@pytest.mark.slow
def test_divergence_at_2048_tokens(loaded, text):
    limits = {(8, 8): 0.001, (8, 4): 0.003, (4, 4): 0.006, (3, 3): 0.03}
    found = measured(loaded, text[:N], (16, 16), *limits, (2, 2))
    assert abs(found[0].mean) < 1e-5
    for limit, divergence in zip(limits.values(), found[1:], strict=False):
        # Were it zero, nothing would have been quantized.
        assert 1e-6 < divergence.mean <= limit
    assert found[3].top1 >= 0.95
    assert found[-1].mean > 0.03


def test_chunks_of_another_size_change_nothing_but_rounding(loaded, text):
    policy = loaded.policy(256, bits=16)
    whole, pieces = (loaded.nll(loaded.cache(policy), text[:640], size=n) for n in (512, 192))
    assert np.abs(whole - pieces).max() < 0.02
