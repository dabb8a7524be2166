"""Opening databases, and what sessions see of each other."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import String, bindparam, column, func, select, table, text, update

from manager.errors import DatabaseUnavailable, SettingsError
from manager.model.registration import HostSpec
from manager.store import database as store_database
from manager.store.database import Database, open_database
from manager.store.hosts import put_host
from manager.store.models import HostRow
from manager.store.registrations import page

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def register(database: Database, name: str) -> None:
    with database.registering() as session:
        put_host(session, HostSpec(name), NOW, lambda _etag: None)


def test_a_reader_sees_one_state(database: Database) -> None:
    register(database, "a")
    with database.reading() as session:
        assert [row.name for row in page(session, HostRow, None, 9)] == ["a"]
        register(database, "b")
        assert [row.name for row in page(session, HostRow, None, 9)] == ["a"]
    with database.reading() as session:
        assert [row.name for row in page(session, HostRow, None, 9)] == ["a", "b"]


def test_a_reader_changes_nothing(database: Database) -> None:
    with database.reading() as session:
        put_host(session, HostSpec("a"), NOW, lambda _etag: None)
    with database.reading() as session:
        assert page(session, HostRow, None, 9) == []


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("mysql://user:secret@host/db", "use sqlite:///<file> or postgresql://"),
        ("mysql://host/db?user=u&password=secret", "use sqlite:///<file> or postgresql://"),
        ("sqlite://", "use sqlite:///<file>"),
        ("sqlite:///:memory:", "use sqlite:///<file>"),
        ("no url", "Could not parse"),
    ],
)
def test_a_database_of_another_kind_is_refused(url: str, reason: str) -> None:
    with pytest.raises(SettingsError, match="database_url") as refusal:
        open_database(url)
    assert reason in str(refusal.value)
    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "url",
    [
        "sqlite:////nowhere/x.db",
        "postgresql://user:secret@/db?host=/nowhere",
        "postgresql://user@/db?host=/nowhere&password=secret&sslpassword=secret",
    ],
)
def test_a_database_that_does_not_answer_is_named_without_its_password(url: str) -> None:
    database = open_database(url)
    with pytest.raises(DatabaseUnavailable, match="nowhere") as failure:
        database.ping()
    assert "secret" not in str(failure.value)


def test_reading_before_there_are_tables_says_so(database_url: str) -> None:
    database = open_database(database_url)
    with pytest.raises(DatabaseUnavailable, match="tokens"), database.reading() as session:
        session.execute(text("SELECT * FROM tokens"))
    database.close()


def test_a_new_file_that_another_process_prepares_is_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "equipoise.db"
    database = open_database(f"sqlite:///{file}")
    with closing(sqlite3.connect(file, isolation_level=None)) as other, ThreadPoolExecutor(1) as pool:
        other.execute("BEGIN IMMEDIATE")
        other.execute("CREATE TABLE theirs (id INTEGER)")
        answer = pool.submit(database.ping)
        time.sleep(0.1)
        other.execute("COMMIT")
        answer.result()
    database.close()
    with closing(sqlite3.connect(file)) as after:
        assert after.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_file_that_is_no_database_is_said_so(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("not a database, but long enough to be looked at" * 100)
    database = open_database(f"sqlite:///{file}")
    for use in (database.ping, database.upgrade, database.current):
        with pytest.raises(DatabaseUnavailable, match="not a database"):
            use()


@pytest.mark.parametrize("act", ["upgrade", "downgrade"])
def test_an_unknown_revision_is_said_so(database: Database, act: str) -> None:
    with pytest.raises(DatabaseUnavailable, match="nonsense"):
        getattr(database, act)("nonsense")


def test_a_connection_that_the_server_ended_meanwhile_is_made_anew(
    migrated: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = migrated("postgresql")

    def number() -> int:
        with database.asking() as session:
            return int(session.scalar(select(func.pg_backend_pid())) or 0)

    def end(number: int) -> None:
        url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", [number])

    first = number()
    assert number() == first, "the one that was used last"
    end(first)
    monkeypatch.setattr(store_database, "_IDLE_S", -1.0)
    second = number()
    assert second != first
    monkeypatch.setattr(store_database, "_IDLE_S", 60.0)
    assert number() == second
    end(second)
    with pytest.raises(DatabaseUnavailable):
        number()
    assert number() != second


VERSION = (
    update(HostRow.metadata.tables["hosts"])
    .where(HostRow.name == bindparam("host"))
    .values(agent_version=bindparam("given", type_=String()))
)


def versions(database: Database) -> dict[str, str | None]:
    with database.reading() as session:
        return {row.name: row.agent_version for row in page(session, HostRow, None, 9)}


def test_a_single_change_is_kept_and_the_next_transaction_is_one_again(database: Database) -> None:
    register(database, "a")
    assert [database.change(VERSION, {"host": host, "given": "1"}) for host in ("a", "b")] == [1, 0]
    with pytest.raises(LookupError), database.writing() as session:
        session.execute(VERSION, {"host": "a", "given": "2"})
        raise LookupError
    assert versions(database) == {"a": "1"}
    with database.reading() as session:
        page(session, HostRow, None, 9)
        database.change(VERSION, {"host": "a", "given": "3"})
        assert [row.agent_version for row in page(session, HostRow, None, 9)] == ["1"]
    assert versions(database) == {"a": "3"}


def test_a_single_change_that_fails_says_so_and_the_next_one_is_made(
    migrated: Callable[[str], Database], monkeypatch: pytest.MonkeyPatch
) -> None:
    database = migrated("postgresql")
    register(database, "a")
    nowhere = update(table("nowhere", column("x"))).values(x=bindparam("x", type_=String()))
    with pytest.raises(DatabaseUnavailable, match="nowhere") as failure:
        database.change(nowhere, {"x": "secret"})
    assert "secret" not in str(failure.value)
    assert database.change(VERSION, {"host": "a", "given": "1"}) == 1
    monkeypatch.setattr(store_database, "_IDLE_S", 60.0)
    with database.reading() as first, database.reading() as second:  # two connections at least
        page(first, HostRow, None, 9), page(second, HostRow, None, 9)
    url = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
    others = "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"{others} AND datname = current_database()")
    with pytest.raises(DatabaseUnavailable):
        database.change(VERSION, {"host": "a", "given": "2"})
    with database.reading() as first, database.reading() as second:
        assert [page(session, HostRow, None, 9)[0].agent_version for session in (first, second)] == ["1", "1"]
    assert database.change(VERSION, {"host": "a", "given": "3"}) == 1


def test_a_single_change_without_a_server_names_it_without_its_password() -> None:
    database = open_database("postgresql://user:secret@/db?host=/nowhere")
    with pytest.raises(DatabaseUnavailable, match="nowhere") as failure:
        database.change(VERSION, {"host": "a", "given": "1"})
    assert "secret" not in str(failure.value)


def connected(database: Database) -> dict[str, str]:
    """What libpq was told for a connection of its."""
    with database.asking() as session:
        connection = session.connection().connection.driver_connection
        assert isinstance(connection, psycopg.Connection)
        return connection.info.get_parameters()


def test_a_server_that_vanished_times_out(new_url: Callable[[str], str]) -> None:
    url = new_url("postgresql")
    for given, wanted in (("", "20000"), ("&tcp_user_timeout=7000", "7000")):
        database = open_database(f"{url}{given}")
        parameters = connected(database)
        assert (parameters["tcp_user_timeout"], parameters["keepalives_idle"]) == (wanted, "10")
        database.close()


def test_options_of_the_url_reach_the_server_beside_our_own(new_url: Callable[[str], str]) -> None:
    url = new_url("postgresql")
    plain = open_database(url)
    with plain.writing() as session:
        session.execute(text("CREATE SCHEMA equipoise"))
    plain.close()
    database = open_database(f"{url}&options=-csearch_path%3Dequipoise%20-ctimezone%3DEurope/Paris")
    database.upgrade()
    with database.reading() as session:
        schemas = session.scalars(text("SELECT schemaname FROM pg_tables WHERE tablename = 'hosts'")).all()
        zone, wait = (session.scalar(text(f"SHOW {name}")) for name in ("timezone", "lock_timeout"))
    database.close()
    assert (schemas, str(zone).lower(), wait) == (["equipoise"], "utc", "15s")


def test_of_several_servers_the_one_that_takes_writes_serves(new_url: Callable[[str], str], tmp_path: Path) -> None:
    url = new_url("postgresql")
    folder = url.partition("host=")[2]
    database = open_database(url.replace(folder, f"{tmp_path},{folder}&target_session_attrs=read-write"))
    database.upgrade()
    register(database, "a")
    assert connected(database)["host"] == folder
    database.close()
