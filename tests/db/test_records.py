"""Decisions, events, tokens, and forgetting what is old."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest
from sqlalchemy import select

from manager.errors import Conflict, DatabaseUnavailable, InvalidRequest, NotFound
from manager.model.histogram import Histogram
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind, Severity
from manager.model.registration import Application, Mode
from manager.model.window import Window
from manager.store import retention
from manager.store.access_models import TokenRow
from manager.store.applications import put_application
from manager.store.database import Database
from manager.store.decision_records import Position, RecordFilter, list_records, list_ticks, store_new, store_ticks
from manager.store.models import DecisionRow, EventRow, TickRow, WindowRow
from manager.store.retention import Cleanup, prune
from manager.store.tokens import Principal, Role, authenticate, create_token, list_tokens, revoke_token
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


def store(database: Database, kind: Any, rows: Sequence[dict[str, Any]]) -> int:
    with database.writing() as session:
        return store_new(session, kind, rows)


def found(
    database: Database, wanted: RecordFilter, after: Position | None = None, limit: int = 100
) -> list[DecisionRow]:
    with database.reading() as session:
        return list(list_records(session, DecisionRow, wanted, after, limit))


def test_a_record_is_stored_once(database: Database) -> None:
    rows = [decision(second) for second in range(3)]
    assert store(database, DecisionRow, rows[:2]) == 2
    assert store(database, DecisionRow, rows) == 1
    assert store(database, DecisionRow, [*rows, rows[0]]) == 0
    assert len(found(database, RecordFilter())) == 3
    assert store(database, DecisionRow, []) == 0


def test_the_same_records_sent_at_once_are_stored_once(database: Database) -> None:
    rows = [decision(second) for second in range(200)]
    with ThreadPoolExecutor(6) as pool:
        stored = list(pool.map(lambda _: store(database, DecisionRow, rows), range(6)))
    assert sum(stored) == 200
    assert len(found(database, RecordFilter(), limit=1000)) == 200


def test_as_many_as_a_report_may_hold_fit_one_statement(database: Database) -> None:
    assert store(database, DecisionRow, [decision(second) for second in range(1000)]) == 1000
    assert store(database, EventRow, [event(second) for second in range(1000)]) == 1000


def test_records_come_newest_first_in_pages_that_inserts_do_not_move(database: Database) -> None:
    store(database, DecisionRow, [decision(second) for second in (5, 1, 3, 3, 3, 2)])
    first = found(database, RecordFilter(), limit=3)
    store(database, DecisionRow, [decision(9)])
    rest = found(database, RecordFilter(), Position(first[-1].at, first[-1].id))
    assert [(row.at - NOW).seconds for row in first + rest] == [5, 3, 3, 3, 2, 1]
    assert len({row.id for row in first + rest}) == 6


@pytest.mark.parametrize(
    ("wanted", "seconds"),
    [
        (RecordFilter(), [4, 3, 2, 1]),
        (RecordFilter(host="g"), [2]),
        (RecordFilter(vm="b"), [3]),
        (RecordFilter(host="g", vm="b"), []),
        (RecordFilter(since=NOW + timedelta(seconds=2), until=NOW + timedelta(seconds=4)), [3, 2]),
    ],
)
def test_records_are_filtered(database: Database, wanted: RecordFilter, seconds: list[int]) -> None:
    store(database, DecisionRow, [decision(1), decision(2, host="g"), decision(3, vm="b"), decision(4)])
    assert [(row.at - NOW).seconds for row in found(database, wanted)] == seconds


def test_a_further_condition_narrows_the_list(database: Database) -> None:
    store(database, DecisionRow, [decision(1), decision(2, knob=Knob.VCPU_PIN)])
    with database.reading() as session:
        rows = list_records(session, DecisionRow, RecordFilter(), None, 9, DecisionRow.knob == Knob.VCPU_PIN)
    assert [row.knob for row in rows] == [Knob.VCPU_PIN]


def fill(database: Database, old: int, new: int) -> None:
    """So many rows of each kind before ``NOW``, and after."""
    with database.registering() as session:
        put_application(session, Application("shop"), NOW, lambda _etag: None)
    store(database, DecisionRow, [decision(-1 - n) for n in range(old)] + [decision(1 + n) for n in range(new)])
    store(database, EventRow, [event(-1 - n) for n in range(old)] + [event(1 + n) for n in range(new)])
    with database.writing() as session:
        for second in [-60 * (n + 1) for n in range(old)] + [60 * (n + 1) for n in range(new)]:
            end = NOW + timedelta(seconds=second)
            window = Window("shop", end.timestamp(), end.timestamp(), Histogram.of([1.0]), 1)
            add_samples(session, "shop", [window], timedelta(seconds=5))
            store_ticks(session, "h", {end: "{}"})


def left(database: Database) -> tuple[int, ...]:
    with database.reading() as session:
        kinds = (DecisionRow, EventRow, WindowRow, TickRow)
        return tuple(len(session.scalars(select(kind.id)).all()) for kind in kinds)


def test_what_is_old_is_pruned_in_batches(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_BATCH", 3)
    fill(database, old=7, new=2)
    assert prune(Cleanup(database, NOW, long_ago, lambda: True), timedelta(0)) == 0
    assert prune(Cleanup(database, NOW, long_ago), timedelta(0)) == 14
    assert left(database) == (2, 2, 9, 9), "windows and ticks go by their roll-ups"
    assert prune(Cleanup(database, NOW, long_ago), timedelta(0)) == 0


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
        assert [(one.name, one.role) for one in list_tokens(session)] == [("alice", "operator")]
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
    monkeypatch.setattr(database, "writing", disk_full)
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
