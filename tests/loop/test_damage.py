"""Files that are damaged: nothing crashes, what can be read is kept, and the damaged file is set aside and told of."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.errors import JournalError
from manager.loop.agent import Agent
from manager.loop.agent_metrics import AgentMetrics
from manager.loop.journal import CacheNote, Entry, Journal
from manager.loop.link import ManagerLink
from manager.loop.outbox import ItemKind, Outbox
from manager.loop.watches import FindingsWatch
from manager.model.decision import Owned
from manager.model.host import VmInstance
from manager.model.knobs import Knob, KnobKey
from manager.model.records import Event, Severity
from tests.fakes.examiner import FakeExaminer
from tests.fakes.telemetry import FakeTelemetry
from tests.loop.conftest import Rig
from tests.loop.disk import small_disk

BOOT = "boot-1"
PAGE = 4096
MANY = {
    KnobKey(f"{number:08}-0000-4000-8000-000000000000", Knob.WEIGHT): Entry(
        VmInstance(f"{number:08}-0000-4000-8000-000000000000", f"vm{number}", 1000 + number, 7),
        f"vm{number}",
        Owned(1024, 1024, 10_000 - number),
    )
    for number in range(200)
}


def event(number: int) -> Event:
    return Event(f"event {number}", 2.5, "h1", Severity.WARNING, "read", "x" * 200, None)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a journal and an outbox of many pages, neatly closed."""
    folder = tmp_path_factory.mktemp("sound")
    with closing(Journal(folder / "journal.db", BOOT)) as journal:
        journal.update(MANY)
        journal.note_cache(CacheNote(mounted=True))
        journal.note_maxima({0: 1e9})
    with closing(Outbox(folder / "outbox.db", 10_000)) as outbox:
        outbox.put(event(number) for number in range(300))
    return folder


def spoil(path: Path, how: Callable[[bytearray], object]) -> bytes:
    """Change a file's bytes; what it is then."""
    content = bytearray(path.read_bytes())
    changed = how(content)
    path.write_bytes(changed if isinstance(changed, bytes) else content)
    return path.read_bytes()


def zero(begin: int, end: int) -> Callable[[bytearray], None]:
    def act(content: bytearray) -> None:
        content[begin:end] = bytes(len(content[begin:end]))

    return act


def cut(length: int) -> Callable[[bytearray], bytes]:
    return lambda content: bytes(content[:length])


def leaves(path: Path, table: str) -> list[int]:
    """Where the pages with rows of a table begin, in the order of the rows."""
    with closing(sqlite3.connect(path)) as database:
        [root] = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    content = path.read_bytes()
    begin = (root - 1) * PAGE
    assert content[begin] == 5, "the table has more than a page"
    cells = int.from_bytes(content[begin + 3 : begin + 5], "big")
    places = [int.from_bytes(content[begin + 12 + 2 * one : begin + 14 + 2 * one], "big") for one in range(cells)]
    pages = [int.from_bytes(content[begin + place : begin + place + 4], "big") for place in places]
    return [(page - 1) * PAGE for page in [*pages, int.from_bytes(content[begin + 8 : begin + 12], "big")]]


def asides(folder: Path, name: str) -> list[Path]:
    return sorted(one for one in folder.glob(f"{name}.broken-*") if one.name.endswith("Z"))


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "state"))


def journalled(folder: Path) -> tuple[dict[KnobKey, Entry], list[str]]:
    """What a journal that is opened now holds, and what it tells of the file."""
    with closing(Journal(folder / "journal.db", BOOT)) as journal:
        return dict(journal.entries), [damage.text for damage in journal.take_damages()]


def waiting(folder: Path) -> list[str]:
    with closing(Outbox(folder / "outbox.db", 10_000)) as outbox:
        return [one["record_id"] for one in outbox.peek(10_000, 10**9).fields[ItemKind.EVENT]]


def lose_replica(folder: Path) -> None:
    for file in folder.glob("journal-replica.db*"):
        file.unlink()


@pytest.mark.parametrize("place", [0, 1, -1], ids=["first page", "second page", "last page"])
@pytest.mark.parametrize("replica", [True, False], ids=["replica", "none"])
def test_of_a_journal_with_a_hole_all_is_kept_and_without_its_replica_all_else(
    folder: Path, place: int, replica: bool
) -> None:
    path = folder / "journal.db"
    page = leaves(path, "owned")[place]
    broken = spoil(path, zero(page, page + PAGE))
    if not replica:
        lose_replica(folder)
    found, told = journalled(folder)
    assert found.items() <= MANY.items()
    assert len(MANY) - (0 if replica else 50) <= len(found)
    [aside] = asides(folder, "journal.db")
    assert aside.read_bytes() == broken
    assert told == [told[0]] and str(path) in told[0] and aside.name in told[0]
    assert ("nothing of it is lost" if replica else f"{len(found) + 2} rows of it are kept") in told[0], (
        "with two notes"
    )
    assert journalled(folder) == (found, []), "it is sound again"


def test_a_journal_without_its_begin_or_that_is_gone_costs_nothing(folder: Path) -> None:
    spoil(folder / "journal.db", zero(0, PAGE))
    assert journalled(folder)[0] == MANY
    (folder / "journal.db").unlink()
    found, [told] = journalled(folder)
    assert (found, "it is gone" in told) == (MANY, True)


def test_a_replica_that_is_damaged_is_made_anew(folder: Path) -> None:
    spoil(folder / "journal-replica.db", zero(0, PAGE))
    assert journalled(folder) == (MANY, [])
    spoil(folder / "journal.db", zero(0, PAGE))
    assert journalled(folder)[0] == MANY


def test_a_replica_knows_each_change(folder: Path) -> None:
    key, *others = MANY
    with closing(Journal(folder / "journal.db", BOOT)) as journal:
        journal.update({}, others)
        journal.note_cache(None)
        journal.note_maxima({0: 2e9})
        crash = Path(shutil.copytree(folder, folder.with_name("crash")))
    spoil(crash / "journal.db", zero(0, PAGE))
    with closing(Journal(crash / "journal.db", BOOT)) as again:
        assert (dict(again.entries), again.cache, again.maxima) == ({key: MANY[key]}, None, {0: 2e9})


def test_an_outbox_without_its_begin_starts_empty(folder: Path) -> None:
    broken = spoil(folder / "outbox.db", zero(0, PAGE))
    assert waiting(folder) == []
    assert [one.read_bytes() for one in asides(folder, "outbox.db")] == [broken]


@pytest.mark.parametrize("missing", [1, 100, PAGE, 3 * PAGE])
def test_a_file_that_lost_its_end_keeps_its_begin(folder: Path, missing: int) -> None:
    path = folder / "journal.db"
    lose_replica(folder)
    spoil(path, cut(path.stat().st_size - missing))
    found, told = journalled(folder)
    assert found.items() <= MANY.items()
    assert len(found) > len(MANY) // 2
    assert len(told) == 1
    path = folder / "outbox.db"
    spoil(path, cut(path.stat().st_size - missing))
    kept = waiting(folder)
    assert len(kept) > 200
    assert kept == sorted(kept, key=lambda name: int(name.split()[1]))


def test_an_index_that_names_another_row_is_made_anew(folder: Path) -> None:
    """By it a row would not be found that is to be removed, and be there again at the next start."""
    path = folder / "journal.db"
    key = next(key for key in MANY if key.uuid.startswith("00000007"))
    content = bytearray(path.read_bytes())
    places = [found.end() for found in re.finditer(key.uuid.encode(), content)]
    [last] = [place - 1 for place in places if content[place // PAGE * PAGE] == 10]  # a leaf of an index
    content[last : last + 1] = b"1"
    path.write_bytes(content)
    found, told = journalled(folder)
    assert (found, len(told)) == (MANY, 1)
    with closing(Journal(path, BOOT)) as journal:
        journal.update({}, [key])
    assert key not in journalled(folder)[0]


def test_what_is_no_journal_is_set_aside_as_it_is(tmp_path: Path) -> None:
    for number, content in enumerate((b"garbage" * 1000, b"SQLite format 3\0" + b"\xff" * 8000, b"x" * 200, b"\0" * 9)):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "journal.db").write_bytes(content)
        found, told = journalled(folder)
        assert (found, len(told)) == ({}, 1)
        assert [one.read_bytes() for one in asides(folder, "journal.db")] == [content]


@pytest.mark.parametrize(
    ("statement", "kept"),
    [
        ("UPDATE owned SET knob = 'colour' WHERE vm = 'vm7'", len(MANY) - 1),
        ("UPDATE owned SET original = 'all' WHERE vm = 'vm7'", len(MANY) - 1),
        ("UPDATE owned SET vm = CAST(x'ff' AS TEXT) WHERE vm = 'vm7'", len(MANY) - 1),
        ("UPDATE owned SET boot_id = CAST(x'ff' AS TEXT) WHERE vm = 'vm7'", len(MANY) - 1),
        ("UPDATE cache SET external = '[]'", len(MANY)),
        ("UPDATE cache SET original = 'no schemata'", len(MANY)),
        ("PRAGMA user_version = 7", len(MANY)),
        ("ALTER TABLE owned DROP COLUMN previous", 0),
        ("DROP TABLE owned", len(MANY) * 0),
    ],
)
def test_what_is_understood_of_another_version_is_kept(folder: Path, statement: str, kept: int) -> None:
    path = folder / "journal.db"
    lose_replica(folder)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)
    found, told = journalled(folder)
    assert len(found) == kept
    assert found.items() <= MANY.items()
    assert len(told) == ("DROP TABLE" not in statement)


def test_a_newer_version_with_more_columns_is_read(folder: Path) -> None:
    lose_replica(folder)
    with closing(sqlite3.connect(folder / "journal.db")) as database, database:
        database.execute("ALTER TABLE owned ADD COLUMN colour TEXT NOT NULL DEFAULT 'red'")
        database.execute("PRAGMA user_version = 2")
    found, [told] = journalled(folder)
    assert found == MANY
    assert "it is of version 2, and 1 is understood" in told


def test_damage_in_use_costs_a_journal_nothing(folder: Path) -> None:
    path = folder / "journal.db"
    key = next(iter(MANY))
    with closing(Journal(path, BOOT)) as journal:
        with path.open("r+b") as file:  # what is written next needs pages that are read anew
            file.write(bytes(path.stat().st_size))
        journal._file._database.execute("PRAGMA shrink_memory")
        journal.update({}, [key])
        journal.note_maxima({0: 2e9})
        [damage] = journal.take_damages()
        assert damage.aside in asides(folder, "journal.db")
        assert journal.take_damages() == []
        wanted = {one: entry for one, entry in MANY.items() if one != key}
        assert journal.entries == wanted
        assert journal.cache == CacheNote(mounted=True)
    found, told = journalled(folder)
    assert (found, told) == (wanted, [])
    with closing(Journal(path, BOOT)) as again:
        assert (again.cache, again.maxima) == (CacheNote(mounted=True), {0: 2e9})


def test_damage_in_use_costs_an_outbox_the_rows_that_cannot_be_read_and_no_others(folder: Path) -> None:
    path = folder / "outbox.db"
    begin = leaves(path, "waiting")[3]
    with closing(Outbox(path, 10_000)) as outbox:
        with path.open("r+b") as file:
            file.seek(begin)
            file.write(bytes(PAGE))
        outbox._database.execute("PRAGMA shrink_memory")
        fields = outbox.peek(10_000, 10**9).fields
        kept = [one["record_id"] for one in fields[ItemKind.EVENT]]
        assert 270 < len(kept) < 300
        assert len(outbox.take_damages()) == 1
        outbox.put([event(1000)])
        last = outbox.peek(10_000, 10**9).last
        assert last == 301, "numbers go on where they were"
        outbox.drop_through(last)
    assert waiting(folder) == []


def test_who_is_killed_while_rebuilding_finds_the_old_or_the_new(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step that changes names; and what SQLite's log still holds is not lost."""

    class Killed(BaseException):
        pass

    page = leaves(folder / "journal.db", "owned")[1]
    real = Path.rename
    number, done = 0, False
    while not done:
        here = Path(shutil.copytree(folder, folder.with_name(f"killed-{number}")))
        path = here / "journal.db"
        spoil(path, zero(page, page + PAGE))
        count = 0

        def rename(self: Path, to: Path) -> Path:
            nonlocal count
            count += "replica" not in self.name
            if count > number:  # noqa: B023 - it is undone within the loop
                raise Killed
            return real(self, to)

        monkeypatch.setattr(Path, "rename", rename)
        try:
            journalled(here)
            done = True
        except Killed:
            pass
        monkeypatch.undo()
        found, told = journalled(here)
        assert len(found) > 150, f"killed before renaming number {number}"
        assert len(told) == (not done), "it is told of at the next start"
        assert len(asides(here, "journal.db")) == 1
        number += 1
    assert number >= 3


def test_a_disk_without_space_to_mend_on_leaves_the_damaged_file_alone(tmp_path: Path, sound: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        path = disk.folder / "journal.db"
        shutil.copy(sound / "journal.db", path)
        broken = spoil(path, zero(2 * PAGE, 3 * PAGE))
        disk.fill()
        with pytest.raises(JournalError, match="cannot be used"):
            Journal(path, BOOT)
        assert path.read_bytes() == broken
        disk.clear()
        found, told = journalled(disk.folder)
        assert len(told) == 1
        assert found.items() <= MANY.items()


spoilings = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(0, 2**20), st.binary(min_size=1, max_size=64)),
        st.tuples(st.just("zero"), st.integers(0, 2**20), st.integers(1, 3 * PAGE)),
        st.tuples(st.just("cut"), st.integers(0, 2**20), st.just(0)),
        st.tuples(st.just("swap"), st.integers(0, 2**20), st.integers(0, 2**20)),
    ),
    min_size=1,
    max_size=4,
)


def spoiled(content: bytes, spoils: list[tuple[str, int, object]]) -> bytes:
    changed = bytearray(content)
    for kind, place, what in spoils:
        size = max(len(changed), 1)
        begin = place % size
        if kind == "write":
            changed[begin : begin + len(what)] = what  # type: ignore[arg-type]
        elif kind == "zero":
            zero(begin, begin + what)(changed)  # type: ignore[operator]
        elif kind == "cut":
            del changed[begin:]
        else:
            one, other = begin // PAGE * PAGE, what % size // PAGE * PAGE  # type: ignore[operator]
            changed[one : one + PAGE], changed[other : other + PAGE] = (
                changed[other : other + PAGE],
                changed[one : one + PAGE],
            )
    return bytes(changed)


@settings(max_examples=40)
@given(spoils=spoilings, of_log=st.booleans())
def test_whatever_the_bytes_are_the_agents_files_can_be_used(sound: Path, spoils, of_log: bool) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(shutil.copytree(sound, Path(name) / "state"))
        journal, outbox = Journal(folder / "journal.db", BOOT), Outbox(folder / "outbox.db", 10_000)
        late = KnobKey("late", Knob.WEIGHT)
        journal.update({late: next(iter(MANY.values()))})
        outbox.put([event(300)])
        crash = Path(shutil.copytree(folder, Path(name) / "crash"))  # with SQLite's logs
        journal.close()
        outbox.close()
        for file in ("journal.db", "outbox.db"):
            path = crash / (file + "-wal" if of_log else file)
            path.write_bytes(spoiled(path.read_bytes(), spoils))
        with closing(Journal(crash / "journal.db", BOOT)) as again:
            assert len(again.entries) >= (len(MANY) if of_log else 0), "its log is damaged alone"
            again.update({late: next(iter(MANY.values()))})
            assert late in again.entries
        with closing(Outbox(crash / "outbox.db", 10_000)) as box:
            box.put([event(400)])
            ids = [one.get("record_id") for one in box.peek(10_000, 10**9).fields[ItemKind.EVENT]]
            assert "event 400" in ids
        with closing(Journal(crash / "journal.db", BOOT)) as again:
            assert late in again.entries
            json.dumps([damage.text for damage in again.take_damages()])


def test_the_operator_is_told_of_each_damaged_file_once(
    rig: Rig, tmp_path: Path, link: ManagerLink, outbox: Outbox, cache: Path
) -> None:
    cache.write_text("{torn")
    link.cached()
    rig.register("web")
    rig.host.boot("web")
    metrics = AgentMetrics()
    agent = Agent(
        rig.loop,
        outbox,
        link,
        metrics,
        telemetry=FakeTelemetry(),
        findings=FindingsWatch(FakeExaminer()),
        sync_s=1.0,
    )
    rig.tick()
    assert rig.journal.entries
    for path in (tmp_path / "journal.db", tmp_path / "journal.db-wal"):
        with path.open("r+b") as file:
            file.write(bytes(path.stat().st_size))
    rig.journal._file._database.execute("PRAGMA shrink_memory")
    agent.tick()  # nothing is assigned by the link: all is put back
    agent.tick()
    told = [one for one in outbox.peek(100, 10**9).fields[ItemKind.EVENT] if one["kind"] == "file-damaged"]
    assert [one["severity"] for one in told] == ["error", "error"]
    assert [name in one["message"] for name, one in zip(("journal.db", "assignment.json"), told, strict=True)] == [
        True
    ] * 2
    assert metrics.registry.get_sample_value("equipoise_agent_errors_total", {"kind": "damage"}) == 2
    assert rig.value("web") == 1024, "the original was still known"
    assert not rig.journal.entries
