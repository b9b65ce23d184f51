"""The second copy of each transcript: what it outlives, and what it costs."""

from hypothesis import given, settings
from hypothesis import strategies as st

from edgekv.sessions import Message, Session, Store
from edgekv.sessions.check import verify
from edgekv.sessions.mirror import PART, Mirror
from edgekv.sessions.seal import Clear
from tests.sessions.test_upkeep import damages


def test_a_transcript_outlives_any_damage_to_the_database(tmp_path):
    folder = tmp_path / "data"
    with Store(folder) as store:
        session = store.create("a", "m").id
        for n in range(30):
            store.append(session, "user", f"question {n} " * 20)
            store.append(session, "assistant", f"answer {n} " * 20, range(20), "stop")
        expected = store.messages(session)
    path = folder / "edgekv.db"
    whole = path.read_bytes()
    for name, content in damages(path):
        path.write_bytes(content)
        with Store(folder) as store:
            assert [one.name for one in store.sessions()] == ["a"], name
            assert store.messages(session) == expected, name
            store.append(session, "user", "and now?")
            store.truncate(session, len(expected))
        for leftover in folder.glob("edgekv.db*"):
            leftover.unlink()
        path.write_bytes(whole)


def test_a_transcript_outlives_damage_to_the_log_of_a_killed_process(tmp_path):
    folder, logs = tmp_path / "data", []
    with Store(folder) as store:
        session = store.create("a", "m").id
        store.append(session, "user", "hi")
        store.append(session, "assistant", "hello", (1, 2), "stop")
        expected = store.messages(session)
        kept = {path.name: path.read_bytes() for path in folder.glob("edgekv.db*")}
        logs = list(damages(folder / "edgekv.db-wal"))
    for name, content in logs:
        for leftover in folder.glob("edgekv.db*"):
            leftover.unlink()
        for file, whole in kept.items():
            if not file.endswith("-shm"):
                (folder / file).write_bytes(whole)
        (folder / "edgekv.db-wal").write_bytes(content)
        with Store(folder) as store:
            assert store.messages(session) == expected, name


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "cut", "revise"]), st.integers(0, 100))))
def test_a_copy_says_what_was_written_last(tmp_path_factory, steps):
    mirror = Mirror(tmp_path_factory.mktemp("copies"), Clear())
    said: list[Message] = []
    for used, (step, n) in enumerate(steps):
        if step == "add":
            said += [Message(len(said) + i, "user", f"{used}", (n,)) for i in range(n)]
        elif step == "cut":
            del said[n:]
        elif n < len(said):
            said[n] = Message(n, "user", f"revised {used}")
        session = Session("a" * 32, "a", "m", {}, 0, 0, used, n_messages=len(said))
        mirror.write(session, said)
        assert mirror.read(session.id) == (session, said)
        files = list(mirror._folder.iterdir())
        assert len(files) == 1 + len(said) // PART


def test_a_damaged_copy_is_no_loss_while_the_database_is_whole(store, session):
    expected = store.messages(session)
    (path,) = (store.folder / "transcripts").iterdir()
    for _, content in list(damages(path)):
        path.write_bytes(content)
        with Store(store.folder) as again:
            assert again.messages(session) == expected


def test_verify_makes_a_damaged_copy_again(store, files):
    session = store.create("a", messages=[Message(n, "user", f"{n}") for n in range(2 * PART + 1)])
    expected = store.messages(session.id)
    for path in sorted((store.folder / "transcripts").iterdir()):
        path.write_bytes(b"0")
        assert verify(store, files).damaged == ["the copy of session 'a' was damaged: made again"]
        assert verify(store, files).damaged == []
    store.close()
    for path in store.folder.glob("edgekv.db*"):
        path.unlink()
    with Store(store.folder) as again:
        assert again.messages(session.id) == expected


def test_what_is_whole_of_a_damaged_copy_is_restored(store):
    said = [Message(n, "user", f"{n}") for n in range(3 * PART + 5)]
    session = store.create("a", messages=said).id
    part = next((store.folder / "transcripts").glob("*.1.part"))
    part.write_bytes(part.read_bytes()[:-1])
    store.close()
    for path in store.folder.glob("edgekv.db*"):
        path.unlink()
    with Store(store.folder) as again:
        assert (
            again.notes[0]
            == f"session 'a' was damaged: all but {PART} messages restored from its copy"
        )
        found = [one.content for one in again.messages(session)]
        assert found == [f"{n}" for n in range(len(said)) if n // PART != 1]
        again.append(session, "user", "and now?")
    with Store(store.folder) as again:
        assert again.notes == []
        assert again.messages(session)[-1].content == "and now?"


def test_a_purged_session_does_not_come_back(store, session):
    store.purge(session)
    with Store(store.folder) as again:
        assert again.sessions() == []
    assert not list((store.folder / "transcripts").iterdir())


def test_a_turn_behind_a_thousand_others_writes_as_little(store):
    said = [Message(n, "user", f"some words {n} " * 100, range(300)) for n in range(2000)]
    session = store.create("long", messages=said).id
    for n in range(PART):
        there = set((store.folder / "transcripts").iterdir())
        store.append(session, "user", "And then? " * 20)
        store.append(session, "assistant", "some words " * 100, range(300), "stop")
        written = set((store.folder / "transcripts").iterdir()) - there
        assert sum(path.stat().st_size for path in written) < 250_000, n
        assert len(written) <= 2
