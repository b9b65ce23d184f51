import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time

import pytest

from edgekv.errors import InvalidValue
from edgekv.sessions import Message, SessionInUse, SessionNotFound, Store, StoreUnavailable
from edgekv.sessions.lock import locked_sessions
from edgekv.sessions.search import search


@pytest.fixture
def store(home):
    with Store() as store:
        yield store


def talk(store, session, turns=2):
    for n in range(turns):
        store.append(session, "user", f"question {n}")
        store.append(session, "assistant", f"answer {n}", (1, 2, 300_000 + n), "stop")


def contents(store, session):
    return [m.content for m in store.messages(session)]


def test_what_is_appended_is_read_back_after_reopening(store, home):
    session = store.create("notes", "some-model", {"window": 512, "system": "Be brief."})
    talk(store, session.id)
    with Store() as again:
        found = again.get("notes")
        assert found.id == session.id
        assert (found.model, found.settings) == (
            "some-model",
            {"window": 512, "system": "Be brief."},
        )
        assert found.n_messages == 4
        assert again.messages(session.id)[3] == Message(
            3, "assistant", "answer 1", (1, 2, 300_001), "stop"
        )


def test_files_are_for_their_owner_alone(store, home):
    talk(store, store.create().id)
    store.lock(store.last().id).release()
    for path in [home / "data", *(home / "data").rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("text", ["", "\0", "👩‍🚀 ünï", "a\ud800b", "x" * 1_000_000])
def test_any_text_comes_back_as_it_was(store, text):
    session = store.create(model=text and "m").id
    store.append(session, "user", text)
    store.set_draft(session, text)
    assert contents(store, session) == [text]
    assert store.get(session).draft == text


def test_names_are_unique_printable_and_suggested(store):
    first = store.create("a")
    with pytest.raises(InvalidValue, match="already"):
        store.create("a")
    for bad in ("", " ", "a\nb", "x" * 201):
        with pytest.raises(InvalidValue):
            store.create(bad)
    other = store.create()
    with pytest.raises(InvalidValue, match="already"):
        store.rename(other.id, "a")
    assert store.rename(first.id, "a").name == "a"
    assert store.rename(other.id, "b").name == "b"
    with pytest.raises(SessionNotFound):
        store.rename("0" * 32, "c")


def test_the_last_session_is_the_one_used_last_whatever_the_clock_says(store, monkeypatch):
    first, second = store.create("first"), store.create("second")
    monkeypatch.setattr(time, "time", lambda: 1.0)
    store.append(first.id, "user", "hi")
    assert store.last().id == first.id
    assert [s.name for s in store.sessions()] == ["first", "second"]
    assert second.used < store.get("first").used


def test_a_branch_has_the_turns_before_it_and_goes_its_own_way(store):
    session = store.create("main", "m", {"window": 9})
    talk(store, session.id, 3)
    branch = store.branch(session.id, 3, "other")
    assert (branch.parent, branch.settings, branch.model) == (session.id, {"window": 9}, "m")
    assert contents(store, branch.id) == ["question 0", "answer 0", "question 1"]
    store.append(branch.id, "assistant", "another answer")
    assert contents(store, session.id)[3] == "answer 1"
    assert store.branch(session.id).n_messages == 6
    for outside in (-1, 7):
        with pytest.raises(InvalidValue, match=f"0 to 6, got {outside}"):
            store.branch(session.id, outside)


def test_truncating_takes_back_turns_and_the_next_takes_their_place(store):
    session = store.create().id
    talk(store, session, 3)
    assert store.truncate(session, 4) == 2
    assert store.append(session, "user", "again").position == 4
    assert contents(store, session)[-2:] == ["answer 1", "again"]


def test_a_deleted_session_can_be_brought_back_until_it_is_purged(store):
    session = store.create("a")
    talk(store, session.id)
    store.delete(session.id)
    assert store.sessions() == []
    assert store.last() is None
    with pytest.raises(SessionNotFound):
        store.get("a")
    assert [s.id for s in store.sessions(deleted=True)] == [session.id]
    store.create("a")
    assert store.undelete(session.id).name == f"a {session.id[:8]}"
    assert store.get(session.id).n_messages == 4
    store.purge(session.id)
    with pytest.raises(SessionNotFound):
        store.get(session.id)


def test_purged_text_is_in_no_file(store, home):
    session = store.create()
    store.append(session.id, "user", "the secret of Ys")
    store.purge(session.id)
    for path in (home / "data").rglob("*"):
        assert path.is_dir() or b"secret of Ys" not in path.read_bytes(), path


def test_search_looks_through_every_session_whatever_the_case(store):
    for name in ("a", "b"):
        session = store.create(name).id
        store.append(session, "user", "x" * 500 + f" Where is the ÉCOLE of {name}? " + "y" * 500)
        store.append(session, "assistant", "Nowhere.")
    hits = search(store, "école")
    assert [(h.session.name, h.position, h.role) for h in hits] == [
        ("b", 0, "user"),
        ("a", 0, "user"),
    ]
    assert "ÉCOLE of b" in hits[0].excerpt
    assert len(hits[0].excerpt) < 200
    store.delete(store.get("b").id)
    assert [h.session.name for h in search(store, "école")] == ["a"]
    assert search(store, "") == search(store, "école ")[1:] == []
    assert len(search(store, "e", limit=1)) == 1


def test_drafts_pins_and_settings_are_kept(store):
    session = store.create().id
    store.set_draft(session, "half a sen")
    store.pin(session)
    store.configure(session, "m2", {"temp": 0.5})
    found = store.get(session)
    assert (found.draft, found.pinned, found.model) == ("half a sen", True, "m2")
    assert found.settings == {"temp": 0.5}
    store.pin(session, False)
    assert not store.get(session).pinned


def test_a_reply_cut_by_a_kill_is_kept_and_marked(store, home):
    session = store.create("a").id
    code = f"""
import time
from edgekv.sessions import Store
store = Store()
store.append({session!r}, "user", "hi")
reply = store.append({session!r}, "assistant", "Hel", partial=True)
store.revise({session!r}, reply.position, "Hello wor", (7, 8), partial=True)
print("ready", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        os.kill(child.pid, signal.SIGKILL)
    assert store.messages(session)[1] == Message(1, "assistant", "Hello wor", (7, 8), None, True)


def test_a_second_process_is_told_that_the_session_is_open_and_how_to_go_on(store):
    session = store.create("busy")
    code = f"""
import time
from edgekv.sessions import Store
lock = Store().lock({session.id!r})
print("ready", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        with pytest.raises(SessionInUse, match=r"'busy' is open in another edgekv.*branch"):
            store.lock(session.id)
        assert store.branch(session.id).parent == session.id
        os.kill(child.pid, signal.SIGKILL)
    store.lock(session.id).release()


def test_a_look_at_the_locks_keeps_nobody_out(store):
    session = store.create("a").id
    store.lock(session).release()
    done = threading.Event()

    def look():
        while not done.is_set():
            locked_sessions(store.folder / "locks")

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(300):
            store.lock(session).release()
    finally:
        done.set()
        looker.join()


def test_a_store_of_a_newer_format_is_refused_and_left_alone(store, home):
    path = home / "data" / "edgekv.db"
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version=99")
        db.execute("UPDATE facts SET value = ? WHERE name = 'format'", (b"99",))
    db.close()
    with pytest.raises(StoreUnavailable, match="upgrade edgekv"):
        Store()


def test_a_store_that_cannot_be_made_says_so_in_one_line(home):
    home.parent.mkdir(exist_ok=True)
    home.write_text("a file, not a folder")
    with pytest.raises(StoreUnavailable, match="edgekv-home.data: Not a directory"):
        Store()


def test_a_read_only_store_is_read(store, home):
    session = store.create("a").id
    store.append(session, "user", "hi")
    store.close()
    before = sorted((home / "data").rglob("*"))
    with Store(read_only=True) as again:
        assert not again.writable
        assert contents(again, session) == ["hi"]
        with pytest.raises(StoreUnavailable, match="readonly"):
            again.append(session, "user", "more")
    assert sorted((home / "data").rglob("*")) == before
