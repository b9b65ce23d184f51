import gc
from dataclasses import replace

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from edgekv import catalog
from edgekv.cache.policy import BITS
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.cli.models import entry_shape
from edgekv.errors import DoesNotFit
from edgekv.metal.device import has_metal
from edgekv.models.load import count_weights
from edgekv.models.memory import loaded_nbytes
from edgekv.models.shape import ModelShape
from edgekv.plan import WINDOWS, Subject, advise, by_bits, full_cache_nbytes, windows
from tests.cache.naive import FREQUENCIES
from tests.models.test_reference import FAMILIES

MODELS = catalog.builtin()


def subject(alias="smollm2-135m", **changes):
    entry = MODELS[alias]
    shape = entry_shape(entry)
    found = Subject(alias, entry.architecture, shape, entry.weight_bytes, entry.weight_bytes)
    return replace(found, **changes)


@pytest.mark.parametrize("alias", MODELS)
def test_planned_bytes_are_those_of_the_arrays_of_every_model(alias):
    shape = entry_shape(MODELS[alias])
    planned = {row["window"]: row["bytes"] for row in windows(subject(alias), None)}
    assert set(planned) == set(WINDOWS)
    for window in WINDOWS:
        policies = by_bits(shape, window)
        assert set(policies) == set(planned[window]) == set(BITS)
        for bits, policy in policies.items():
            # Arrays are lazy: their sizes are known and nothing is allocated.
            assert SequenceCache(policy, Rope(FREQUENCIES)).nbytes == planned[window][bits]


@pytest.mark.parametrize("bits", BITS)
def test_planned_bytes_are_what_mlx_then_holds(bits):
    policy = entry_shape(MODELS["smollm2-135m"]).policy(1024, k_bits=bits, v_bits=bits)
    gc.collect()
    before = mx.get_active_memory()
    cache = SequenceCache(policy, Rope(FREQUENCIES))
    blocks = [cache.pool.read(layer, range(policy.max_blocks)) for layer in range(30)]
    mx.eval(cache.arrays(), blocks)
    held = mx.get_active_memory() - before
    # MLX allocates whole pages for each of the seven arrays of a layer.
    assert policy.nbytes <= held <= policy.nbytes + 30 * 7 * 4096


def test_an_fp16_cache_of_everything_is_two_bytes_a_number():
    shape = entry_shape(MODELS["smollm2-135m"])
    assert full_cache_nbytes(shape, 1000) == 1000 * 30 * 3 * 64 * 2 * 2


def test_bits_that_a_head_cannot_be_cut_into_are_left_out():
    assert list(by_bits(ModelShape(2, 4, 4, 80, 2048), 512)) == [16]


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_counted_as_mlx_lm_makes_them(name):
    config, module = FAMILIES[name].config, FAMILIES[name].module
    theirs = module.Model(module.ModelArgs.from_dict(config))
    assert count_weights(config) == sum(x.size for _, x in tree_flatten(theirs.parameters()))


def test_loaded_weights_are_what_they_turn_out_to_be():
    n = 1_000_000
    assert loaded_nbytes(n, n * 9 // 16, None, metal=True) == n * 9 // 16
    assert loaded_nbytes(n, 2 * n, 64 * n, metal=False) == 4 * n
    assert loaded_nbytes(n, n * 9 // 16, 64 * n, metal=False) == 4 * n
    assert loaded_nbytes(n, n * 9 // 16, 7 * n, metal=False) == n * 9 // 16


@pytest.mark.model
@pytest.mark.skipif(has_metal(), reason="with Metal, weights stay packed")
def test_the_default_model_loads_into_the_bytes_planned(default_model):
    from tests.quality.measure import load

    model, entry = load(default_model).model, MODELS["smollm2-135m"]
    planned = loaded_nbytes(entry.parameters, entry.weight_bytes, None, metal=False)
    assert sum(array.nbytes for array in model.arrays()) == planned


def test_advice_is_four_bits_and_a_window_that_never_grows():
    advice = advise(subject(), 10**10)
    assert advice.policy == subject().shape.policy(4096, 4, 4, 4)
    whole = subject().shape.policy(8192)
    assert f"--window 8192: {whole.nbytes:,} bytes" in advice.reasons[-1]


def test_advice_shrinks_the_window_to_what_fits():
    shape = subject().shape
    usable = subject().loaded + shape.policy(1024).nbytes
    advice = advise(subject(), usable)
    assert advice.policy.window == 64 * shape.policy(1024).ring_blocks + 1
    assert "full recall of 8,192 tokens does not fit" in advice.reasons[-1]
    with pytest.raises(DoesNotFit, match="choose a smaller model"):
        advise(subject(), subject().loaded)


def test_advice_keeps_a_windowed_models_own_window_and_no_sinks():
    shape = replace(subject().shape, sliding_window=1024)
    advice = advise(subject(shape=shape), 10**10)
    assert (advice.policy.window, advice.policy.n_sink) == (1024, 0)
    assert "trained with a window of 1,024" in advice.reasons[-1]


def test_advice_raises_the_keys_of_a_family_with_a_key_bias():
    layer = advise(subject("qwen2.5-1.5b"), None).policy.layers[0]
    assert (layer.k_bits, layer.v_bits) == (8, 4)
