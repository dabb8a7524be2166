"""Migrations: up, down, by several processes at once, and equal to the models."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, text

from manager.errors import DatabaseUnavailable
from manager.store.database import Database, open_database
from manager.store.day_partitions import partition_names
from manager.store.models import Base


def revisions() -> list[str]:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    return [script.revision for script in reversed(list(ScriptDirectory.from_config(config).walk_revisions()))]


def tables(database: Database) -> set[str]:
    with database.reading() as session:
        connection = session.connection()
        return set(inspect(connection).get_table_names()) - {"alembic_version"} - partition_names(connection)


def test_every_revision_goes_up_and_down_and_up_again(database_url: str) -> None:
    database = open_database(database_url)
    assert database.current() is None
    for revision in revisions():
        database.upgrade(revision)
        assert database.current() == revision
    assert tables(database) == set(Base.metadata.tables)
    for revision in [*reversed(revisions()[:-1]), "base"]:
        database.downgrade(revision)
        assert database.current() == (None if revision == "base" else revision)
    assert tables(database) == set()
    database.upgrade()
    assert database.current() == revisions()[-1]
    assert tables(database) == set(Base.metadata.tables)
    database.close()


def test_the_models_are_what_the_migrations_make(database: Database) -> None:
    with database.reading() as session:
        connection = session.connection()
        parts = partition_names(connection)
        options = {
            "compare_server_default": True,
            "include_name": lambda name, kind, _parents: kind != "table" or name not in parts,
        }
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, Base.metadata) == []


def test_upgrading_twice_changes_nothing(database: Database) -> None:
    database.upgrade()
    assert database.current() == revisions()[-1]


def test_processes_that_start_at_once_migrate_once(database_url: str) -> None:
    start_s = time.time() + 1.5  # when all of them have imported what they need
    script = (
        "import sys, time; from manager.store.database import open_database; "
        "time.sleep(max(0, float(sys.argv[2]) - time.time())); database = open_database(sys.argv[1]); "
        "database.upgrade(); print(database.current()); database.close()"
    )
    command = [sys.executable, "-c", script, database_url, str(start_s)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: subprocess.run(command, capture_output=True, text=True, check=False), range(4)))
    assert [one.stderr for one in done] == [""] * 4
    assert {one.stdout.strip() for one in done} == {revisions()[-1]}


@pytest.mark.parametrize("migrate", [Database.upgrade, lambda database: database.downgrade("0001")])
def test_tables_of_a_newer_version_are_refused(database: Database, migrate: Callable[[Database], object]) -> None:
    with database.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    try:
        with pytest.raises(
            DatabaseUnavailable, match=r"is of a newer version \(revision 9999\): upgrade Equipoise first"
        ):
            migrate(database)
        assert database.current() == "9999"
    finally:
        with database.writing() as session:
            session.execute(text("UPDATE alembic_version SET version_num = :newest"), {"newest": revisions()[-1]})


def test_a_failed_migration_leaves_nothing_behind(database_url: str) -> None:
    database = open_database(database_url)
    with database.writing() as session:
        session.execute(text("CREATE TABLE windows (id INTEGER)"))  # in the way of the migration, after other tables
    with pytest.raises(DatabaseUnavailable, match="cannot be migrated"):
        database.upgrade()
    assert tables(database) == {"windows"}
    database.close()
