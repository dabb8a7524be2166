"""The audit in the store: written with the change, read newest first."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy.orm import Session

from manager.errors import Conflict, SignInRefused
from manager.model.registration import HostSpec, Mode
from manager.store import audit
from manager.store.access_models import AuditRow
from manager.store.audit import Actor, AuditFilter, audited, list_audit, record
from manager.store.database import Database
from manager.store.event_records import Position
from manager.store.hosts import adopt_host, put_host
from manager.store.models import HostRow
from manager.store.registrations import delete
from manager.store.sessions import DEFAULT_LIMITS, sign_in, sign_out
from manager.store.tokens import Role, create_token
from manager.store.users import create_user

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ALICE = Actor("user", "alice", "operator", "192.0.2.7")


def described(_session: Session, row: HostRow) -> dict[str, Any]:
    return {"mode": str(row.mode)}


def changing(database: Database, action: str) -> Any:
    return audited(database, ALICE, action, HostRow, "kvm7", described, NOW)


def put(database: Database, mode: Mode) -> None:
    with changing(database, "host.put") as session:
        put_host(session, HostSpec("kvm7", mode), NOW, lambda _etag: None)


def entries(database: Database, **wanted: Any) -> list[AuditRow]:
    with database.reading() as session:
        return list(list_audit(session, AuditFilter(**wanted), None, 99))


def test_each_change_is_recorded_with_what_was_and_what_is(database: Database) -> None:
    put(database, Mode.OBSERVE)
    put(database, Mode.OBSERVE)
    put(database, Mode.ENFORCE)
    with changing(database, "host.adopt") as session:
        adopt_host(session, "kvm7", NOW)
    with changing(database, "host.delete") as session:
        delete(session, HostRow, "kvm7", lambda _etag: None)
    found = [(row.action, row.before, row.after) for row in reversed(entries(database))]
    observe, enforce = {"mode": "observe"}, {"mode": "enforce"}
    assert found == [
        ("host.put", None, observe),
        ("host.put", observe, enforce),
        ("host.adopt", enforce, enforce),
        ("host.delete", enforce, None),
    ], "and nothing of the second put, which changed nothing"
    row = entries(database)[0]
    assert (row.at, row.actor_kind, row.actor, row.role, row.address) == (NOW, "user", "alice", "operator", "192.0.2.7")
    assert (row.object_kind, row.object) == ("host", "kvm7")


def test_a_change_that_fails_is_not_recorded(database: Database) -> None:
    def never(_etag: str | None) -> None:
        raise Conflict("no")

    with pytest.raises(Conflict), changing(database, "host.put") as session:
        put_host(session, HostSpec("kvm7"), NOW, lambda _etag: None)
        put_host(session, HostSpec("kvm8"), NOW, never)
    assert entries(database) == []


def test_a_change_that_cannot_be_recorded_is_not_made(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_arguments: object) -> None:
        raise RuntimeError

    monkeypatch.setattr(audit, "record", broken)
    with pytest.raises(RuntimeError):
        put(database, Mode.OBSERVE)
    monkeypatch.undo()
    put(database, Mode.OBSERVE)
    assert [row.before for row in entries(database)] == [None]


def test_lists_go_newest_first_and_can_be_narrowed(database: Database) -> None:
    bob = Actor("token", "bob", "admin", "")
    with database.writing() as session:
        for second, (actor, action, name) in enumerate(
            [(ALICE, "vm.put", "a"), (bob, "vm.put", "b"), (ALICE, "host.put", "a"), (bob, "token.create", "c")]
        ):
            record(session, actor, action, name, NOW + timedelta(seconds=second))

    def seconds(**wanted: Any) -> list[int]:
        return [(row.at - NOW).seconds for row in entries(database, **wanted)]

    assert seconds() == [3, 2, 1, 0]
    assert seconds(actor="alice") == [2, 0]
    assert seconds(object="a") == [2, 0]
    assert seconds(object="a", object_kind="vm") == [0]
    assert seconds(since=NOW + timedelta(seconds=1), until=NOW + timedelta(seconds=3)) == [2, 1]
    row = entries(database)[1]
    with database.reading() as session:
        rest = list_audit(session, AuditFilter(), Position(row.at, row.id), 1)
        assert [one.action for one in rest] == ["vm.put"]


def test_who_signs_in_and_out_or_fails_to_is_recorded(database: Database) -> None:
    with database.registering() as session:
        _, secret = create_token(session, "ops", Role.ADMIN, None, NOW)
        create_user(session, "alice", Role.VIEWER, "", NOW)

    def enter(name: str, password: str) -> str:
        return sign_in(database, name, password, "192.0.2.7", NOW, DEFAULT_LIMITS).secret

    for name in ("alice", "my secret"):
        with pytest.raises(SignInRefused):
            enter(name, "wrong")
    sign_out(database, enter("ops", secret), "192.0.2.8", NOW)
    sign_out(database, "unknown", "192.0.2.8", NOW)
    found = [(row.action, row.actor_kind, row.actor, row.role, row.address, row.object) for row in entries(database)]
    assert found == [
        ("session.delete", "token", "ops", "admin", "192.0.2.8", "ops"),
        ("session.create", "token", "ops", "admin", "192.0.2.7", "ops"),
        ("session.refuse", "unknown", "", "", "192.0.2.7", ""),  # it may be a password in the wrong field
        ("session.refuse", "unknown", "alice", "", "192.0.2.7", "alice"),
    ]
