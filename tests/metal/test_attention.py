"""Who answers: the kernels where they can and do right, their twins elsewhere."""

import mlx.core as mx
import numpy as np
import pytest

from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.cache.step import make_step
from edgekv.errors import InvalidValue
from edgekv.metal import attention
from tests.cache import naive
from tests.loading.files import write_gguf
from tests.metal.cases import Template, feed, tokens

TEMPLATE = Template(64, 3, 4, 4)
KERNELS = {"edgekv_decode", "edgekv_merge", "edgekv_close"}


def step_once(template=TEMPLATE, window=200):
    """A cache of 200 tokens and one more: closing blocks, and decoding."""
    cache = SequenceCache(CachePolicy(window, (template.layer,)), template.rope)
    feed(cache, template, 200, seed=1)
    feed(cache, template, 1, seed=2)


def test_without_metal_the_twins_answer(host):
    step_once()
    assert attention.choice() == (False, "there is no Metal here", False)
    assert not host.traffic


def test_with_metal_and_a_trial_the_kernels_answer(metal, capfd):
    assert attention.choice() == (True, "they agree with plain operations", False)
    assert set(metal.traffic) == KERNELS
    metal.traffic.clear()
    step_once()
    assert {"edgekv_decode", "edgekv_close"} <= set(metal.traffic)
    assert capfd.readouterr().err == ""


def test_switched_off_they_are_not_even_tried(metal, monkeypatch):
    monkeypatch.setenv("EDGEKV_KERNELS", "off")
    step_once()
    assert attention.choice().reason == "switched off by EDGEKV_KERNELS"
    assert not metal.traffic


def test_switched_on_they_need_no_trial(metal, monkeypatch):
    monkeypatch.setenv("EDGEKV_KERNELS", "on")
    assert attention.choice().kernels
    assert not metal.traffic


@pytest.mark.parametrize(
    ("value", "said"), [("on", "needs Metal"), ("yes", "on or off, got 'yes'")]
)
def test_a_wish_that_cannot_be_met_is_refused(monkeypatch, host, value, said):
    monkeypatch.setenv("EDGEKV_KERNELS", value)
    with pytest.raises(InvalidValue, match=said):
        attention.choice()


def test_a_wrong_wish_is_a_usage_error_before_anything_is_answered(edgekv, tmp_path):
    model = write_gguf(tmp_path / "tiny.gguf")
    result = edgekv("run", "-m", model, "--raw", "hi", env={"EDGEKV_KERNELS": "yes"})
    assert result.returncode == 2 and result.stdout == ""
    assert result.stderr == "edgekv: EDGEKV_KERNELS must be on or off, got 'yes'\n"


@pytest.mark.parametrize("kernel", sorted(KERNELS))
def test_a_gpu_that_answers_with_zeros_is_not_used(metal, monkeypatch, capfd, kernel):
    launch = metal.launch

    def zeros(name, source, buffers, outputs, *geometry):
        results = launch(name, source, buffers, outputs, *geometry)
        return [bytes(size) for size in outputs.values()] if name == kernel else results

    monkeypatch.setattr(metal, "launch", zeros)
    step_once()
    chosen = attention.choice()
    assert not chosen.kernels and chosen.fault
    said = capfd.readouterr().err
    assert said == f"edgekv: the Metal kernels are not used: {chosen.reason}\n"
    metal.traffic.clear()
    step_once()
    assert not metal.traffic and capfd.readouterr().err == ""


def test_a_gpu_that_refuses_is_not_used(metal, monkeypatch, capfd):
    def refuse(*_):
        raise RuntimeError("[metal::Device] Unable to load kernel\nlong compiler output")

    monkeypatch.setattr(metal, "launch", refuse)
    step_once()
    assert attention.choice().reason == "they do not run: [metal::Device] Unable to load kernel"
    assert "Unable to load kernel" in capfd.readouterr().err


def test_nan_does_not_pass_the_trial(metal, monkeypatch, capfd):
    launch = metal.launch

    def nan(name, source, buffers, outputs, *geometry):
        results = launch(name, source, buffers, outputs, *geometry)
        return [b"\xff" * len(results[0])] if name == "edgekv_merge" else results

    monkeypatch.setattr(metal, "launch", nan)
    assert "off by nan" in attention.choice().reason
    assert capfd.readouterr().err


@pytest.mark.parametrize(
    ("template", "window"),
    [
        (Template(32, 3), 200),
        (Template(64, 9), 200),
        (Template(64, 3, 16, 4), 200),
        (Template(64, 3, 4, 16), 200),
        (Template(64, 3), 1),
    ],
    ids=["head_dim", "group", "16-bit keys", "16-bit values", "no blocks"],
)
def test_a_shape_without_a_kernel_has_its_twin(metal, monkeypatch, template, window):
    monkeypatch.setenv("EDGEKV_KERNELS", "on")
    step_once(template, window)
    assert "edgekv_decode" not in metal.traffic


def test_a_sequence_by_kernels_is_the_masked_reference(metal, monkeypatch):
    """The product's own steps, prompt and decoding, with every block closed by the kernel."""
    monkeypatch.setenv("EDGEKV_KERNELS", "on")
    template = Template(64, 2, 4, 4, mx.float32)
    frequencies = template.rope.frequencies
    monkeypatch.setattr(naive, "FREQUENCIES", frequencies)
    policy = CachePolicy(150, (template.layer,), 4, 64)
    given = tokens(template, 330, seed=3)
    wanted = naive.attention(*map(np.array, given), policy)
    cache, found = SequenceCache(policy, Rope(frequencies)), []
    # The last steps cross the end of a block at 4 + 5 * 64 tokens, and close the one before.
    for start, stop in [(0, 200), (200, 318), *((t, t + 1) for t in range(318, 330))]:
        step = make_step(cache, stop - start)
        found.append(np.array(step.attend(0, *(x[start:stop] for x in given))))
    assert {"edgekv_decode", "edgekv_close"} == set(metal.traffic)
    assert np.abs(np.concatenate(found) - wanted).max() < 1e-4
