import threading
import time

import pytest

from edgekv.engine import Engine, Finished, Prefilled, Request, Text
from edgekv.errors import DamagedFile, DoesNotFit
from edgekv.sampling import Sampling
from edgekv.sessions.reuse import Reuse

pytestmark = pytest.mark.model

GREEDY = Sampling(temp=0)


@pytest.fixture(scope="module")
def engine(default_model):
    with Engine(default_model) as engine:
        yield engine


def request(engine, text, max_tokens=8, **options):
    tokens = tuple(engine.loaded.tokenizer.encode(text))
    policy = engine.loaded.shape.policy(window=options.pop("window", 256))
    return Request(tokens, policy, options.pop("sampling", GREEDY), max_tokens, **options)


def test_events_are_progress_then_text_then_the_end(engine):
    events = list(engine.submit(request(engine, "Once upon a time", max_tokens=5)))
    kinds = [type(event) for event in events]
    assert kinds[0] is Prefilled
    assert kinds[-1] is Finished
    assert set(kinds[1:-1]) == {Text}
    assert events[-1].reason == "length"
    assert events[-1].completion_tokens == 5


def test_two_requests_get_their_own_answers_in_turn(engine):
    first = engine.submit(request(engine, "One, two, three,", max_tokens=6))
    second = engine.submit(request(engine, "A, B, C,", max_tokens=6))
    texts = ["".join(e.text for e in r if isinstance(e, Text)) for r in (second, first)]
    assert "four" in texts[1]
    assert "four" not in texts[0]


def test_cancel_ends_a_reply_within_a_token_or_two(engine):
    reply = engine.submit(request(engine, "Once upon a time", max_tokens=500))
    seen = 0
    for event in reply:
        if isinstance(event, Text):
            seen += 1
            if seen == 3:
                reply.cancel()
    assert event.reason == "cancelled"
    assert event.completion_tokens <= 8


def test_cancel_is_seen_between_chunks_of_a_prompt(engine):
    reply = engine.submit(request(engine, "word " * 3000, max_tokens=5))
    events = []
    for event in reply:
        reply.cancel()
        events.append(event)
    assert events[-1].reason == "cancelled"
    assert events[-1].completion_tokens == 0
    assert len(events) <= 3


def test_a_failed_request_raises_for_its_caller_and_the_engine_goes_on(engine):
    with pytest.raises(DoesNotFit):
        list(engine.submit(request(engine, "hi", window=10**8)))
    assert list(engine.submit(request(engine, "hi", max_tokens=1)))[-1].completion_tokens == 1


def test_the_first_tokens_time_counts_from_the_request(engine, monkeypatch):
    begin = Reuse.begin

    def slow(*args):
        time.sleep(0.5)
        return begin(*args)

    monkeypatch.setattr(Reuse, "begin", slow)
    end = list(engine.submit(request(engine, "hi", max_tokens=1)))[-1]
    assert end.ttft_s >= 0.5 + end.prefill_s


def test_bytes_are_the_bound_at_the_peak_and_at_the_end(engine):
    long = request(engine, "word " * 700, max_tokens=70, window=200)
    end = list(engine.submit(long))[-1]
    assert end.kv_bytes == end.kv_peak_bytes == long.policy.nbytes
    assert end.evicted_tokens > 400


def test_a_repetition_penalty_changes_a_repeating_answer(engine):
    def text(penalty):
        sampling = Sampling(temp=0, repetition_penalty=penalty)
        events = engine.submit(request(engine, "go go go go", 8, sampling=sampling))
        return "".join(e.text for e in events if isinstance(e, Text))

    assert text(1.0) != text(1.8)


def test_closing_stops_the_reply_under_way_and_ends_the_thread(default_model):
    engine = Engine(default_model)
    engine.start()
    reply = engine.submit(request(engine, "Once upon a time", max_tokens=10_000))
    for event in reply:
        if isinstance(event, Text):
            break
    threads = threading.active_count()
    engine.close()
    assert list(reply)[-1].reason == "cancelled"
    assert threading.active_count() == threads - 1


def test_a_model_that_cannot_be_loaded_raises_and_leaves_no_thread(tmp_path):
    path = tmp_path / "zero.gguf"
    path.touch()
    threads = threading.active_count()
    with pytest.raises(DamagedFile):
        Engine(path).start()
    assert threading.active_count() == threads
