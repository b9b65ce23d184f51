"""Prefill attention in numpy, for machines without Metal.

MLX's CPU backend computes exponentials one by one, 13 ns each, where numpy takes 0.6: 512 queries
of 9 heads over 2,048 keys take it 187 ms, of which they are 125, and this 26 (mlx 0.32.4, numpy
2.4, two cores with AVX-512). The twin in plain operations is in metal/reference.py.
"""

from collections.abc import Callable, Sequence

import mlx.core as mx
import numpy as np

from edgekv.metal.gemm import multiply_into
from edgekv.metal.host import Floats, floats, view
from edgekv.metal.segments import KeysValues, Segment, Span, tiles

HostKeysValues = tuple[Floats, Floats]
HostExpand = Callable[[int, int], HostKeysValues]


def prefill_attention(
    q: mx.array,
    q_slot: mx.array,
    anchors: KeysValues,
    far: HostExpand,
    near: KeysValues,
    spans: Sequence[Span],
) -> mx.array:
    """A chunk of queries over three parts of the keys; arguments and result as its twin's.

    far expands keys into numpy's memory, and may give them as a transposed array.
    """
    mx.eval(q, q_slot, anchors, near)
    queries, slot_queries = floats(q), floats(q_slot)
    found = [_Rows(queries[:, :, span.first : span.last]) for span in spans]
    fixed, recent = ((floats(keys), floats(values)) for keys, values in (anchors, near))
    for span, rows in zip(spans, found, strict=True):
        rows.see(fixed, span.anchors, slot_queries[:, :, span.first : span.last])
    for start, stop in tiles(spans):
        tile = far(start, stop)
        for span, rows in zip(spans, found, strict=True):
            rows.see(tile, span.far and span.far.clip(start, stop))
    for span, rows in zip(spans, found, strict=True):
        rows.see(recent, span.near)
    return mx.array(np.concatenate([rows.result() for rows in found], axis=2)).astype(q.dtype)


class _Rows:
    """The queries of a span, (n_kv_heads, group, n, head_dim), and their attention so far.

    It is kept as the online softmax has it (see metal/merge.py): the largest score, the sum of
    exp(score - largest), and the values weighted by these.
    """

    def __init__(self, q: Floats) -> None:
        self._shape = q.shape
        heads, group, n, dim = q.shape
        self._q = _rows(q)
        self._top = np.full((heads, group * n, 1), -np.inf, np.float32)
        self._total = np.zeros((heads, group * n, 1), np.float32)
        self._out = np.zeros((heads, group * n, dim), np.float32)

    def see(self, part: HostKeysValues, segment: Segment | None, q: Floats | None = None) -> None:
        """Take in a segment of a part of the keys, by other rotations `q` of the same queries."""
        turned = self._q if q is None else _rows(q)
        for piece in [] if segment is None else segment.pieces():
            mask = None if piece.mask is None else view(piece.mask)
            place = slice(piece.start, piece.stop)
            for head, (keys, values) in enumerate(zip(*part, strict=True)):
                scores = np.empty((turned.shape[1], piece.stop - piece.start), np.float32)
                multiply_into(scores, turned[head], keys[place].T)
                if mask is not None:
                    n, masked = mask.shape
                    scores.reshape(-1, n, scores.shape[1])[..., :masked] += mask
                self._weigh(head, scores, values[place])

    def _weigh(self, head: int, scores: Floats, values: Floats) -> None:
        top, total, out = self._top[head], self._total[head], self._out[head]
        new = np.maximum(top, scores.max(axis=-1, keepdims=True))
        share = np.exp(top - new)
        scores -= new
        weights: Floats = np.exp(scores, out=scores)
        total *= share
        total += weights.sum(axis=-1, keepdims=True)
        part = np.empty_like(out)
        multiply_into(part, weights, values)
        out *= share
        out += part
        top[:] = new

    def result(self) -> Floats:
        """The attention of the queries, in their shape."""
        return np.divide(self._out, self._total).reshape(self._shape)


def _rows(q: Floats) -> Floats:
    """(n_kv_heads, group, n, head_dim) as one matrix a head."""
    heads, _, _, dim = q.shape
    return np.ascontiguousarray(q).reshape(heads, -1, dim)
