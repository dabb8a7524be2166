"""The journal: what was acknowledged survives everything, and what cannot be made durable is refused."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.errors import JournalError
from manager.loop.journal import Entry, Journal
from manager.model.decision import Owned
from manager.model.host import VmInstance
from manager.model.knob_spec import Family, KnobValue, Number
from manager.model.knobs import Knob, KnobKey
from tests.loop.disk import small_disk

TOP = Path(__file__).parents[2]
BOOT = "boot-1"
WEIGHT = KnobKey("u1", Knob.WEIGHT)
PIN = KnobKey("u1", Knob.VCPU_PIN, 3)
EMULATOR = KnobKey("u2", Knob.EMULATOR_PIN)


def entry(original: KnobValue, intended: KnobValue, **flags: bool) -> Entry:
    return Entry(
        VmInstance("u1", "shop web", 4711, 123_456_789_012), "web", Owned(original, original, intended, **flags)
    )


ENTRIES = {
    WEIGHT: entry(1024, 10_000),
    PIN: entry(frozenset({0, 1, 2, 7}), frozenset({5}), external=True),
    EMULATOR: Entry(VmInstance("u2", "ü", 1, 2), "db", Owned(frozenset({0}), frozenset({1}), frozenset({2}))),
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state/journal.db"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    opened = Journal(path, BOOT)
    yield opened
    opened.close()


def reopened(path: Path, boot_id: str = BOOT) -> dict[KnobKey, Entry]:
    with closing(Journal(path, boot_id)) as again:
        return dict(again.entries)


def crashed(path: Path, where: Path) -> Path:
    """The files as a crash at this moment leaves them."""
    shutil.copytree(path.parent, where)
    return where / path.name


def test_a_new_journal_is_empty_and_for_its_owner_alone(journal: Journal, path: Path) -> None:
    assert dict(journal.entries) == {}
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_entries_survive_a_restart(journal: Journal, path: Path) -> None:
    journal.update(ENTRIES)
    assert journal.entries == ENTRIES
    assert reopened(path) == ENTRIES


def test_entries_are_replaced_and_dropped(journal: Journal, path: Path) -> None:
    journal.update(ENTRIES)
    changed = entry(1024, 2)
    journal.update({WEIGHT: changed}, [PIN, KnobKey("never", Knob.WEIGHT)])
    wanted = {WEIGHT: changed, EMULATOR: ENTRIES[EMULATOR]}
    assert journal.entries == wanted == reopened(path)


def test_nothing_to_do_is_no_write(journal: Journal, path: Path) -> None:
    before = (path.parent / "journal.db-wal").stat().st_mtime_ns
    journal.update({})
    journal.update({}, [WEIGHT])
    assert (path.parent / "journal.db-wal").stat().st_mtime_ns == before


def test_entries_cannot_be_changed_but_through_the_journal(journal: Journal) -> None:
    with pytest.raises(TypeError):
        journal.entries[WEIGHT] = ENTRIES[WEIGHT]  # type: ignore[index]
    assert not journal.entries


def test_settled_is_known_until_the_next_start_only(journal: Journal, path: Path) -> None:
    journal.update(ENTRIES)
    journal.settle([WEIGHT, KnobKey("never", Knob.WEIGHT)])
    settled = {key for key, one in journal.entries.items() if one.owned.settled}
    assert settled == {WEIGHT}
    assert reopened(path) == ENTRIES, "after a crash, what was there before the last write must be accepted again"


def test_entries_of_an_earlier_boot_are_gone_for_good(journal: Journal, path: Path) -> None:
    journal.update(ENTRIES)
    journal.close()
    assert reopened(path, "boot-2") == {}
    assert reopened(path, BOOT) == {}


keys = st.sampled_from(
    [KnobKey("u1", knob, index) for knob in Knob if knob.spec.family is not Family.CACHE for index in range(2)]
)
updates = st.tuples(st.dictionaries(keys, st.integers(2, 9)), st.frozensets(keys))


@settings(max_examples=30)
@given(st.lists(updates, max_size=5))
def test_the_file_is_always_what_is_in_memory(history) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.db"
        wanted: dict[KnobKey, Entry] = {}
        with closing(Journal(path, BOOT)) as journal:
            for put, drop in history:
                entries = {
                    key: entry(number, number + 1)
                    if isinstance(key.knob.spec.value, Number)
                    else entry(frozenset({number}), frozenset({number + 1}))
                    for key, number in put.items()
                }
                dropped = drop & wanted.keys()  # what is only put now is not dropped
                wanted = {key: one for key, one in (wanted | entries).items() if key not in dropped}
                journal.update(entries, drop)
                assert journal.entries == wanted
        assert reopened(path) == wanted


KILLED = """
import os, signal, sys
from pathlib import Path
from manager.loop.journal import Entry, Journal
from manager.model.decision import Owned
from manager.model.host import KnobKey, VmInstance
from manager.model.records import Knob
journal = Journal(Path(sys.argv[1]), "boot-1")
for number in range(5):
    entry = Entry(VmInstance("u", "web", 1, 2), "web", Owned(1024, 1024, number))
    journal.update({KnobKey("u", Knob.WEIGHT, number): entry})
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_acknowledged_survives_kill_9(path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", KILLED, str(path)], cwd=TOP, check=False)
    assert ended.returncode == -signal.SIGKILL
    assert [one.owned.intended for one in reopened(path).values()] == [0, 1, 2, 3, 4]


def test_every_write_is_synced(journal: Journal) -> None:
    """A power cut is beyond a test; that SQLite is told to expect one is not."""
    database = journal._file._database
    assert database.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
    assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("cut", [1, 100, 4000])
def test_a_torn_last_write_takes_nothing_else_with_it(journal: Journal, path: Path, tmp_path: Path, cut: int) -> None:
    journal.update({WEIGHT: ENTRIES[WEIGHT]})
    journal.update({PIN: ENTRIES[PIN]})
    copy = crashed(path, tmp_path / "after")
    log = copy.with_name("journal.db-wal")
    log.write_bytes(log.read_bytes()[:-cut])
    assert reopened(copy) == {WEIGHT: ENTRIES[WEIGHT]}, "what was torn was never acknowledged"


def refusal(path: Path) -> str:
    with pytest.raises(JournalError) as caught:
        Journal(path, BOOT)
    return str(caught.value)


def test_an_empty_file_is_a_new_journal(path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    assert reopened(path) == {}


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    path = tmp_path / "file/journal.db"
    assert refusal(path).startswith(f"the journal {path} cannot be used: ")
    (tmp_path / "journal.db").mkdir()
    assert "unable to open database file" in refusal(tmp_path / "journal.db")


@pytest.mark.parametrize(
    "bad", [replace(ENTRIES[PIN], vm=None), replace(ENTRIES[PIN], instance=VmInstance("u", "n", "x", 1))]
)
def test_an_update_that_fails_in_the_middle_leaves_nothing(journal: Journal, path: Path, bad: Entry) -> None:
    journal.update({WEIGHT: ENTRIES[WEIGHT]})
    with pytest.raises(JournalError, match="cannot be written: "):
        journal.update({EMULATOR: ENTRIES[EMULATOR], PIN: bad, WEIGHT: entry(1, 2)}, [WEIGHT])
    assert journal.entries == {WEIGHT: ENTRIES[WEIGHT]} == reopened(path)
    journal.update({EMULATOR: ENTRIES[EMULATOR]})
    assert journal.entries.keys() == {WEIGHT, EMULATOR} == reopened(path).keys(), "and the next one works"


def test_a_full_disk_refuses_and_keeps_what_there_is(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, closing(Journal(disk.folder / "journal.db", BOOT)) as journal:
        journal.update(ENTRIES)
        disk.fill()
        more = {KnobKey(f"u{number}", Knob.WEIGHT): ENTRIES[WEIGHT] for number in range(2000)}
        for _ in range(2):
            with pytest.raises(JournalError, match="cannot be written: database or disk is full"):
                journal.update(more, [WEIGHT])
            assert journal.entries == ENTRIES
        assert reopened(crashed(journal._path, tmp_path / "copy")) == ENTRIES
        disk.clear()
        journal.update({}, [WEIGHT])
        assert journal.entries.keys() == ENTRIES.keys() - {WEIGHT}


def test_a_disk_that_is_full_at_start_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        disk.fill()
        path = disk.folder / "state/journal.db"
        assert refusal(path).startswith(f"the journal {path} cannot be used: ")


def test_a_read_only_disk_is_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk.folder / "journal.db"
        with closing(Journal(path, BOOT)) as journal:
            journal.update(ENTRIES)
        disk.forbid_writes()
        assert refusal(path).startswith(f"the journal {path} cannot be used: ")
        assert refusal(disk.folder / "new/journal.db").endswith(f"Read-only file system: '{disk.folder}/new'")


def test_what_a_policy_keeps_outlasts_a_boot(journal: Journal, path: Path) -> None:
    journal.note_policy_memory("auto", "6.12.1", "{}")
    journal.note_policy_memory("auto", "6.12.1", '{"worse_s":5.0}')
    journal.note_policy_memory("theirs", "6.12.1", "7")
    kept = {"auto": ("6.12.1", '{"worse_s":5.0}'), "theirs": ("6.12.1", "7")}
    assert Journal.copy_of(path, "boot-2").policy_memories == kept
    with closing(Journal(path, "boot-2")) as again:
        assert again.policy_memories == kept
        assert not again.entries
