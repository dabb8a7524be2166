"""Records waiting for the manager: in order, bounded, and there again after a restart."""

from __future__ import annotations

import json
import sqlite3
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.errors import JournalError
from manager.loop.outbox import Item, ItemKind, Outbox, Waiting, kept_histogram
from manager.model.histogram import Histogram
from manager.model.knobs import Knob
from manager.model.records import DecisionRecord, Event, OutcomeKind, Severity, TickRecord, VmTick
from manager.model.window import Ready, Window
from tests.loop.disk import small_disk

PLENTY = 10**9
"""Bytes, more than any of these tests has."""


def record(number: int) -> DecisionRecord:
    text = f"record {number}"
    return DecisionRecord(
        text, 1.5, "h1", "wéb", Knob.VCPU_PIN, 2, "0-3", "1", "why", "fair", "enforce", OutcomeKind.FAILED, "said\nso"
    )


def event(number: int) -> Event:
    return Event(f"event {number}", 2.5, "h1", Severity.WARNING, "read", "all\x00kinds of “text”", None)


def tick(number: int) -> TickRecord:
    return TickRecord(float(number), "fair", "enforce", 0.5, (VmTick("wéb", 0.25, 0.01, None, "observe"),))


def window(number: int) -> Window:
    return Window("shop", 5.0 * number, 5.0 * number + 5, Histogram({500: 3}), None, Ready(95, 12.5))


def waiting(outbox: Outbox, limit: int = 100) -> list[str]:
    """Ids of the decisions, then of the events."""
    return ids(outbox.peek(limit, PLENTY).fields)


def ids(fields: Mapping[ItemKind, list[dict[str, Any]]]) -> list[str]:
    return [one["record_id"] for one in (*fields[ItemKind.DECISION], *fields[ItemKind.EVENT])]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state/outbox.db"


@pytest.fixture
def outbox(path: Path) -> Iterator[Outbox]:
    opened = Outbox(path, 100)
    yield opened
    opened.close()


def test_empty(outbox: Outbox) -> None:
    nothing = Waiting(0, True, {kind: [] for kind in ItemKind})
    assert outbox.peek(10, PLENTY) == nothing
    outbox.put(())
    outbox.drop_through(0)
    assert outbox.peek(10, PLENTY) == nothing


def test_what_was_put_comes_back_as_it_was(outbox: Outbox) -> None:
    outbox.put([record(1), event(1), tick(1), window(1)])
    fields = outbox.peek(10, PLENTY).fields
    assert fields[ItemKind.DECISION] == [asdict(record(1))]
    assert fields[ItemKind.EVENT] == [asdict(event(1))]
    [sent_tick], [sent_window] = fields[ItemKind.TICK], fields[ItemKind.WINDOW]
    assert (sent_tick["time_s"], sent_tick["vms"]) == (1.0, [asdict(tick(1).vms[0])])
    assert sent_window.keys() == asdict(window(1)).keys()
    assert kept_histogram(sent_window["histogram"]) == window(1).histogram
    assert sent_window | {"histogram": None} == asdict(window(1)) | {"histogram": None}
    outbox.put([record(2)])  # so that all is written
    assert outbox.peek(10, PLENTY).fields[ItemKind.WINDOW] == [sent_window], "in the file, too"


def test_histograms_are_also_read_as_earlier_versions_wrote_them() -> None:
    assert kept_histogram({"buckets": {"500": 3, "600": 1}}) == Histogram({500: 3, 600: 1})
    for broken in ({}, {"buckets": {"x": 1}}, {"packed": "A"}, {"packed": "AQ=="}, {"packed": 1}):
        with pytest.raises((LookupError, ValueError, TypeError)):
            kept_histogram(broken)


def test_looking_takes_nothing_and_the_oldest_come_first(outbox: Outbox) -> None:
    outbox.put([record(1), record(2), event(1)])
    outbox.put([record(3), event(2)])
    first = outbox.peek(4, PLENTY)
    assert (ids(first.fields), first.complete) == (["record 1", "record 2", "record 3", "event 1"], False)
    assert outbox.peek(4, PLENTY) == first
    assert outbox.peek(5, PLENTY).complete
    assert waiting(outbox, 1) == ["record 1"]
    assert outbox.peek(1, PLENTY).last < first.last


def test_what_is_taken_at_once_is_bounded_but_never_nothing(outbox: Outbox) -> None:
    outbox.put(record(number) for number in range(10))
    size = len(json.dumps(asdict(record(0))))
    assert len(ids(outbox.peek(10, 3 * size).fields)) == 3
    assert len(ids(outbox.peek(10, 3 * size - 1).fields)) == 2
    assert (ids(outbox.peek(10, 1).fields), outbox.peek(10, 1).complete) == (["record 0"], False)


def test_events_are_taken_before_what_waits_with_them(outbox: Outbox, path: Path) -> None:
    outbox.put([record(1), event(1), tick(1), event(2)])
    outbox.put([event(3), record(2)])
    outbox.put([tick(2)])
    first = outbox.peek(2, PLENTY, events_only=True)
    assert (ids(first.fields), first.complete, first.fresh) == (["event 1", "event 2"], False, ())
    outbox.drop_events_through(first.last)
    rest = outbox.peek(10, PLENTY, events_only=True)
    assert (ids(rest.fields), rest.complete) == (["event 3"], True)
    assert not any(rest.fields[kind] for kind in ItemKind if kind is not ItemKind.EVENT)
    outbox.drop_events_through(rest.last)
    assert outbox.peek(10, PLENTY, events_only=True) == Waiting(0, True, {kind: [] for kind in ItemKind})
    found = outbox.peek(10, PLENTY)
    assert ids(found.fields) == ["record 1", "record 2"], "the rest still waits"
    assert found.fresh == ((ItemKind.TICK, tick(2)),)
    assert outbox.waiting == 4
    outbox.drop_through(found.last)
    assert (outbox.peek(10, PLENTY).last, outbox.waiting) == (0, 0)
    outbox.put([event(4)])
    with closing(Outbox(path, 100)) as again:
        assert waiting(again) == ["event 4"]


def test_the_room_of_events_that_were_taken_is_free_again(tmp_path: Path) -> None:
    with closing(Outbox(tmp_path / "outbox.db", 6)) as outbox:
        outbox.put([*map(event, range(4)), record(1), record(2)])
        outbox.drop_events_through(outbox.peek(10, PLENTY, events_only=True).last)
        assert outbox.waiting == 2
        outbox.put(map(record, range(3, 7)))
        assert waiting(outbox) == [f"record {number}" for number in range(1, 7)], "nothing is dropped"


@pytest.mark.parametrize(
    ("items", "oldest_s"), [([], None), ([tick(7), window(1)], 7.0), ([window(1), tick(7)], 10.0), ([event(3)], 2.5)]
)
def test_when_the_oldest_came_about(outbox: Outbox, items: list[Item], oldest_s: float | None) -> None:
    outbox.put([*items, *([record(1)] if items else ())])
    assert outbox.oldest_s() == oldest_s


def test_ticks_and_windows_are_written_only_if_the_next_come_first(outbox: Outbox, path: Path) -> None:
    def written() -> list[str]:
        with closing(sqlite3.connect(path)) as other:
            return [kind for [kind] in other.execute("SELECT kind FROM waiting ORDER BY seq")]

    outbox.put([tick(1), window(1)])
    first = outbox.peek(10, PLENTY)
    assert (first.fresh, written()) == (((ItemKind.TICK, tick(1)), (ItemKind.WINDOW, window(1))), [])
    one = outbox.peek(1, PLENTY)
    assert (one.fresh, one.last, one.complete) == (first.fresh[:1], first.last - 1, False)
    outbox.put([tick(2)])
    assert written() == ["tick", "window", "tick"], "the manager did not take the first in time"
    outbox.drop_through(first.last)
    assert written() == ["tick"]
    outbox.put([tick(3)])
    outbox.put([record(1)])
    assert written() == ["tick", "tick", "decision"], "in their order"
    outbox.drop_through(outbox.peek(10, PLENTY).last)
    outbox.put([tick(4)])
    outbox.drop_through(outbox.peek(10, PLENTY).last)
    assert (outbox.peek(10, PLENTY).last, written()) == (0, [])
    outbox.put([tick(5)])
    outbox.close()
    assert written() == ["tick"]


def test_only_what_was_acknowledged_is_dropped(outbox: Outbox) -> None:
    outbox.put([record(number) for number in range(5)])
    last = outbox.peek(2, PLENTY).last
    outbox.put([record(5)])
    outbox.drop_through(last)
    outbox.drop_through(last)
    assert waiting(outbox) == ["record 2", "record 3", "record 4", "record 5"]


def test_rows_survive_a_restart_and_their_numbers_are_never_used_again(outbox: Outbox, path: Path) -> None:
    outbox.put([record(1), event(1)])
    before = outbox.peek(10, PLENTY)
    outbox.close()
    with closing(Outbox(path, 100)) as again:
        assert again.peek(10, PLENTY) == before
        again.drop_through(before.last)
    with closing(Outbox(path, 100)) as again:
        again.put([record(2)])
        assert again.peek(10, PLENTY).last > before.last, "an old acknowledgement must not drop it"
        again.drop_through(before.last)
        assert waiting(again) == ["record 2"]


@settings(max_examples=30)
@given(st.integers(1, 6), st.lists(st.integers(0, 9), max_size=6))
def test_the_newest_stay_when_it_is_full(max_rows: int, sizes: list[int]) -> None:
    with tempfile.TemporaryDirectory() as folder, closing(Outbox(Path(folder) / "outbox.db", max_rows)) as outbox:
        wanted: list[str] = []
        for size in sizes:
            numbers = range(len(wanted), len(wanted) + size)
            outbox.put([record(number) for number in numbers])
            wanted += [f"record {number}" for number in numbers]
            assert waiting(outbox) == wanted[-max_rows:]


@settings(max_examples=30)
@given(st.integers(1, 6), st.lists(st.lists(st.sampled_from("rwt"), max_size=8), max_size=6), st.booleans())
def test_what_comes_with_every_interval_gives_way_to_records(max_rows: int, puts: list[list[str]], again: bool) -> None:
    makers = {"r": record, "w": window, "t": tick}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        path = Path(folder) / "outbox.db"
        outbox = stack.enter_context(closing(Outbox(path, max_rows)))
        kinds: list[str] = []
        for put in puts:
            outbox.put(makers[kind](len(kinds) + place) for place, kind in enumerate(put))
            kinds += put
            if again:
                outbox.close()
                outbox = stack.enter_context(closing(Outbox(path, max_rows)))  # what it counts is in the file
        found = outbox.peek(1000, PLENTY)
        fields = found.fields
        assert sum(map(len, fields.values())) + len(found.fresh) == min(max_rows, len(kinds))
        records = [f"record {number}" for number, kind in enumerate(kinds) if kind == "r"]
        assert [one["record_id"] for one in fields[ItemKind.DECISION]] == records[-max_rows:]


def test_several_threads_may_use_it(outbox: Outbox) -> None:
    """The loop puts while the exchange with the manager takes."""
    taken: list[str] = []
    putters = [
        threading.Thread(target=lambda start=start: [outbox.put([record(start + one)]) for one in range(25)])
        for start in (0, 100, 200)
    ]
    for thread in putters:
        thread.start()
    while len(taken) < 75:
        found = outbox.peek(10, PLENTY)
        outbox.drop_through(found.last)
        taken += ids(found.fields)
    for thread in putters:
        thread.join()
    numbers = [int(name.split()[1]) for name in taken]
    assert sorted(numbers) == [*range(25), *range(100, 125), *range(200, 225)]
    for start in (0, 100, 200):
        of_one = [number for number in numbers if start <= number < start + 100]
        assert of_one == sorted(of_one), "each thread's records in its order"


def test_what_a_full_disk_refuses_waits_in_memory(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk, closing(Outbox(disk.folder / "outbox.db", 10_000)) as outbox:
        assert outbox.put([record(1)])
        disk.fill()
        for number in (2, 400):
            with pytest.raises(JournalError, match="the outbox cannot be written: database or disk is full"):
                outbox.put([tick(number), *(record(one) for one in range(number, number + 398))])
        assert waiting(outbox, 2000) == [f"record {number}" for number in range(1, 798)]
        outbox.drop_through(outbox.peek(10, PLENTY).last)
        assert waiting(outbox, 2)[0] == "record 10", "what was taken is not told again, also if it cannot be removed"
        disk.clear()
        assert outbox.put([record(1000)])
        wanted = [*(f"record {number}" for number in range(10, 798)), "record 1000"]
        assert waiting(outbox, 2000) == wanted
        outbox.close()
        with closing(Outbox(disk.folder / "outbox.db", 10_000)) as again:
            assert waiting(again, 2000) == wanted


def test_events_are_also_taken_from_what_a_full_disk_refused(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk, closing(Outbox(disk.folder / "outbox.db", 10_000)) as outbox:
        outbox.put([record(1), event(1)])
        disk.fill()
        with pytest.raises(JournalError):
            outbox.put([*map(record, range(2, 400)), event(2)])
        first = outbox.peek(1, PLENTY, events_only=True)
        assert (ids(first.fields), first.complete) == (["event 1"], False)
        whole = outbox.peek(9, PLENTY, events_only=True)
        assert (ids(whole.fields), whole.complete) == (["event 1", "event 2"], True)
        outbox.drop_events_through(whole.last)
        assert "event 2" not in waiting(outbox, 2000)
        assert [name for name in waiting(outbox, 2000) if name.startswith("record")] == [
            f"record {number}" for number in range(1, 400)
        ]


def test_a_file_of_an_earlier_version_is_opened_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "1m") as disk:
        path = disk.folder / "outbox.db"
        with closing(Outbox(path, 10_000)) as outbox:
            outbox.put([*map(record, range(100)), event(1)])
        with closing(sqlite3.connect(path)) as killed, ExitStack() as stack:  # its files beside the database are there
            killed.execute("DROP INDEX waiting_events")
            killed.commit()
            killed.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            disk.fill()
            outbox = stack.enter_context(closing(Outbox(path, 10_000)))
            with pytest.raises(JournalError, match="full"):
                outbox.put([*map(record, range(100, 200))])
            assert ids(outbox.peek(9, PLENTY, events_only=True).fields) == ["event 1"]


def test_what_waits_in_memory_is_bounded_and_what_comes_with_every_interval_goes_first(
    outbox: Outbox, path: Path
) -> None:
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE waiting")
        for number in range(0, 1500, 3):
            with pytest.raises(JournalError):
                outbox.put([tick(number), record(number), record(number + 1)])
        outbox._rows = 0
        fields = outbox.peek(10_000, PLENTY).fields
        assert (len(fields[ItemKind.TICK]), len(fields[ItemKind.DECISION])) == (0, 1000)
        assert fields[ItemKind.DECISION][-1]["record_id"] == "record 1498"


def test_a_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JournalError, match="cannot be used"):
        Outbox(tmp_path / "file/outbox.db", 100)


def test_errors_of_the_file_have_one_type(outbox: Outbox, path: Path) -> None:
    outbox.put([record(0)])
    with closing(sqlite3.connect(path)) as other:
        other.execute("DROP TABLE waiting")
    for action in (lambda: outbox.put([record(1)]), lambda: outbox.peek(1, PLENTY)):
        with pytest.raises(JournalError, match="no such table"):
            action()
    outbox.drop_through(1)
