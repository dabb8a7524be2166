"""Records waiting for the manager: in order, bounded, and there again after a restart."""

from __future__ import annotations

import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.errors import JournalError
from manager.loop.outbox import Outbox
from manager.model.records import DecisionRecord, Event, Knob, OutcomeKind, Severity
from tests.loop.disk import small_disk


def record(number: int) -> DecisionRecord:
    text = f"record {number}"
    return DecisionRecord(
        text, 1.5, "h1", "wéb", Knob.VCPU_PIN, 2, "0-3", "1", "why", "fair", "enforce", OutcomeKind.FAILED, "said\nso"
    )


def event(number: int) -> Event:
    return Event(f"event {number}", 2.5, "h1", Severity.WARNING, "read", "all\x00kinds of “text”", None)


def ids(rows: list[dict[str, Any]]) -> list[str]:
    return [row.get("record_id") or row["event_id"] for row in rows]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state/outbox.db"


@pytest.fixture
def outbox(path: Path) -> Iterator[Outbox]:
    opened = Outbox(path, 100)
    yield opened
    opened.close()


def test_empty(outbox: Outbox) -> None:
    assert outbox.peek(10) == (0, [], [])
    outbox.put((), ())
    outbox.drop_through(0)
    assert outbox.peek(10) == (0, [], [])


def test_what_was_put_comes_back_as_it_was(outbox: Outbox) -> None:
    outbox.put([record(1)], [event(1)])
    _, decisions, events = outbox.peek(10)
    assert decisions == [asdict(record(1))]
    assert events == [asdict(event(1))]
    assert DecisionRecord(**decisions[0]) == record(1)
    assert Event(**events[0]) == event(1)


def test_looking_takes_nothing_and_the_oldest_come_first(outbox: Outbox) -> None:
    outbox.put([record(1), record(2)], [event(1)])
    outbox.put([record(3)], [event(2)])
    last, decisions, events = outbox.peek(4)
    assert (ids(decisions), ids(events)) == (["record 1", "record 2", "record 3"], ["event 1"])
    assert outbox.peek(4) == (last, decisions, events)
    first, decisions, events = outbox.peek(1)
    assert (ids(decisions), events) == (["record 1"], [])
    assert first < last


def test_only_what_was_acknowledged_is_dropped(outbox: Outbox) -> None:
    outbox.put([record(number) for number in range(5)], ())
    last, _, _ = outbox.peek(2)
    outbox.put([record(5)], ())
    outbox.drop_through(last)
    outbox.drop_through(last)
    assert ids(outbox.peek(10)[1]) == ["record 2", "record 3", "record 4", "record 5"]


def test_rows_survive_a_restart_and_their_numbers_are_never_used_again(outbox: Outbox, path: Path) -> None:
    outbox.put([record(1)], [event(1)])
    last, decisions, events = outbox.peek(10)
    outbox.close()
    with closing(Outbox(path, 100)) as again:
        assert again.peek(10) == (last, decisions, events)
        again.drop_through(last)
    with closing(Outbox(path, 100)) as again:
        again.put([record(2)], ())
        assert again.peek(10)[0] > last, "an old acknowledgement must not drop it"
        again.drop_through(last)
        assert ids(again.peek(10)[1]) == ["record 2"]


@settings(max_examples=30)
@given(st.integers(1, 6), st.lists(st.integers(0, 9), max_size=6))
def test_the_newest_stay_when_it_is_full(max_rows: int, sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(Outbox(Path(folder) / "outbox.db", max_rows)) as outbox:
        wanted: list[str] = []
        for size in sizes:
            numbers = range(len(wanted), len(wanted) + size)
            outbox.put([record(number) for number in numbers], ())
            wanted += [f"record {number}" for number in numbers]
            assert ids(outbox.peek(100)[1]) == wanted[-max_rows:]


def test_several_threads_may_use_it(outbox: Outbox) -> None:
    """The loop puts while the exchange with the manager takes."""
    taken: list[str] = []
    putters = [
        threading.Thread(target=lambda start=start: [outbox.put([record(start + one)], ()) for one in range(25)])
        for start in (0, 100, 200)
    ]
    for thread in putters:
        thread.start()
    while len(taken) < 75:
        last, decisions, _ = outbox.peek(10)
        outbox.drop_through(last)
        taken += ids(decisions)
    for thread in putters:
        thread.join()
    numbers = [int(name.split()[1]) for name in taken]
    assert sorted(numbers) == [*range(25), *range(100, 125), *range(200, 225)]
    for start in (0, 100, 200):
        of_one = [number for number in numbers if start <= number < start + 100]
        assert of_one == sorted(of_one), "each thread's records in its order"


def test_a_full_disk_refuses_all_of_it_and_keeps_the_rest(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk, closing(Outbox(disk.folder / "outbox.db", 10_000)) as outbox:
        outbox.put([record(1)], ())
        disk.fill()
        for _ in range(2):
            with pytest.raises(JournalError, match="the outbox cannot be written: database or disk is full"):
                outbox.put([record(number) for number in range(2, 2000)], ())
        assert ids(outbox.peek(10)[1]) == ["record 1"]
        disk.clear()
        outbox.put([record(2)], ())
        assert ids(outbox.peek(10)[1]) == ["record 1", "record 2"]


def test_a_file_that_cannot_be_used_is_refused(path: Path, tmp_path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"garbage" * 1000)
    with pytest.raises(JournalError) as caught:
        Outbox(path, 100)
    assert str(caught.value) == f"the outbox {path} cannot be used: file is not a database"
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be used"):
        Outbox(tmp_path / "file/outbox.db", 100)


def test_errors_of_the_file_have_one_type(outbox: Outbox, path: Path) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE waiting")
    for action in (lambda: outbox.put([record(1)], ()), lambda: outbox.peek(1), lambda: outbox.drop_through(1)):
        with pytest.raises(JournalError, match="no such table"):
            action()
