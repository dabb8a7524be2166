"""A full outbox keeps minutes where it cannot keep every interval, and nothing is delivered twice."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.loop import outbox as thinning
from manager.loop.outbox import ItemKind, Outbox, Thinning, kept_histogram
from manager.model.fields import json_of
from manager.model.histogram import Histogram
from manager.model.records import TickRecord, VcpuTick, VmTick
from manager.model.resource_use import DiskUse, ResourceUse, VmResources, resources_of
from manager.model.window import Window
from tests.loop.test_outbox import record

PLENTY = 10**9
HOT: dict[str, Any] = {"index": 1, "used": 0.95, "waited": 0.01, "full": 1}
SLOT_S = 5.0


WATTS = 120.5


def window(number: int, application: str = "shop") -> Window:
    return Window(application, SLOT_S * number, SLOT_S * (number + 1), Histogram({500: 3, 600 + number % 3: 1}), 4.0)


def tick(number: int, used: float = 0.5) -> TickRecord:
    """What is used besides CPU time is in each other one."""
    resources = ResourceUse((VmResources("web", io_pressure=used, disks=(DiskUse("vda", 4e6, 0.0, 8.0),)),))
    return TickRecord(
        SLOT_S * number,
        "fair",
        "enforce",
        used,
        (VmTick("web", used, 0.01, number, "observe", VcpuTick(**HOT)),),
        resources if number % 2 else None,
        WATTS,
    )


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """The four oldest stay as they are, and all others are read at once."""
    monkeypatch.setattr(thinning, "UNTOUCHED", 4)


@pytest.fixture
def outbox(tmp_path: Path, few: None) -> Iterator[Outbox]:
    opened = Outbox(tmp_path / "outbox.db", 60)
    yield opened
    opened.close()


def found(outbox: Outbox, kind: ItemKind) -> list[dict[str, Any]]:
    return outbox.peek(100_000, PLENTY).fields[kind]


def requests(windows: list[dict[str, Any]]) -> Counter[str]:
    """Response times by application and bucket."""
    counts: Counter[str] = Counter()
    for one in windows:
        counts.update({f"{one['application']} {bucket}": n for bucket, n in kept_histogram(one["histogram"]).items()})
    return counts


def test_minutes_of_a_long_time_take_the_place_of_intervals(outbox: Outbox) -> None:
    numbers = range(12 * 40)  # forty minutes, of two applications and ticks: 24 times what there is room for
    for number in numbers:
        outbox.put([window(number), tick(number, 0.25 if number % 2 else 0.75)])
    windows, ticks = found(outbox, ItemKind.WINDOW), found(outbox, ItemKind.TICK)
    assert len(windows) + len(ticks) <= 60
    told = requests(windows)
    assert told["shop 500"] == 3 * len(numbers) - 3 * told_before(windows), "no response time is lost within it"
    assert sum(one["requests"] for one in windows) == 4 * (len(numbers) - told_before(windows))
    whole = [one for one in windows if one["end_s"] - one["start_s"] == 60]
    assert len(whole) > 10
    assert all(one["end_s"] % 60 == 0 for one in whole)
    assert {one["power_watts"] for one in ticks} == {WATTS}
    means = [one for one in ticks if one["host_cpu_share"] == 0.5]
    assert len(means) > 10
    assert means[0]["vms"] == [
        {
            "vm": "web",
            "cpu_share": 0.5,
            "run_delay_share": 0.01,
            "weight": means[0]["time_s"] / 5,
            "mode": "observe",
            "vcpu": HOT,
        }
    ]
    means_of = {json_of(resources_of(one["resources"])) for one in means}
    assert means_of == {
        b'{"vms":[{"vm":"web","io_pressure":0.25,"disks":[{"device":"vda","read_bytes_per_s":4000000.0,'
        b'"written_bytes_per_s":0.0,"requests_per_s":8.0}]}]}'
    }
    ends = [one["end_s"] for one in windows]
    assert ends == sorted(ends)


def told_before(windows: list[dict[str, Any]]) -> int:
    """Slots from before the oldest window: only these may have been dropped."""
    return round(windows[0]["start_s"] / SLOT_S)


def test_a_minute_of_more_rows_than_are_read_at_once_is_merged_too(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As at an interval of a second with 60 applications."""
    monkeypatch.setattr(thinning, "_THINNED_AT_ONCE", 30)
    numbers = range(12 * 5)
    names = [f"app{number}" for number in range(3)]
    for number in numbers:
        outbox.put([window(number, name) for name in names])
    windows = found(outbox, ItemKind.WINDOW)
    assert len(windows) <= 60
    assert sum(one["requests"] for one in windows) == 4 * len(names) * len(numbers), "no response time is lost"


def test_slots_of_a_clock_that_was_ahead_for_a_while_do_not_end_the_merging(
    outbox: Outbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinning, "_THINNED_AT_ONCE", 30)
    numbers = [*range(12), *range(100_000, 100_003), *range(12, 12 * 40)]
    for number in numbers:
        outbox.put([window(number)])
    windows = found(outbox, ItemKind.WINDOW)
    assert len(windows) <= 60
    assert sum(one["requests"] for one in windows) == 4 * len(numbers), "no response time is lost"


def test_the_oldest_are_never_merged_because_they_may_have_been_told(outbox: Outbox) -> None:
    for numbers in (range(40), range(40, 50)):  # the second lets the first be written
        outbox.put([window(number) for number in numbers])
    before = outbox.peek(4, PLENTY)
    outbox.put([window(number) for number in range(50, 70)])
    assert outbox.peek(4, PLENTY) == before
    outbox.drop_through(before.last)
    assert found(outbox, ItemKind.WINDOW)[0]["start_s"] > before.fields[ItemKind.WINDOW][-1]["start_s"]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_whatever_happens_each_response_time_is_taken_once(tmp_path_factory: Any, data: st.DataObject) -> None:
    """Puts, deliveries, deliveries whose acknowledgement is lost, and restarts, in any order."""
    path = tmp_path_factory.mktemp("outbox") / "outbox.db"
    outbox = Outbox(path, 700)
    taken: dict[tuple[str, float], dict[str, Any]] = {}
    number = 0

    def deliver(acknowledge: bool) -> None:
        waiting = outbox.peek(thinning.UNTOUCHED, PLENTY)
        for one in waiting.fields[ItemKind.WINDOW]:
            place = one["application"], one["end_s"]
            assert place not in taken or taken[place] == one, "what was told once is told in the same words"
            taken[place] = one
        if acknowledge:
            outbox.drop_through(waiting.last)

    for step in data.draw(st.lists(st.sampled_from("ppppptlr"), min_size=5, max_size=25)):
        if step == "p":
            size = data.draw(st.integers(1, 150))
            outbox.put([window(one, name) for one in range(number, number + size) for name in ("shop", "cache")])
            number += size
        elif step == "r":
            outbox.close()
            outbox = Outbox(path, 700)
        else:
            deliver(step == "t")
    for _ in range(10):
        deliver(acknowledge=True)
    outbox.close()
    for name in ("shop", "cache"):
        spans = sorted((one["start_s"], one["end_s"]) for one in taken.values() if one["application"] == name)
        assert all(first[1] <= second[0] for first, second in pairwise(spans)), "none overlaps"
    counts = requests(list(taken.values()))
    covered = Counter({"shop": 0, "cache": 0})
    for (name, _), one in taken.items():
        covered[name] += round((one["end_s"] - one["start_s"]) / SLOT_S)
    for name, slots in covered.items():
        assert counts[f"{name} 500"] == 3 * slots


def test_records_and_what_is_not_understood_stay_as_they_are(outbox: Outbox, tmp_path: Path) -> None:
    outbox.put([record(number) for number in range(4)])
    outbox.put([item for number in range(24) for item in (window(number), record(4 + number))])
    with closing(sqlite3.connect(tmp_path / "outbox.db", isolation_level=None)) as other:
        other.execute("UPDATE waiting SET body = json_remove(body, '$.histogram') WHERE seq = 5")
        with closing(other.cursor()) as cursor:
            assert Thinning().thin(cursor) == 0, "the first minute is of another version, the second may get more"
    outbox.put([window(number) for number in range(24, 48)])
    fields = outbox.peek(1000, PLENTY).fields
    assert len(fields[ItemKind.DECISION]) == 28
    assert [json.dumps(one).count("histogram") for one in fields[ItemKind.WINDOW]].count(0) == 1


@pytest.mark.parametrize("change", ["json_remove(body, '$.end_s')", "json_set(body, '$.end_s', 'noon')"])
def test_rows_without_a_time_do_not_keep_others_from_being_written(outbox: Outbox, tmp_path: Path, change: str) -> None:
    """As after a downgrade, once the outbox is full."""
    outbox.put([record(0), *(window(number) for number in range(58))])
    with closing(sqlite3.connect(tmp_path / "outbox.db", isolation_level=None)) as other:
        other.execute(f"UPDATE waiting SET body = {change} WHERE seq = 7")
    outbox.put([record(1), *(window(number) for number in range(58, 70))])
    fields = outbox.peek(1000, PLENTY).fields
    assert len(fields[ItemKind.DECISION]) == 2
    assert len(fields[ItemKind.WINDOW]) < 30


def test_there_may_be_nothing_to_merge(outbox: Outbox) -> None:
    outbox.put([record(number) for number in range(61)])
    assert len(found(outbox, ItemKind.DECISION)) == 60
