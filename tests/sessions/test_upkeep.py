"""Damage, quotas and archives, on the store's own files."""

import json
import os
import resource
import threading
import zipfile
from dataclasses import replace

import numpy as np
import pytest

from edgekv.errors import DamagedFile, InvalidValue
from edgekv.files import sweep_temporary
from edgekv.sessions import Store
from edgekv.sessions.archive import from_archive, to_archive, to_markdown
from edgekv.sessions.blocks import BlockFiles
from edgekv.sessions.check import gc, verify
from edgekv.sessions.entry import Entry
from edgekv.sessions.fingerprint import fingerprint
from edgekv.sessions.records import StoreUnavailable


def entry(n, model=0, size=100, kind="block"):
    key = f"{model:02x}{n:038x}"
    return Entry(key, kind, "0" * 40, (n, model), {"a": np.full(size, n, np.float16)})


def test_an_entry_comes_back_bit_for_bit(store, files, session):
    files.put(session, [entry(1), entry(2, kind="tail")])
    found = files.load(entry(1).key)
    assert (found.tokens, found.base, found.kind) == ((1, 0), "0" * 40, "block")
    np.testing.assert_array_equal(found.arrays["a"], entry(1).arrays["a"])
    assert files.tails("0" * 40) == [(entry(2).key, (2, 0))]
    assert files.load(entry(3).key) is None


def test_the_least_recently_used_go_first_and_pinned_and_open_sessions_stay(store, session):
    files = BlockFiles(store, 8_500_000)
    held, pinned, idle, new = (store.create(name).id for name in ("h", "p", "i", "n"))
    for n, one in enumerate((held, pinned, idle)):
        files.put(one, [entry(n * 100 + i, size=50_000) for i in range(8)])
    store.pin(pinned)
    lock = store.lock(held)
    files.use(idle, [entry(200).key])
    files.put(new, [entry(300 + i, size=50_000) for i in range(14)])
    assert files.nbytes <= 8_500_000
    kept = {key: len(files.held(key)) for key in (held, pinned, idle, new)}
    assert kept[held] == kept[pinned] == 8
    assert kept[new] == 14
    assert 0 < kept[idle] < 8
    assert entry(200).key in files.held(idle)
    with pytest.raises(StoreUnavailable, match="full of pinned"):
        files.put(idle, [entry(400 + i, size=500_000) for i in range(4)])
    assert files.nbytes <= 8_500_000
    lock.release()


def test_a_store_already_over_its_quota_is_brought_under_it_at_start(store, files, session):
    files.put(session, [entry(n, n % 3, 50_000) for n in range(100)])
    small = BlockFiles(store, 9_000_000)
    assert small.nbytes > 9_000_000
    small.enforce()
    assert small.nbytes <= 9_000_000
    assert sum(p.stat().st_size for p in small.folder.rglob("*") if p.is_file()) <= 9_000_000


@pytest.mark.slow
def test_the_quota_holds_with_ten_thousand_blocks_of_three_models(store, session):
    files = BlockFiles(store, 9_000_000)
    for start in range(0, 10_000, 50):
        files.put(session, [entry(n, n % 3, 400) for n in range(start, start + 50)])
        on_disk = sum(p.stat().st_size for p in store.folder.rglob("*") if p.is_file())
        assert on_disk <= 9_000_000, start
    assert len(files.held(session)) > 500


def test_one_session_that_fills_the_quota_gives_up_its_own_oldest(store, session):
    files = BlockFiles(store, 9_000_000)
    lock = store.lock(session)
    for n in range(60):
        files.put(session, [entry(n, size=50_000)])
    assert entry(59).key in files.held(session)
    assert files.nbytes <= 9_000_000
    lock.release()


def test_removing_a_session_removes_the_blocks_nobody_else_uses(store, files, session):
    other = store.create("b").id
    files.put(session, [entry(1), entry(2)])
    files.put(other, [entry(2), entry(3)])
    store.purge(session)
    files.collect()
    assert [path.stem for path in sorted(files.folder.rglob("*.safetensors"))] == [
        entry(2).key,
        entry(3).key,
    ]


def test_gc_purges_deleted_sessions_and_sweeps(store, files, session):
    files.put(session, [entry(1)])
    stale = files.folder / "00" / f"x.safetensors.{2**22 + 5}.tmp"
    stale.write_bytes(b"x")
    store.delete(session)
    assert gc(store, files)["sessions"] == 1
    assert not stale.exists()
    assert not list(files.folder.rglob("*.safetensors"))
    assert store.sessions(deleted=True) == []


def test_a_temporary_file_of_a_living_process_is_left_alone(store, files):
    mine = files.folder / "00" / f"x.safetensors.{os.getpid()}.tmp"
    mine.parent.mkdir(parents=True)
    mine.touch()
    assert sweep_temporary(store.folder) == 0


def test_verify_mends_the_index(store, files, session):
    files.put(session, [entry(n) for n in range(5)])
    files.path(entry(0).key).unlink()
    damaged = files.path(entry(1).key)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    with store.db.transaction() as db:
        db.execute("DELETE FROM entries WHERE key = ?", (entry(2).key,))
        db.execute("DELETE FROM entries WHERE key = ?", (entry(3).key,))
        db.execute("DELETE FROM holds WHERE key = ?", (entry(3).key,))
    found = verify(store, files)
    assert (found.missing, found.adopted, found.orphans, found.files) == (1, 1, 1, 1)
    assert len(found.damaged) == 1
    assert entry(1).key[:12] in found.damaged[0]
    again = verify(store, files)
    assert (again.files, again.damaged, again.missing, again.orphans) == (2, [], 0, 0)


def test_gc_and_verify_beside_a_writer_lose_nothing_that_is_held(store, files, session):
    done = threading.Event()

    def write():
        for n in range(60):
            files.put(session, [entry(n)])
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    with Store(store.folder) as other:
        theirs = BlockFiles(other, 10**9)
        while not done.is_set():
            gc(other, theirs)
            assert verify(other, theirs).damaged == []
    writer.join()
    assert len(files.held(session)) == 60
    assert all(files.load(key) is not None for key in files.held(session))


def test_an_archive_goes_on_in_another_store(store, files, session, tmp_path):
    files.put(session, [entry(1), entry(2, kind="tail")])
    path = tmp_path / "a.edgekv"
    assert to_archive(store, files, store.get(session), path) == 2
    with Store(tmp_path / "other") as other:
        theirs = BlockFiles(other, 10**9)
        new = from_archive(other, theirs, path)
        assert (new.name, new.settings, new.model) == ("a", {"window": 64}, "m")
        assert other.messages(new.id) == store.messages(session)
        assert len(theirs.held(new.id)) == 2
        assert from_archive(other, theirs, path).name == "a (imported)"
        assert from_archive(other, theirs, path).name == "a (imported 2)"
        assert from_archive(other, theirs, path, "mine").name == "mine"


@pytest.mark.parametrize(
    "document",
    [
        "{}",
        "[]",
        "not json",
        json.dumps({"format": 9}),
        json.dumps({"format": 1, "session": {"id": 1}, "messages": []}),
        "[" * 100_000,
    ],
)
def test_what_is_no_archive_is_refused(store, files, tmp_path, document):
    path = tmp_path / "a.edgekv"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("session.json", document)
    with pytest.raises(DamagedFile):
        from_archive(store, files, path)
    path.write_bytes(b"PK nothing")
    with pytest.raises(DamagedFile):
        from_archive(store, files, path)
    with pytest.raises(InvalidValue):
        from_archive(store, files, tmp_path / "none")
    assert store.sessions() == []


def test_an_archive_cannot_write_outside_the_store(store, files, session, tmp_path):
    path = tmp_path / "a.edgekv"
    files.put(session, [entry(1)])
    content = files.path(entry(1).key).read_bytes()
    to_archive(store, files, store.get(session), path)
    with zipfile.ZipFile(path, "a") as archive:
        for key in ("../../../../evil", "x" * 40):
            bad = content.replace(entry(1).key.encode(), key.ljust(40, "/").encode())
            archive.writestr(f"blocks/{key}.safetensors", bad)
    with Store(tmp_path / "other") as other:
        theirs = BlockFiles(other, 10**9)
        assert theirs.held(from_archive(other, theirs, path).id) == [entry(1).key]


def test_markdown_has_the_facts_and_every_message(store, session):
    store.append(session, "assistant", "cut he", partial=True)
    text = to_markdown(store, store.get(session))
    assert text.startswith('---\nsession: "a"\nmodel: "m"\nwindow: 64\n---\n')
    assert "## You\n\nWhat is the capital of France?" in text
    assert "## Reply (cut off)\n\ncut he" in text


def bits(path, every=997):
    """Places in a file to flip a bit at: the first ones, and some over its length."""
    size = path.stat().st_size
    return sorted({*range(0, min(size, 120), 7), *range(0, size, max(1, size // 40)), size - 1})


def damages(path):
    """Ways to damage a file, each a function to its new bytes."""
    whole = path.read_bytes()
    for at in bits(path):
        yield f"bit {at}", whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :]
    for size in (0, 1, len(whole) // 2, len(whole) - 1):
        yield f"cut to {size}", whole[:size]
    for tail in (1, 4096, len(whole) // 2):
        yield f"{tail} zeros", whole[:-tail] + bytes(min(tail, len(whole)))


def test_a_damaged_block_is_never_taken_for_whole(store, files, session):
    files.put(session, [entry(1), entry(2)])
    path = files.path(entry(1).key)
    whole = path.read_bytes()
    swaps = [("another's content", files.path(entry(2).key).read_bytes())]
    swaps += [("another format", whole.replace(b'"format":"1"', b'"format":"2"'))]
    for name, content in [*damages(path), *swaps]:
        path.write_bytes(content)
        assert verify(store, files).damaged, name
        assert not path.exists()
        path.write_bytes(whole)
        with store.db.transaction() as db:
            files._add(db, entry(1), len(whole))
        assert verify(store, files).damaged == [], name


def test_what_was_taken_back_goes_with_its_session(store, session):
    hidden = store.branch(session, None, "a before a change")
    store.delete(hidden.id)
    seen = store.branch(session, None, "b")
    store.purge(session)
    assert [one.id for one in store.sessions()] == [seen.id]
    assert store.sessions(deleted=True) == []
    store.delete(seen.id)
    store.delete(store.branch(seen.id).id)
    assert gc(store, BlockFiles(store, 10**9))["sessions"] == 2
    assert not list((store.folder / "transcripts").iterdir())


def test_a_model_replaced_by_another_of_the_same_size_has_another_fingerprint(store, tmp_path):
    model = tmp_path / "m.gguf"
    model.write_bytes(b"a" * 1000)
    first = fingerprint(model, store)
    assert fingerprint(model, store) == first
    before = model.stat()
    (tmp_path / "n").write_bytes(b"b" * 1000)
    (tmp_path / "n").replace(model)
    os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fingerprint(model, store) != first
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text("a")
    whole = fingerprint(folder, store)
    (folder / "README.md").write_text("b")
    assert fingerprint(folder, store) == whole
    (folder / "chat_template.jinja").write_text("x")
    assert fingerprint(folder, store) != whole


def test_a_turn_writes_little_more_than_its_kv_and_its_text(store, session):
    """As the kernel counts blocks written, in the sizes of the default model."""
    files = BlockFiles(store, 10**9)
    block = {"keys0.0": np.ones(414_720 // 4, np.uint32)}
    tail = {"hot.0": np.ones((30, 2, 3, 100, 64), np.float16)}
    window = [replace(entry(n), arrays=block) for n in range(64)]
    files.put(session, window)
    ratios = []
    for turn in range(4):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_oublock
        new = [replace(entry(64 + 2 * turn + n), arrays=block) for n in range(2)]
        new.append(replace(entry(900 + turn, kind="tail"), arrays=tail))
        store.append(session, "user", "And then? " * 20)
        store.append(session, "assistant", "some words " * 100, range(200), "stop")
        files.put(session, new)
        files.use(session, [one.key for one in [*window, *new]])
        written = 512 * (resource.getrusage(resource.RUSAGE_SELF).ru_oublock - before)
        ratios.append(written / (sum(one.nbytes for one in new) + 1300))
    if not any(ratios):
        pytest.skip("the file system of the temporary folder counts no writes")
    assert 0.9 < min(ratios) <= max(ratios) <= 1.1
