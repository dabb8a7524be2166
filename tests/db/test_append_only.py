"""The audit in the database itself: any connection to it can add rows, and retention alone removes old ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError

from manager.store.audit import LOCAL, Actor, AuditFilter, forget, list_audit, record
from manager.store.database import Database
from manager.store.retention import Cleanup, prune_access
from tests.aging import long_ago

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def told(database: Database) -> Database:
    """Three rows of the audit, a day apart, the last of now."""
    with database.writing() as session:
        for days in reversed(range(3)):
            record(session, Actor(LOCAL, "root", "admin", ""), "vm.put", f"vm{days}", NOW - timedelta(days=days))
    return database


def objects(database: Database) -> list[str]:
    with database.reading() as session:
        return [row.object for row in list_audit(session, AuditFilter(), None, 99)]


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit SET actor = 'nobody'",
        "UPDATE audit SET actor = actor WHERE object = 'vm1'",
        "DELETE FROM audit",
        "DELETE FROM audit WHERE object = 'vm2'",
    ],
)
def test_rows_cannot_be_changed_or_removed(told: Database, statement: str) -> None:
    with pytest.raises(IntegrityError, match="the audit is append-only"), told.writing() as session:
        session.execute(text(statement))
    assert objects(told) == ["vm0", "vm1", "vm2"]


def test_postgresql_refuses_to_empty_the_table(migrated: Callable[[str], Database]) -> None:
    with pytest.raises(IntegrityError, match="append-only"), migrated("postgresql").writing() as session:
        session.execute(text("TRUNCATE audit"))


def test_retention_removes_what_is_old_and_nothing_else(told: Database) -> None:
    assert prune_access(Cleanup(told, NOW, long_ago), timedelta(days=1)) == 1
    assert objects(told) == ["vm0", "vm1"]
    with told.reading() as session:
        assert session.execute(text("SELECT count(*) FROM audit_retention")).scalar() == 0, "it is allowed only then"


def test_what_retention_may_remove_ends_at_the_time_that_it_named(told: Database) -> None:
    with pytest.raises(IntegrityError, match="append-only"), told.writing() as session:
        session.execute(text("INSERT INTO audit_retention (id, before) VALUES (1, '2026-02-28 13:00:00.000000')"))
        session.execute(text("DELETE FROM audit WHERE object IN ('vm0', 'vm2')"))
    assert objects(told) == ["vm0", "vm1", "vm2"]


def test_rows_are_removed_in_batches(told: Database) -> None:
    for expected in (2, 1, 0):
        with told.writing() as session:
            assert forget(session, NOW + timedelta(days=1), 99, 2) == expected
