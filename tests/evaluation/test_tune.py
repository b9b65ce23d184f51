import itertools

import numpy as np
import pytest

from edgekv.cache.policy import CachePolicy, LayerPolicy
from edgekv.errors import DoesNotFit, InvalidValue
from edgekv.evaluation.checkpoint import Checkpoint
from edgekv.evaluation.divergence import Divergence, compare, reference_policy
from edgekv.evaluation.tune import (
    CHOICES,
    PROBES,
    Side,
    cost,
    divide,
    mean_bits_of,
    sensitivities,
    sides,
)
from edgekv.evaluation.walk import Watch
from edgekv.generate import Cancelled


def total(costs, bits):
    return sum(
        cost(costs[i, side], PROBES[side], pair[side])
        for i, pair in enumerate(bits)
        for side in (0, 1)
    )


@pytest.mark.parametrize("mean_bits", [2, 2.5, 3, 3.25, 4, 5])
def test_no_division_within_the_budget_is_much_better(mean_bits):
    costs = np.random.default_rng(3).exponential(size=(3, 2)).astype(np.float32)
    found = divide(costs, mean_bits)
    assert sum(map(sum, found)) <= mean_bits * 6
    every = itertools.product(itertools.product(CHOICES, CHOICES), repeat=3)
    best = min(total(costs, bits) for bits in every if sum(map(sum, bits)) <= mean_bits * 6)
    assert total(costs, found) <= 1.1 * best


def test_bits_go_where_they_help():
    costs = np.array([[1.0, 0.0], [0.01, 0.01]], dtype=np.float32)
    assert divide(costs, 3.5) == [(8, 2), (2, 2)]
    # Sides that cost nothing, or less by rounding, get what is left and are no fault.
    assert divide(np.full((2, 2), -1e-9, np.float32), 8) == [(8, 8), (8, 8)]
    with pytest.raises(InvalidValue, match=r"1\.5 bits in the mean are below the fewest, 2"):
        divide(costs, 1.5)


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
    for layer, side in np.ndindex(2, 2):
        probe = Side(layer, side).probe(wide)
        changed = [(x.k_bits, x.v_bits) != (16, 16) for x in probe.layers]
        assert changed == [i == layer for i in range(2)]
        pair = [tiny.cache(p) for p in (wide, probe)]
        alone = Divergence(tiny.walk_on(pair, tokens, compare, skip=200))
        assert found[layer, side] == pytest.approx(alone.mean, rel=1e-3, abs=1e-7)
    assert len(sides(2)) == 4
