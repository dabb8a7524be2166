"""Decisions, events, tokens, and forgetting what is old."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest
from sqlalchemy import func, select

from manager.errors import Conflict, DatabaseUnavailable, InvalidRequest, NotFound
from manager.model.histogram import Histogram
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind, Severity
from manager.model.registration import Application, HostSpec, Mode
from manager.model.window import Window
from manager.store import retention
from manager.store.access_models import TokenRow
from manager.store.applications import put_application
from manager.store.database import Database
from manager.store.decision_packs import (
    DecisionFilter,
    StoredDecision,
    deciding_hosts,
    newest_decisions,
    store_decisions,
)
from manager.store.event_records import Position, RecordFilter, newest_events, store_events
from manager.store.hosts import reporting_host
from manager.store.models import EventRow, WindowRow
from manager.store.pack_models import DecidedVmRow, DecisionPackRow, TickPackRow
from manager.store.past_registrations import Era
from manager.store.registrations import page
from manager.store.retention import Cleanup, prune
from manager.store.tick_packs import list_ticks, store_ticks
from manager.store.tokens import Principal, Role, authenticate, create_token, revoke_token
from manager.store.windows import add_samples
from tests.aging import long_ago

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def decision(second: float, *, host: str = "h", vm: str = "a", knob: Knob = Knob.WEIGHT) -> dict[str, Any]:
    return {
        "record_id": str(uuid.uuid4()),
        "at": NOW + timedelta(seconds=second),
        "host": host,
        "vm": vm,
        "knob": knob,
        "index": 0,
        "before": "100",
        "after": "10000",
        "reason": "a critical VM",
        "policy": "priority",
        "mode": Mode.ENFORCE,
        "outcome": OutcomeKind.APPLIED,
        "detail": "",
    }


def event(second: float) -> dict[str, Any]:
    return {
        "record_id": str(uuid.uuid4()),
        "at": NOW + timedelta(seconds=second),
        "host": "h",
        "vm": None,
        "severity": Severity.WARNING,
        "kind": "overrun",
        "message": "a tick took too long",
    }


def disk_full() -> NoReturn:
    raise DatabaseUnavailable("database or disk is full")


def store(database: Database, rows: Sequence[dict[str, Any]]) -> int:
    """As the reports of the hosts in question."""
    stored = 0
    for host in sorted({row["host"] for row in rows}):
        with database.writing() as session:
            reporting_host(session, HostSpec(host), NOW)
            stored += store_decisions(session, host, [row for row in rows if row["host"] == host])
    return stored


def store_all(database: Database, rows: Sequence[dict[str, Any]]) -> int:
    with database.writing() as session:
        return store_events(session, rows)


def found(
    database: Database, wanted: DecisionFilter | None = None, after: Position | None = None, limit: int = 100
) -> list[StoredDecision]:
    with database.reading() as session:
        return newest_decisions(session, wanted or DecisionFilter(), after, limit)


def test_a_record_is_stored_once(database: Database) -> None:
    rows = [decision(second) for second in range(3)]
    assert store(database, rows[:2]) == 2
    assert store(database, rows) == 1
    assert store(database, [*rows, rows[0]]) == 0
    assert len(found(database)) == 3
    assert store(database, []) == 0


def test_the_same_records_sent_at_once_are_stored_once(database: Database) -> None:
    rows = [decision(second) for second in range(200)]
    with ThreadPoolExecutor(6) as pool:
        stored = list(pool.map(lambda _: store(database, rows), range(6)))
    assert sum(stored) == 200
    assert len(found(database, DecisionFilter(), limit=1000)) == 200


def test_as_many_as_a_report_may_hold_fit_one_statement(database: Database) -> None:
    assert store(database, [decision(second) for second in range(1000)]) == 1000
    assert store_all(database, [event(second) for second in range(1000)]) == 1000


def test_records_come_newest_first_in_pages_that_inserts_do_not_move(database: Database) -> None:
    store(database, [decision(second) for second in (5, 1, 3, 3, 3, 2)])
    first = found(database, DecisionFilter(), limit=3)
    store(database, [decision(9)])
    rest = found(database, DecisionFilter(), Position(first[-1].at, first[-1].id))
    assert [(row.at - NOW).seconds for row in first + rest] == [5, 3, 3, 3, 2, 1]
    assert len({row.id for row in first + rest}) == 6


@pytest.mark.parametrize(
    ("wanted", "seconds"),
    [
        (DecisionFilter(), [4, 3, 2, 1]),
        (DecisionFilter(host="g"), [2]),
        (DecisionFilter(vm="b"), [3]),
        (DecisionFilter(host="g", vm="b"), []),
        (DecisionFilter(since=NOW + timedelta(seconds=2), until=NOW + timedelta(seconds=4)), [3, 2]),
    ],
)
def test_records_are_filtered(database: Database, wanted: DecisionFilter, seconds: list[int]) -> None:
    store(database, [decision(1), decision(2, host="g"), decision(3, vm="b"), decision(4)])
    assert [(row.at - NOW).seconds for row in found(database, wanted)] == seconds


def test_a_further_condition_narrows_the_list(database: Database) -> None:
    store_all(database, [event(1), event(2) | {"kind": "started"}])
    with database.reading() as session:
        rows = newest_events(session, RecordFilter(), None, 9, EventRow.kind == "started")
    assert [row.kind for row in rows] == ["started"]


def test_decisions_of_many_minutes_and_hosts_are_in_one_order(database: Database) -> None:
    """Rows of hosts overlap, and one that comes late holds what is older than others that are there."""
    seconds = {"h": [0, 5, 65, 130], "g": [3, 64, 66, 200], "late": [1, 2]}
    for host, times in seconds.items():
        store(database, [decision(second, host=host) for second in times])
    expected = sorted((second for times in seconds.values() for second in times), reverse=True)
    assert [(row.at - NOW).seconds for row in found(database)] == expected
    paged: list[StoredDecision] = []
    while len(paged) < len(expected):
        after = Position(paged[-1].at, paged[-1].id) if paged else None
        paged += found(database, DecisionFilter(), after, 3)
    assert [(row.at - NOW).seconds for row in paged] == expected


@pytest.mark.parametrize(
    ("wanted", "seconds"),
    [
        (DecisionFilter(knob=Knob.VCPU_PIN), [3]),
        (DecisionFilter(outcome=OutcomeKind.FAILED), [5, 2]),
        (DecisionFilter(vm="a_1"), [2]),
        (DecisionFilter(vm="a%"), []),
        (DecisionFilter(vm="nobody"), []),
        (DecisionFilter(eras=[Era(NOW + timedelta(seconds=3), frozenset({"a"})), Era(None, frozenset({"b"}))]), [4, 1]),
        (DecisionFilter(eras=[Era(NOW + timedelta(seconds=3), frozenset({"a"}))]), [1]),
        (DecisionFilter(eras=[]), []),
    ],
)
def test_what_is_not_looked_for_in_a_row_is_left_out(
    database: Database, wanted: DecisionFilter, seconds: list[int]
) -> None:
    failed = {"outcome": OutcomeKind.FAILED}
    rows = [decision(1), decision(2, vm="a_1") | failed, decision(3, vm="a01", knob=Knob.VCPU_PIN)]
    store(database, [*rows, decision(4, vm="b"), decision(5) | {"vm": None} | failed])
    assert [(row.at - NOW).seconds for row in found(database, wanted)] == seconds


def test_a_decision_is_read_as_it_was_written(database: Database) -> None:
    claimed = NOW + timedelta(hours=1, microseconds=7)
    row = decision(0.000001) | {"reason": "of 2 VMs, \u201cquoted\u201d\n", "claimed_at": claimed}
    host = decision(1) | {"vm": None, "claimed_at": None}
    assert store(database, [row, host]) == 2
    second, first = found(database)
    assert [{name: getattr(stored, name) for name in row} for stored in (first, second)] == [row, host]
    assert first.record().time_s == pytest.approx(NOW.timestamp() + 1e-6, abs=1e-7)
    later = row | {"at": NOW + timedelta(minutes=9)}
    assert store(database, [later]) == 0, "it was dated otherwise, but is the same"


def test_which_hosts_decided_about_a_vm_is_forgotten_after_what_they_decided(database: Database) -> None:
    store(database, [decision(0), decision(1), decision(86_400), decision(0, host="g")])
    with database.reading() as session:
        assert {host for _, host in deciding_hosts(session, {"a", "x"}, NOW)} == {"g", "h"}
        assert deciding_hosts(session, {"a"}, NOW + timedelta(days=1)) == {("a", "h")}
        assert deciding_hosts(session, {"x"}, NOW) == set()
    now = NOW + timedelta(days=2)
    for keep, left_over in ((timedelta(hours=37), (1, 3)), (timedelta(0), (0, 0))):
        prune(Cleanup(database, now, long_ago), keep)
        with database.reading() as session:
            rows = [session.scalars(select(kind.id)).all() for kind in (DecisionPackRow, DecidedVmRow)]
        assert tuple(map(len, rows)) == left_over


def fill(database: Database, old: int, new: int) -> None:
    """So many rows of each kind before ``NOW``, and after."""
    with database.registering() as session:
        put_application(session, Application("shop"), NOW, lambda _etag: None)
    store(database, [decision(-60 * n - 1) for n in range(old)] + [decision(60 * n + 1) for n in range(new)])
    store_all(database, [event(-1 - n) for n in range(old)] + [event(1 + n) for n in range(new)])
    with database.writing() as session:
        for second in [-60 * (n + 1) for n in range(old)] + [60 * (n + 1) for n in range(new)]:
            end = NOW + timedelta(seconds=second)
            window = Window("shop", end.timestamp(), end.timestamp(), Histogram.of([1.0]), 1)
            add_samples(session, "shop", [window], timedelta(seconds=5))
            store_ticks(session, "h", {end: "{}"})


def left(database: Database) -> tuple[int, ...]:
    with database.reading() as session:
        decisions = newest_decisions(session, DecisionFilter(), None, 99)
        ticks = list_ticks(session, "h", None, None, 99)
        rows = (session.scalars(select(kind.id)).all() for kind in (EventRow, WindowRow))
        return tuple(map(len, (decisions, *rows, ticks)))


def test_what_is_old_is_pruned_in_batches(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH", 3)
    fill(database, old=7, new=2)
    assert prune(Cleanup(database, NOW, long_ago, lambda: True), timedelta(0)) == 0
    assert prune(Cleanup(database, NOW, long_ago), timedelta(0)) == 13, "a row goes when all of it is old"
    assert left(database) == (3, 2, 9, 9), "windows and ticks go by their roll-ups"
    assert prune(Cleanup(database, NOW, long_ago), timedelta(0)) == 0


@pytest.mark.parametrize(("seconds", "rows"), [((30, 89), 1), ((30, 90), 2), ((0, 59, 60, 119, 121), 3)])
def test_what_a_report_brings_of_a_minute_is_a_row(database: Database, seconds: tuple[int, ...], rows: int) -> None:
    with database.writing() as session:
        store_ticks(session, "h", {NOW + timedelta(seconds=second): "{}" for second in seconds})
        assert session.scalar(select(func.count()).select_from(TickPackRow)) == rows
        assert len(list_ticks(session, "h", None, None, 99)) == len(seconds)


def test_a_tick_of_a_host_is_stored_once(database: Database) -> None:
    at = [NOW + timedelta(seconds=second) for second in range(4)]

    def stored(host: str, *ticks: datetime) -> int:
        with database.writing() as session:
            return store_ticks(session, host, {tick: f'"{tick}"' for tick in ticks})

    assert (stored("h", at[0], at[1]), stored("h", at[1], at[2]), stored("g", at[1]), stored("h")) == (2, 1, 1, 0)
    with database.reading() as session:
        assert [row.at for row in list_ticks(session, "h", None, None, 9)] == at[2::-1]
        assert [row.at for row in list_ticks(session, "h", at[1], at[2], 9)] == [at[1]]
        assert [row.body for row in list_ticks(session, "h", None, None, 1)] == [f'"{at[2]}"']


def test_a_token_is_shown_once_and_kept_as_a_hash(database: Database) -> None:
    with database.registering() as session:
        row, secret = create_token(session, "alice", Role.OPERATOR, None, NOW)
    assert len(secret) == len("eqp_") + 43  # 32 random bytes in base64
    with database.reading() as session:
        columns = {column.name: getattr(row, column.name) for column in TokenRow.__table__.columns}
        assert secret not in str(columns)
        assert [(one.name, one.role) for one in page(session, TokenRow, None, 9)] == [("alice", "operator")]
    assert authenticate(database, secret, NOW) == Principal("alice", Role.OPERATOR, None)
    for wrong in ("", secret + "x", secret.lower(), "\0", "ü", row.secret_hash):
        assert authenticate(database, wrong, NOW) is None


def test_the_use_of_a_token_is_noted_at_most_once_a_minute(database: Database) -> None:
    with database.registering() as session:
        _, secret = create_token(session, "kvm7", Role.HOST, "kvm7", NOW)
    noted = []
    for second in (0, 59, 60):
        assert authenticate(database, secret, NOW + timedelta(seconds=second)) == Principal("kvm7", Role.HOST, "kvm7")
        with database.reading() as session:
            noted.append(session.scalars(select(TokenRow.last_used_at)).one())
    assert noted == [NOW, NOW, NOW + timedelta(seconds=60)]


def test_a_token_is_good_also_where_its_use_cannot_be_noted(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.registering() as session:
        _, secret = create_token(session, "alice", Role.VIEWER, None, NOW)
    monkeypatch.setattr(database, "change", lambda *_given: disk_full())
    assert authenticate(database, secret, NOW) == Principal("alice", Role.VIEWER, None)


def test_a_revoked_token_is_refused(database: Database) -> None:
    with database.registering() as session:
        _, secret = create_token(session, "alice", Role.ADMIN, None, NOW)
    with database.registering() as session:
        revoke_token(session, "alice")
    assert authenticate(database, secret, NOW) is None
    with pytest.raises(NotFound, match="no token named 'alice'"), database.registering() as session:
        revoke_token(session, "alice")


@pytest.mark.parametrize(
    ("name", "role", "host", "field"),
    [
        ("a b", Role.ADMIN, None, "name"),
        ("a\n", Role.ADMIN, None, "name"),
        ("a", Role.HOST, None, "host"),
        ("a", Role.HOST, "h/1", "host"),
        ("a", Role.VIEWER, "h", "host"),
    ],
)
def test_a_token_that_makes_no_sense_is_refused(
    database: Database, name: str, role: Role, host: str | None, field: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal, database.registering() as session:
        create_token(session, name, role, host, NOW)
    assert refusal.value.field == field


def test_a_taken_name_is_refused(database: Database) -> None:
    with database.registering() as session:
        create_token(session, "alice", Role.ADMIN, None, NOW)
    with pytest.raises(Conflict, match="'alice'"), database.registering() as session:
        create_token(session, "alice", Role.VIEWER, None, NOW)
