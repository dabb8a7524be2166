"""A manager's database of SQLite with damage in it: set aside, made anew from what can be read, and told of."""

from __future__ import annotations

import shutil
import sqlite3
import threading
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from sqlalchemy import insert, select, text

from manager.cli.admin_commands import open_store, upgrade_store
from manager.errors import DatabaseUnavailable
from manager.model.records import Severity
from manager.settings import load_settings
from manager.store.audit import AuditFilter, list_audit
from manager.store.database import Database, open_database
from manager.store.models import EventRow
from tests.loop.test_damage import PAGE, cut, leaves, spoil, spoiled, spoilings, zero

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
EVENTS = [f"event {number}" for number in range(500)]


def fill(database: Database) -> None:
    """Of columns that every revision has."""
    about = {"at": NOW, "host": "h1", "vm": None, "severity": Severity.INFO, "kind": "x", "message": "y" * 90}
    with database.writing() as session:
        session.execute(insert(EventRow.__table__), [{"record_id": name, **about} for name in EVENTS])


def events(database: Database) -> list[str]:
    with database.reading() as session:
        return list(session.scalars(select(EventRow.record_id).order_by(EventRow.id)))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("sound") / "equipoise.db"
    database = open_database(f"sqlite:///{file}")
    assert database.upgrade() is None
    fill(database)
    database.close()
    return file


@pytest.fixture
def file(tmp_path: Path, sound: Path) -> Path:
    return Path(shutil.copy(sound, tmp_path))


def opened(file: Path) -> Database:
    return open_database(f"sqlite:///{file}")


def test_of_a_table_with_a_hole_all_else_is_kept_and_the_audit_tells_of_it(file: Path) -> None:
    page = leaves(file, "events")[2]
    broken = spoil(file, zero(page, page + PAGE))
    settings_ = load_settings(None, {}, {"state_dir": str(file.parent)})
    database = open_store(settings_)
    upgrade_store(database)
    kept = events(database)
    assert len(EVENTS) - 60 < len(kept) < len(EVENTS)
    assert kept == [name for name in EVENTS if name in set(kept)]
    with database.reading() as session:
        [told] = list_audit(session, AuditFilter(object_kind="database"), None, 10)
        assert (told.action, told.object) == ("database.recover", "equipoise.db")
        assert int(told.after["kept"].split()[0]) >= len(kept)
        aside = file.with_name(told.after["set_aside"])
    assert aside.read_bytes() == broken
    fresh = "INSERT INTO events (record_id, at, host, severity, kind, message) VALUES ('n', :at, 'h', 'info', 'x', '')"
    with database.writing() as session:
        session.execute(text(fresh), {"at": NOW.replace(tzinfo=None)})
        newest = session.scalar(text("SELECT max(id) FROM events"))
    assert newest == len(EVENTS) + 1, "no number is used again"
    assert database.upgrade() is None, "it is sound"
    database.close()


@pytest.mark.parametrize("how", [zero(0, PAGE), cut(100), lambda _: b"garbage" * 999], ids=["begin", "rest", "other"])
def test_without_its_begin_it_starts_empty(file: Path, how) -> None:
    broken = spoil(file, how)
    database = opened(file)
    damage = database.upgrade()
    assert damage is not None
    assert damage.aside.read_bytes() == broken
    assert events(database) == []
    database.close()


def test_what_lost_its_end_keeps_its_begin(file: Path) -> None:
    spoil(file, cut(file.stat().st_size - 5 * PAGE))
    database = opened(file)
    assert database.upgrade() is not None
    assert len(events(database)) > 100
    database.close()


def test_a_row_with_a_text_that_is_none_is_left_out(file: Path) -> None:
    """It would be an error in every list that it is in."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE events SET message = CAST(x'ff' AS TEXT) WHERE record_id = 'event 7'")
        database.commit()
    database = opened(file)
    assert database.upgrade() is not None
    assert events(database) == [name for name in EVENTS if name != "event 7"]
    database.close()


def test_a_revision_that_is_none_is_damage(file: Path) -> None:
    with closing(sqlite3.connect(file)) as database:
        database.execute("UPDATE alembic_version SET version_num = 'x013'")
        database.commit()
    database = opened(file)
    damage = database.upgrade()
    assert damage is not None
    assert "a row of alembic_version is not understood" in damage.text
    assert events(database) == EVENTS
    database.close()


def test_damage_in_use_is_an_error_that_says_what_to_do_and_the_next_start_does_it(file: Path) -> None:
    page = leaves(file, "events")[2]
    database = opened(file)
    database.upgrade()
    database.close()
    spoil(file, zero(page, page + PAGE))
    with pytest.raises(DatabaseUnavailable, match=r"malformed; restart the manager: it sets the file aside"):
        events(database)
    assert file.with_name("equipoise.db.damaged").exists()
    database.close()
    assert database.upgrade() is not None
    assert not file.with_name("equipoise.db.damaged").exists()
    assert len(events(database)) > len(EVENTS) - 60
    database.close()


def test_managers_that_start_at_once_recover_once(file: Path) -> None:
    page = leaves(file, "events")[2]
    spoil(file, zero(page, page + PAGE))
    found = []
    threads = [threading.Thread(target=lambda: found.append(opened(file).upgrade())) for _ in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(found) == 3
    assert sum(damage is not None for damage in found) == 1


@settings(max_examples=25)
@given(spoils=spoilings)
def test_whatever_the_bytes_are_the_manager_starts(sound: Path, tmp_path_factory, spoils) -> None:
    file = tmp_path_factory.mktemp("any") / "equipoise.db"
    file.write_bytes(spoiled(sound.read_bytes(), spoils))
    database = opened(file)
    database.upgrade()
    events(database)
    fresh = "INSERT INTO events (record_id, at, host, severity, kind, message) VALUES ('n', :at, 'h', 'info', 'x', '')"
    with database.writing() as session:
        session.execute(text(fresh), {"at": NOW.replace(tzinfo=None)})
    database.close()
    with closing(sqlite3.connect(file)) as other:
        assert other.execute("PRAGMA integrity_check").fetchone() == ("ok",)
