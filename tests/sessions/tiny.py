"""A tiny random model, and conversations with it that remember every score."""

import importlib

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten

from edgekv.generate import forward, prefill
from edgekv.models.load import build
from edgekv.models.rope import make_rope
from edgekv.models.shape import ModelShape
from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.reuse import Reuse

CONFIG = {
    "model_type": "llama",
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "intermediate_size": 80,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 301,
    "rms_norm_eps": 1e-3,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
SHAPE = ModelShape.from_config(CONFIG)


def weights(seed=1):
    family = importlib.import_module("edgekv.models.llama")
    model = family.Model(family.ModelArgs.from_config(CONFIG))
    rng = np.random.default_rng(seed)
    return {
        name: mx.array((rng.standard_normal(a.shape) * 0.2 + ("norm" in name)).astype(np.float32))
        for name, a in tree_flatten(model.parameters())
    }


def words(n, seed=0):
    return [int(t) for t in np.random.default_rng(seed).integers(0, 301, n)]


class Talker:
    """A model with what it has kept, as the engine holds them."""

    def __init__(self, store=None, model="one", **options):
        self.notices = []
        self.model = build(CONFIG, weights())
        files = None if store is None else BlockFiles(store, options.pop("quota", 10**9))
        rope = make_rope(CONFIG, SHAPE.head_dim)
        self.reuse = Reuse(model, rope, self.notices.append, files, **options)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.reuse.close()

    def turn(self, prompt, policy, session=None, n=4):
        """Answer with n greedy tokens. Keeps the `scores`, `cached`, and all `tokens`."""
        sequence = self.reuse.begin(prompt, policy, session)
        self.cached = sequence.cached_tokens
        progress = lambda done, total: self.reuse.keep(sequence)  # noqa: E731
        logits = prefill(self.model, sequence.cache, prompt[self.cached :], progress)
        scores = [np.array(logits)]
        for _ in range(n):
            token = int(np.argmax(scores[-1]))
            sequence.tokens.append(token)
            hidden = forward(self.model, sequence.cache, mx.array([token]))
            scores.append(np.array(self.model.logits(hidden)[0]))
            self.reuse.keep(sequence)
        self.tokens = list(sequence.tokens)
        self.reuse.end(sequence)
        self.scores = np.stack(scores)
        return self.scores
