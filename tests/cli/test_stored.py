import pytest

from edgekv.cli.stored import Stored, stored
from edgekv.config import Config
from edgekv.sessions import Session, SessionInUse, Store
from edgekv.sessions.recording import Recording

PLAIN = {"model": "m", "window": 64, "n_sink": 4, "k_bits": 8, "v_bits": 4, "kv_policy": None}
BY_LAYER = PLAIN | {"kv_policy": "bits.toml"}


@pytest.mark.parametrize(
    ("begun", "given", "expected"),
    [
        (PLAIN, {}, {"k_bits": 8, "v_bits": 4}),
        (PLAIN, {"kv_bits": 2}, {"kv_bits": 2}),
        (PLAIN, {"v_bits": 2}, {"k_bits": 8, "v_bits": 2}),
        (PLAIN, {"kv_policy": "x"}, {"kv_policy": "x"}),
        (BY_LAYER, {}, {"kv_policy": "bits.toml"}),
        (BY_LAYER, {"kv_bits": 3}, {"kv_bits": 3}),
        (BY_LAYER, {"k_bits": 3}, {"k_bits": 3, "v_bits": 4}),
    ],
)
def test_a_session_is_gone_on_with_as_it_began_but_for_what_is_given(begun, given, expected):
    session = Session("0" * 32, "s", "m", begun, 0, 0, 1)
    settings = Stored(None, "s", session, True, list.append).settings(given | {"seed": None})
    assert settings == {"model": "m", "window": 64, "n_sink": 4} | expected


def test_a_session_that_is_made_by_its_first_turn_is_held_as_any_other(home):
    with stored("new", last=False, persist=True) as one:
        assert one.begin("hello", Config()) is not None
        with Store() as store, pytest.raises(SessionInUse, match="open in another edgekv"):
            store.lock(store.get("new").id)
    with Store() as store:
        store.lock(store.get("new").id).release()


def test_of_two_that_begin_a_session_at_once_the_second_is_told_that_it_is_open(home):
    with (
        stored("new", last=False, persist=True) as one,
        stored("new", last=False, persist=True) as two,
        pytest.raises(SessionInUse, match="open in another edgekv"),
    ):
        one.begin("hello", Config())
        two.begin("hello", Config())


def test_a_session_that_vanishes_does_not_end_its_reply(home):
    warnings = []
    with Store() as store:
        recording = Recording(store, store.create("gone").id, warnings.append)
        recording.add("user", "hello")
        store.delete(store.get("gone").id)
        store.purge(store.sessions(deleted=True)[0].id)
        recording.write("some")
        recording.finish((), "stop")
    assert len(warnings) == 1 and "not being saved" in warnings[0]
