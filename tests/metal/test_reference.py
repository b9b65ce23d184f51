"""Prefill attention by its definition, in plain operations and on the host.

Decode's is held to it in tests/cache/test_attention.py.
"""

import mlx.core as mx
import numpy as np
import pytest

from edgekv.cache.rope import Rope
from edgekv.metal import host_prefill, reference
from edgekv.metal.merge import MASKED
from edgekv.metal.rotary import rotate
from edgekv.metal.segments import TILE, Segment, Span

HEADS, GROUP, ROWS, DIM = 2, 3, 6, 16


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(0, 1, shape).astype(np.float32)


def by_definition(rows, parts):
    """parts: (queries, keys, values, which rows see which keys) of everything that counts."""
    scores, values = [], []
    for q, k, v, seen in parts:
        s = np.einsum("hgnd,hkd->hgnk", q[:, :, rows].astype(np.float64), k)
        scores.append(np.where(seen, s, -np.inf))
        values.append(v)
    scores, values = np.concatenate(scores, -1), np.concatenate(values, 1)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return np.einsum("hgnk,hkd->hgnd", weights / weights.sum(-1, keepdims=True), values)


def mask(seen):
    return mx.array(np.where(seen, 0, MASKED).astype(np.float32))


def in_plain_operations(q, q_slot, anchors, far, near, spans):
    def expand(start, stop):
        return tuple(mx.array(x[:, start:stop]) for x in far)

    return reference.prefill_attention(q, q_slot, anchors, expand, near, spans)


def on_the_host(q, q_slot, anchors, far, near, spans):
    def expand(start, stop):
        keys, values = (x[:, start:stop].astype(np.float32) for x in far)
        return np.ascontiguousarray(keys.swapaxes(1, 2)).swapaxes(1, 2), values

    return host_prefill.prefill_attention(q, q_slot, anchors, expand, near, spans)


@pytest.fixture(params=[in_plain_operations, on_the_host])
def attend(request):
    def attend(q, q_slot, parts, spans, dtype=mx.float32):
        anchors, near = (tuple(mx.array(x).astype(dtype) for x in parts[which]) for which in (0, 2))
        queries = (mx.array(x).astype(dtype) for x in (q, q_slot))
        return request.param(*queries, anchors, parts[1], near, spans)

    return attend


@pytest.fixture
def queries():
    return draw(HEADS, GROUP, ROWS, DIM), draw(HEADS, GROUP, ROWS, DIM, seed=1)


@pytest.fixture
def parts():
    sizes = (5, 40, 30)
    return [(draw(HEADS, n, DIM, seed=n), draw(HEADS, n, DIM, seed=n + 1)) for n in sizes]


def test_each_span_sees_its_own_segments(queries, parts, attend):
    q, q_slot = queries
    anchors, far, near = parts
    causal = np.tril(np.ones((4, 20), bool), 16)
    spans = [
        Span(0, 2, Segment(0, 5), Segment(10, 30), Segment(3, 9)),
        Span(2, 6, Segment(0, 4), None, Segment(10, 30, mask(causal))),
    ]
    found = attend(q, q_slot, parts, spans)
    first = by_definition(
        slice(0, 2),
        [
            (q_slot, *anchors, True),
            (q, far[0][:, 10:30], far[1][:, 10:30], True),
            (q, near[0][:, 3:9], near[1][:, 3:9], True),
        ],
    )
    second = by_definition(
        slice(2, 6),
        [
            (q_slot, anchors[0][:, :4], anchors[1][:, :4], True),
            (q, near[0][:, 10:30], near[1][:, 10:30], causal),
        ],
    )
    np.testing.assert_allclose(found, np.concatenate([first, second], 2), atol=1e-5)


def test_a_part_may_be_masked_for_some_rows_altogether(queries, parts, attend):
    q, q_slot = queries
    seen = np.zeros((ROWS, 40), bool)
    seen[3:, 7] = True
    spans = [Span(0, ROWS, Segment(0, 5), Segment(0, 40, mask(seen)), None)]
    wanted = by_definition(slice(0, ROWS), [(q_slot, *parts[0], True), (q, *parts[1], seen)])
    np.testing.assert_allclose(attend(q, q_slot, parts, spans), wanted, atol=1e-5)


@pytest.mark.parametrize("n", [TILE - 1, TILE, TILE + 1, 2 * TILE + 70])
def test_keys_beyond_a_tile_count_like_all_others(queries, parts, n, attend):
    q, q_slot = queries
    far = draw(HEADS, n, DIM, seed=8), draw(HEADS, n, DIM, seed=9)
    seen = np.random.default_rng(3).random((ROWS, n)) < 0.5
    spans = [Span(0, ROWS, None, Segment(0, n, mask(seen)), Segment(0, 30))]
    found = attend(q, q_slot, [parts[0], far, parts[2]], spans)
    wanted = by_definition(slice(0, ROWS), [(q, *far, seen), (q, *parts[2], True)])
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_result_has_the_type_of_the_query(queries, parts, attend):
    spans = [Span(0, ROWS, Segment(0, 5), None, Segment(0, 30))]
    found = attend(*queries, parts, spans, mx.float16)
    assert found.dtype == mx.float16
    np.testing.assert_allclose(np.array(found), attend(*queries, parts, spans), atol=2e-2)


def test_a_rotation_turns_each_pair_by_its_angle():
    frequencies = 0.5 ** np.arange(DIM // 2)
    positions = [0, 1, -3, 70]
    x = draw(4, DIM)
    found = np.array(rotate(mx.array(x), Rope(frequencies).for_keys(positions)))
    pairs = x[:, : DIM // 2] + 1j * x[:, DIM // 2 :]
    turned = pairs * np.exp(1j * np.outer(positions, frequencies))
    np.testing.assert_allclose(found, np.concatenate([turned.real, turned.imag], -1), atol=1e-5)


def test_rotations_compose():
    rope = Rope(0.5 ** np.arange(DIM // 2))
    x = mx.array(draw(3, DIM))
    twice = rotate(rotate(x, rope.for_keys([5, 6, 7])), rope.for_keys([-2, 60, 1]))
    once = rotate(x, rope.for_keys([3, 66, 8]))
    np.testing.assert_allclose(np.array(twice), np.array(once), atol=1e-5)
