"""A product has the threads that other programs leave cores for."""

import subprocess
import sys
import time

import pytest

from edgekv import threads
from edgekv.threads import STAT, Threads, used_by_others


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    now = [0.0]
    monkeypatch.setattr(threads.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("most", "processors", "taken", "number"),
    [
        (2, 2, 0.0, 2),
        (2, 2, 0.2, 2),
        (2, 2, 0.5, 1),
        (2, 2, 1.0, 1),
        (2, 2, 2.0, 1),
        (4, 8, 2.0, 4),
        (4, 8, 6.0, 2),
        (4, 8, 9.0, 1),
    ],
)
def test_others_are_given_way_to_and_followed(clock, most, processors, taken, number):
    used, given = [0.0], []
    one = Threads(given.append, most, processors, lambda: used[0])
    clock[0], used[0] = 1.0, taken
    one.adapt()
    assert one.number == number and given == [number][: number != most]
    clock[0] = 2.0
    one.adapt()
    assert one.number == most


def test_a_look_is_taken_now_and_then_alone(clock):
    looks = []
    one = Threads(lambda number: None, 2, 2, lambda: looks.append(1) or 0.0)
    for step in range(100):
        clock[0] = step / 100
        one.adapt()
    assert len(looks) == 2


def test_nothing_is_set_where_there_is_nothing_to_set(clock):
    one = Threads(None, 2, 2, lambda: pytest.fail("looked"))
    clock[0] = 10.0
    one.adapt()
    assert one.number == 2


def test_the_users_own_number_is_left_alone(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    assert threads.make_threads()._set is None


@pytest.mark.skipif(not STAT.exists(), reason="the counters are Linux's")
def test_the_work_of_another_program_is_seen_and_our_own_is_not():
    code = "import time; end = time.time() + 2\nwhile time.time() < end: pass"
    start = used_by_others()
    with subprocess.Popen([sys.executable, "-c", code]):
        end = time.monotonic() + 1
        while time.monotonic() < end:
            pass
    assert used_by_others() - start > 0.5
