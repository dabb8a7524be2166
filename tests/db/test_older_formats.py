"""After a downgrade packed rows are in the formats that the program before reads, and mean the same."""

from __future__ import annotations

from contextlib import closing
from datetime import UTC, datetime, timedelta

from sqlalchemy import select, text

from manager.model.histogram import Histogram
from manager.model.host_health import TickHealth
from manager.model.packed_histogram import pack, unpack
from manager.model.packed_records import (
    PackedDecision,
    PackedTick,
    microseconds,
    pack_decisions,
    pack_ticks,
    unpack_decisions,
    unpack_ticks,
)
from manager.model.packed_windows import PackedWindow, pack_windows, unpack_windows
from manager.model.registration import Mode
from manager.store.database import Database, open_database
from manager.store.models import HostRow, WindowRow
from manager.store.pack_models import DecisionPackRow, TickPackRow, WindowPackRow
from tests.api.conftest import tick
from tests.db.test_migrations import revisions

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
AT_US = microseconds(START)
TIMES = {"host": "kvm1", "last_at": START, "claimed_from": START, "claimed_until": START}
TICKS = [PackedTick(AT_US, None, '{"policy":"fair","vms":[{"vm":"web","weight":5}]}')]
WORDS = ("knob", "before", "after", "reason", "policy", "mode", "outcome", "detail")
IDS = [f"00000000-0000-4000-8000-{number:012x}" for number in (7, 8, 20)]
DECISIONS = [PackedDecision(AT_US, None, number, vm=None, index=0, **dict.fromkeys(WORDS, "é")) for number in IDS]
WINDOWS = [
    PackedWindow(AT_US + number, "kvm1", AT_US, AT_US + 5, None, None, pack(Histogram({500: 3 + number, 510: 1})))
    for number in range(2)
]


def bodies(database: Database, table: str) -> list[bytes]:
    with database.reading() as session:
        return [bytes(body) for [body] in session.execute(text(f"SELECT body FROM {table} ORDER BY id"))]


def test_packed_rows_are_readable_by_the_program_before(database_url: str) -> None:
    with closing(open_database(database_url)) as database:
        database.upgrade()
        put(database)
        database.downgrade(revisions()[revisions().index("0013") - 1])
        [ticks] = bodies(database, "tick_packs")
        decisions, none = bodies(database, "decision_packs")
        [windows] = bodies(database, "window_packs")
    assert {body[0] for body in (ticks, decisions, windows)} == {1}
    assert (unpack_ticks(ticks), unpack_decisions(decisions), unpack_decisions(none)) == (TICKS, DECISIONS, [])
    assert [(window.slot_us, window.end_us, unpack(window.histogram)) for window in unpack_windows(windows)] == [
        (window.slot_us, window.end_us, unpack(window.histogram)) for window in WINDOWS
    ]


def test_the_program_before_reads_histograms_that_were_packed_in_pairs(database_url: str) -> None:
    with closing(open_database(database_url)) as database:
        database.upgrade()
        put(database)
        [now] = bodies(database, "window_packs")
        database.downgrade("0014")
        [before] = bodies(database, "window_packs")
    assert (now[0], before[0]) == (3, 2)
    assert [(window.slot_us, unpack(window.histogram)) for window in unpack_windows(before)] == [
        (window.slot_us, unpack(window.histogram)) for window in WINDOWS
    ]


def test_a_quarter_of_an_hour_becomes_minutes_again(database_url: str) -> None:
    with closing(open_database(database_url)) as database:
        database.upgrade()
        with database.writing() as session:
            minutes = [0, 2, 0]
            body = pack_windows([window_at(minute, 5 * place) for place, minute in enumerate(minutes)])
            session.add(WindowPackRow(application_id=1, start=START, body=body))
            older = START + timedelta(minutes=2)
            session.add(WindowPackRow(application_id=1, start=older, body=pack_windows([window_at(2, 30)])))
            session.add(WindowPackRow(application_id=2, start=older, body=pack_windows([window_at(2, 0)])))
        database.downgrade("0013")
        with database.reading() as session:
            rows = session.scalars(select(WindowPackRow).order_by(WindowPackRow.application_id, WindowPackRow.start))
            seconds = [
                (row.application_id, row.start, [(one.slot_us - AT_US) // 10**6 for one in unpack_windows(row.body)])
                for row in rows
            ]
    assert seconds == [(1, START, [0, 10]), (1, older, [150, 125]), (2, older, [120])]


def test_joined_ticks_become_minutes_again(database_url: str) -> None:
    ticks = [PackedTick(AT_US + second * 10**6, AT_US if second else None, "{}") for second in (0, 30, 65, 600)]
    with closing(open_database(database_url)) as database:
        database.upgrade()
        with database.writing() as session:
            times = {"claimed_from": START, "claimed_until": START}
            last_at = START + timedelta(minutes=10)
            session.add(TickPackRow(host="kvm1", last_at=last_at, **times, body=pack_ticks(ticks)))
            session.add(TickPackRow(**TIMES, body=pack_ticks(TICKS)))
        database.downgrade("0013")
        with database.reading() as session:
            rows = session.scalars(select(TickPackRow).order_by(TickPackRow.last_at, TickPackRow.id)).all()
            read = [((row.last_at - START).total_seconds(), unpack_ticks(row.body)) for row in rows]
    assert read == [(0, TICKS), (30, ticks[:2]), (65, [ticks[2]]), (600, [ticks[3]])]


def test_windows_that_came_late_are_joined_with_packed_ones_as_they_become_rows(database_url: str) -> None:
    minute = START + timedelta(minutes=1)
    with closing(open_database(database_url)) as database:
        database.upgrade()
        with database.writing() as session:
            # A row of a minute, as revisions before 0014 have, and what came late for it in that of the quarter.
            body = pack_windows([counted("kvm1", 3), counted("kvm2", 9), counted("", 3)])
            session.add(WindowPackRow(application_id=1, start=minute, body=body))
            body = pack_windows([counted("kvm1", 9), counted("kvm2", 3), counted("", 4)])
            session.add(WindowPackRow(application_id=1, start=START, body=body))
            for origin in ("kvm2", "", "kvm3"):  # and what came even later
                times = {"slot": minute, "start_at": minute, "end_at": minute + timedelta(seconds=5)}
                window = WindowRow(application_id=1, origin=origin, **times, count=5, histogram=Histogram({500: 5}))
                session.add(window)
        database.downgrade("0008")
        with database.reading() as session:
            rows = session.scalars(select(WindowRow).order_by(WindowRow.origin)).all()
            there = [(row.origin, row.count, row.histogram.count, row.end_at, row.ready) for row in rows]
    end = minute + timedelta(seconds=5)
    assert there == [
        (name, count, count, end, None) for name, count in (("", 12), ("kvm1", 9), ("kvm2", 9), ("kvm3", 5))
    ]


def test_health_of_hosts_is_taken_out_of_their_last_ticks(database_url: str) -> None:
    ticks = {"kvm1": tick(errors=3, duration_ms=7.5, libvirt_connected=False, host_cpu_share=0.25), "kvm2": None}
    with closing(open_database(database_url)) as database:
        database.upgrade()
        with database.writing() as session:
            for name, last in ticks.items():
                settings = {"mode": Mode.OBSERVE, "policy": "priority", "pinning": False}
                session.add(HostRow(name=name, created_at=START, updated_at=START, tick=last, **settings))
        database.downgrade("0017")
        database.upgrade()
        with database.reading() as session:
            columns = (getattr(HostRow, name) for name in TickHealth._fields)
            health = [TickHealth(*row) for row in session.execute(select(*columns).order_by(HostRow.name))]
    assert health == [TickHealth(3, 7.5, False, 0.25), TickHealth()]


def counted(origin: str, count: int) -> PackedWindow:
    """One of the second minute with so many response times."""
    slot_us = AT_US + 60 * 10**6
    return PackedWindow(slot_us, origin, slot_us, slot_us + 5 * 10**6, None, None, pack(Histogram({500: count})))


def window_at(minute: int, second: int) -> PackedWindow:
    """One of a slot so long after the start."""
    slot_us = AT_US + (60 * minute + second) * 10**6
    return PackedWindow(slot_us, "kvm1", slot_us, slot_us + 5, None, None, pack(Histogram({500: 1})))


def put(database: Database) -> None:
    """Rows as they are written now."""
    with database.writing() as session:
        session.add(TickPackRow(**TIMES, body=pack_ticks(TICKS)))
        session.add(DecisionPackRow(**TIMES, about="", body=pack_decisions(DECISIONS)))
        session.add(DecisionPackRow(**TIMES, about="", body=pack_decisions([])))
        session.add(WindowPackRow(application_id=1, start=START, body=pack_windows(WINDOWS)))
