"""Several replies at once: each as if alone, and no fault of one another's."""

import threading
from dataclasses import replace

import pytest

from edgekv.engine import Engine, Finished, Limits, Prefilled, Reply, Request, Text
from edgekv.errors import DoesNotFit
from edgekv.grammar import Grammar
from edgekv.sampling import Sampling

pytestmark = pytest.mark.model

PROMPTS = ("One, two, three,", "The capital of France is", "Once upon a time", "A, B, C,")


@pytest.fixture(scope="module")
def engine(default_model):
    with Engine(default_model) as engine:
        yield engine


def request(engine, text, max_tokens=12, window=256, **options):
    tokens = tuple(engine.loaded.tokenizer.encode(text))
    policy = engine.loaded.shape.policy(window=window)
    return Request(tokens, policy, options.pop("sampling", Sampling()), max_tokens, **options)


def text(reply):
    return "".join(event.text for event in reply if isinstance(event, Text))


def test_replies_beside_others_are_what_they_are_alone(engine):
    requests = [request(engine, prompt, 12) for prompt in PROMPTS]
    requests[1] = replace(requests[1], policy=engine.loaded.shape.policy(window=64, n_sink=8))
    requests[2] = request(engine, "word " * 100 + PROMPTS[2], 6)
    requests[3] = request(engine, PROMPTS[3], 12, sampling=Sampling(temp=1.0, seed=5))
    alone = [text(engine.submit(one)) for one in requests]
    together = [engine.submit(one) for one in requests]
    assert [text(reply) for reply in together] == alone


def test_replies_join_and_leave_between_tokens(engine):
    long = engine.submit(request(engine, PROMPTS[2], 40))
    events = iter(long)
    next(event for event in events if isinstance(event, Text))
    short = list(engine.submit(request(engine, PROMPTS[0], 2)))
    assert isinstance(short[-1], Finished)
    rest = list(events)
    assert len(rest) > 5 and rest[-1].completion_tokens == 40


class Noted(Reply):
    """A reply that notes its events, in order with others'."""

    def __init__(self, order):
        super().__init__()
        self._order = order

    def put(self, event):
        self._order.append((self, event))
        super().put(event)


def test_a_long_prompt_is_read_between_the_tokens_of_others(engine):
    order = []
    running, beside = Noted(order), Noted(order)
    engine.submit(request(engine, PROMPTS[2], 300), running)
    next(event for event in running if isinstance(event, Text))
    engine.submit(request(engine, "plum " * 250, 1), beside)
    list(beside)
    running.cancel()
    list(running)
    pieces = [at for at, (reply, e) in enumerate(order) if reply is beside]
    pieces = [at for at in pieces if isinstance(order[at][1], Prefilled)]
    assert len(pieces) >= 2
    for first, last in zip(pieces, pieces[1:], strict=False):
        written = [e for reply, e in order[first:last] if reply is running]
        assert len(written) >= 3, "the running reply waited for a whole piece"


def test_a_prompt_given_up_in_the_middle_of_a_piece_leaves_nothing_wrong(engine):
    running = engine.submit(request(engine, PROMPTS[2], 300))
    next(event for event in running if isinstance(event, Text))
    asked = request(engine, "cherry " * 200, 4)
    given_up = engine.submit(asked)
    for event in running:
        if isinstance(event, Text):
            break
    given_up.cancel()
    assert list(given_up)[-1].reason == "cancelled"
    running.cancel()
    list(running)
    first = text(engine.submit(asked))
    assert first == text(engine.submit(replace(asked, stops=("never",))))


def test_requests_wait_while_the_budget_is_held_and_a_hopeless_one_is_refused(engine):
    size = engine.loaded.shape.policy(window=256).nbytes
    engine.limit(Limits(running=4, kv_bytes=2 * size))
    replies = [engine.submit(request(engine, prompt, 8)) for prompt in PROMPTS]
    most = 0
    stop = threading.Event()

    def watch():
        nonlocal most
        while not stop.wait(0.002):
            most = max(most, engine.load.kv_bytes)

    watcher = threading.Thread(target=watch)
    watcher.start()
    texts = [text(reply) for reply in replies]
    with pytest.raises(DoesNotFit, match="all requests"):
        list(engine.submit(request(engine, "hi", window=4096)))
    stop.set()
    watcher.join()
    engine.limit(Limits())
    assert all(texts)
    assert 0 < most <= 2 * size
    assert engine.load.kv_bytes == 0


def test_a_reply_that_fails_leaves_the_others_alone(engine):
    class Bad(Reply):
        def put(self, event):
            if isinstance(event, Text):
                raise RuntimeError("the client's own fault")
            super().put(event)

    good = engine.submit(request(engine, PROMPTS[0], 8))
    bad = engine.submit(request(engine, PROMPTS[1], 8), Bad())
    assert "four" in text(good)
    with pytest.raises(RuntimeError, match="own fault"):
        list(bad)
    assert "four" in text(engine.submit(request(engine, PROMPTS[0], 8)))


def test_a_waiting_reply_is_cancelled_without_having_begun(engine):
    running = [engine.submit(request(engine, prompt, 30)) for prompt in PROMPTS]
    waiting = engine.submit(request(engine, "hi", 5))
    waiting.cancel()
    (end,) = waiting
    assert (end.reason, end.completion_tokens) == ("cancelled", 0)
    for reply in running:
        reply.cancel()
        assert list(reply)[-1].reason in ("cancelled", "length")


def test_a_grammar_beside_plain_replies(engine):
    schema = {"enum": ["red", "green"]}
    form = engine.submit(request(engine, PROMPTS[1], grammar=Grammar.json(schema)))
    plain = engine.submit(request(engine, PROMPTS[0], 8))
    assert text(form) in ('"red"', '"green"')
    assert "four" in text(plain)


def test_the_next_turn_computes_its_new_tokens_alone(engine):
    first = request(engine, "A conversation about plums. " * 20, 20)
    events = list(engine.submit(first))
    said = engine.loaded.tokenizer.encode("".join(e.text for e in events if isinstance(e, Text)))
    turn = replace(first, prompt=(*first.prompt, *said, *engine.loaded.tokenizer.encode(" Go on")))
    end = list(engine.submit(turn))[-1]
    assert end.cached_tokens >= len(first.prompt) // 64 * 64
