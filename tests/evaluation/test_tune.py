import itertools

import numpy as np
import pytest

from edgekv.cache.bits import with_bits
from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.evaluation.checkpoint import Checkpoint
from edgekv.evaluation.divergence import Divergence, compare, reference_policy
from edgekv.evaluation.tune import (
    CHOICES,
    costs,
    divide,
    mean_bits_of,
    probes,
    sensitivities,
)
from edgekv.evaluation.walk import Watch
from edgekv.generate import Cancelled

GROWTH = np.array([[12, 1, 0.17, 0.001], [8, 1, 0.18, 0.001]], dtype=np.float32)


def total(costs, bits):
    return sum(
        costs[i, side, CHOICES.index(pair[side])] for i, pair in enumerate(bits) for side in (0, 1)
    )


@pytest.mark.parametrize("mean_bits", [2, 2.5, 3, 3.25, 4, 5])
def test_no_division_within_the_budget_is_much_better(mean_bits):
    alone = np.random.default_rng(3).exponential(size=(3, 2)).astype(np.float32)
    found = divide(costs(alone, GROWTH), mean_bits)
    assert sum(map(sum, found)) <= mean_bits * 6
    every = itertools.product(itertools.product(CHOICES, CHOICES), repeat=3)
    fewest = 2 if mean_bits < 2.5 else 3
    assert min(keys for keys, _ in found) >= fewest
    within = (
        bits
        for bits in every
        if sum(map(sum, bits)) <= mean_bits * 6 and min(keys for keys, _ in bits) >= fewest
    )
    best = min(total(costs(alone, GROWTH), bits) for bits in within)
    assert total(costs(alone, GROWTH), found) <= 1.1 * best


def test_bits_go_where_they_help():
    alone = np.array([[1.0, 0.0], [0.001, 0.001]], dtype=np.float32)
    assert divide(costs(alone, GROWTH), 3.75) == [(8, 2), (3, 2)]
    # Sides that cost nothing get what is left and are no fault.
    assert divide(costs(np.zeros((2, 2), np.float32), GROWTH), 8) == [(8, 8), (8, 8)]
    with pytest.raises(InvalidValue, match=r"1\.5 bits in the mean are below the fewest, 2"):
        divide(costs(alone, GROWTH), 1.5)


def test_a_budget_in_bytes_is_met_and_not_wasted():
    policy = CachePolicy(1024, (LayerPolicy(3, 64),) * 30)
    for budget in (policy.nbytes, policy.nbytes - 1_000_000, policy.nbytes + 1_000_000):
        mean = mean_bits_of(policy, budget)
        uniform = {b: CachePolicy(1024, (LayerPolicy(3, 64, b, b),) * 30).nbytes for b in (2, 3, 4)}
        assert uniform[2] + (mean - 2) * (uniform[3] - uniform[2]) == pytest.approx(budget)
    with pytest.raises(DoesNotFit, match="lower --window"):
        mean_bits_of(policy, uniform[2] - 1)


def test_sensitivity_is_the_divergence_of_one_side_alone(tiny, words, tmp_path, monkeypatch):
    monkeypatch.setattr("edgekv.evaluation.tune.GROUP", 3)
    policy, tokens = tiny.policy(64), words[:400]
    place = Checkpoint(tmp_path, "name")
    stops = iter([False, True])
    with pytest.raises(Cancelled):
        watch = Watch(cancelled=lambda: next(stops))
        sensitivities(
            tiny.model, tiny.rope, policy, tokens, place.load([], tiny.rope), watch, place
        )
    walk = place.load([], tiny.rope)
    assert walk.done == 1
    found = sensitivities(tiny.model, tiny.rope, policy, tokens, walk, Watch())
    wide = reference_policy(policy, 400)
    every = probes(2)
    assert len(every) == 2 * 2 + 2 * len(CHOICES)
    measured = []
    for bits in every:
        pair = [tiny.cache(p) for p in (wide, with_bits(wide, bits))]
        measured.append(Divergence(tiny.walk_on(pair, tokens, compare, skip=200)).mean)
    expected = np.maximum(np.array(measured, dtype=np.float32), 1e-12)
    assert every[0] == [(3, 16), (16, 16)] and every[3] == [(16, 16), (16, 3)]
    assert every[4] == [(2, 16)] * 2 and every[-1] == [(16, 8)] * 2
    together = expected[4:].reshape(2, -1)
    assert (np.diff(together[1]) < 0).all()
    np.testing.assert_allclose(found, costs(expected[:4].reshape(2, 2), together), rtol=1e-3)
