"""Passkey retrieval: is a number found again that a long text mentions once?

Source: Mohtashami and Jaggi, Landmark Attention, arXiv 2305.16300, section 4.2. A number whose
words have left the window is told apart: a rolling cache does not promise to know it.
"""

import random
from dataclasses import dataclass

import numpy as np

from edgekv.cache.policy import CachePolicy
from edgekv.cache.rope import Rope
from edgekv.cache.sequence import SequenceCache
from edgekv.errors import InvalidValue
from edgekv.evaluation.walk import Keeper, Numbers, Walk, Watch, one_by_one
from edgekv.generate import decode, prefill
from edgekv.models.layers import Decoder
from edgekv.sampling import Sampling, make_sampler
from edgekv.tokenizer import Tokenizer

DEPTHS = (0.1, 0.5, 0.9)
SEEDS = 3
DIGITS = 5
FILLER = (
    "The grass is green. ",
    "The sky is blue. ",
    "The sun is yellow. ",
    "Here we go. ",
    "There and back again. ",
)
BEFORE = "There is a pass key hidden in this text. Find it and remember it. "
FACT = "The pass key is {number}. Remember it. {number} is the pass key. "
QUESTION = "What is the pass key? The pass key is"


@dataclass(frozen=True)
class Hidden:
    """A text with a number in it: token ids, and where the sentence that says it stands."""

    depth: float
    number: str
    tokens: list[int]
    first: int
    last: int

    def evicted(self, policy: CachePolicy) -> bool:
        """Whether the last digit of the answer can no longer attend to all of the sentence."""
        oldest = len(self.tokens) + DIGITS - policy.window
        return oldest > self.first and self.last > policy.n_sink + policy.n_pinned


@dataclass(frozen=True)
class Found:
    """One answer."""

    depth: float
    evicted: bool
    right: bool


def hide(tokenizer: Tokenizer, length: int, depth: float, seed: int) -> Hidden:
    """A text of at most `length` tokens. Raises InvalidValue where that is too short."""
    draw = random.Random(f"{depth} {seed}")
    number = str(draw.randrange(10 ** (DIGITS - 1), 10**DIGITS))
    fact = tokenizer.encode(FACT.format(number=number))
    before = tokenizer.encode(BEFORE, add_special=True)
    after = tokenizer.encode(QUESTION)
    room = length - len(before) - len(fact) - len(after)
    if room < len(FILLER) * 8:
        raise InvalidValue(f"--tokens {length} is too short to hide a fact in: give 128 or more")
    sentences = _filler(tokenizer, room, draw)
    split = round(depth * len(sentences))
    head = before + sum(sentences[:split], [])
    tokens = head + fact + sum(sentences[split:], []) + after
    return Hidden(depth, number, tokens, len(head), len(head) + len(fact))


def _filler(tokenizer: Tokenizer, room: int, draw: random.Random) -> list[list[int]]:
    """Sentences of nothing, of at most so many tokens in all."""
    known = [tokenizer.encode(sentence) for sentence in FILLER]
    sentences: list[list[int]] = []
    while True:
        sentence = draw.choice(known)
        room -= len(sentence)
        if room < 0:
            return sentences
        sentences.append(sentence)


def search(
    model: Decoder,
    rope: Rope,
    policy: CachePolicy,
    tokenizer: Tokenizer,
    length: int,
    walk: Walk,
    watch: Watch,
    keeper: Keeper | None = None,
) -> list[Found]:
    """An answer for each depth and seed, decoded greedily.

    The walk counts answers. Raises Cancelled, with the walk kept.
    """
    texts = [hide(tokenizer, length, depth, seed) for depth in DEPTHS for seed in range(SEEDS)]

    def measure(text: Hidden, watch: Watch) -> Numbers:
        cache = SequenceCache(policy, rope)
        logits = prefill(model, cache, text.tokens, cancelled=watch.cancelled)
        greedy = make_sampler(Sampling(temp=0), seed=0)
        answer = list(decode(model, cache, logits, greedy, None, DIGITS + 3))
        right = tokenizer.decode(answer).strip().startswith(text.number)
        return np.array([[right]], dtype=np.float32)

    right = one_by_one(texts, measure, walk, watch, keeper)[:, 0]
    return [
        Found(text.depth, text.evicted(policy), bool(found))
        for text, found in zip(texts, right, strict=True)
    ]
