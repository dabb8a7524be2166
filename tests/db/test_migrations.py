"""Migrations: up, down, by several processes at once, and equal to the models."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import inspect, select, text

from manager.errors import DatabaseUnavailable
from manager.store.database import Database, open_database
from manager.store.models import Base, VmStatusRow


def revisions() -> list[str]:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    return [script.revision for script in reversed(list(ScriptDirectory.from_config(config).walk_revisions()))]


def tables(database: Database) -> set[str]:
    with database.reading() as session:
        return set(inspect(session.connection()).get_table_names()) - {"alembic_version"}


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
        context = MigrationContext.configure(session.connection(), opts={"compare_server_default": True})
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


def test_a_failed_migration_leaves_nothing_behind(database_url: str) -> None:
    database = open_database(database_url)
    with database.writing() as session:
        session.execute(text("CREATE TABLE windows (id INTEGER)"))  # in the way of the migration, after other tables
    with pytest.raises(DatabaseUnavailable, match="cannot be migrated"):
        database.upgrade()
    assert tables(database) == {"windows"}
    database.close()


def test_windows_of_before_are_those_that_were_posted(database_url: str) -> None:
    database = open_database(database_url)
    database.upgrade("0001")
    moment = "'2026-03-01 12:00:00'"
    application = "INSERT INTO applications (name, version, created_at, updated_at)"
    with database.writing() as session:
        for statement in (
            f"{application} VALUES ('gone', 1, {moment}, {moment})",
            "DELETE FROM applications",
            f"{application} VALUES ('shop', 1, {moment}, {moment})",
            "INSERT INTO windows (application_id, slot, start_at, end_at, count, buckets)"
            f" SELECT id, {moment}, {moment}, {moment}, 7, '{{\"500\": 7}}' FROM applications",
        ):
            session.execute(text(statement))
    database.upgrade("0002")
    with database.reading() as session:
        assert session.execute(text("SELECT origin, requests, ready, count FROM windows")).all() == [("", 7, None, 7)]
        assert session.execute(text("SELECT sharing, sources FROM applications")).all() == [(None, None)]
    with database.writing() as session:
        session.execute(
            text(
                "INSERT INTO windows (application_id, slot, origin, start_at, end_at, count, buckets)"
                f" SELECT id, {moment}, 'kvm1', {moment}, {moment}, 3, '{{}}' FROM applications"
            )
        )
    database.downgrade("0001")
    with database.writing() as session:
        assert session.execute(text("SELECT count FROM windows")).scalars().all() == [7]
        assert session.execute(text("SELECT count(*) FROM applications WHERE latest_from IS NOT NULL")).scalar() == 1
        session.execute(text("DELETE FROM applications"))
        session.execute(text(f"{application} VALUES ('x', 1, {moment}, {moment})"))
        assert session.execute(text("SELECT id FROM applications")).scalar() == 3, "no id is used again"
    database.close()


def test_decisions_about_a_host_itself_are_lost_on_the_way_down_and_no_others(database_url: str) -> None:
    database = open_database(database_url)
    database.upgrade("0003")
    moment = "'2026-03-01 12:00:00'"
    columns = "record_id, at, host, vm, knob, knob_index, before, after, reason, policy, mode, outcome, detail"
    rest = "'', '', '', 'p', 'enforce', 'applied', ''"
    registered = (
        f"INSERT INTO {{}} (name, version, created_at, updated_at, {{}}) VALUES ('a', 1, {moment}, {moment}, {{}})"
    )
    with database.writing() as session:
        for statement in (
            f"INSERT INTO decisions ({columns}) VALUES ('1', {moment}, 'h', 'web', 'weight', 0, {rest})",
            f"INSERT INTO decisions ({columns}) VALUES ('2', {moment}, 'h', NULL, 'irq_affinity', 40, {rest})",
            registered.format("hosts", "mode, policy, pinning", "'enforce', 'p', true"),
            registered.format("vms", "vm_class, cpus, max_pcpus", "'batch', '1-2', 1.5"),
        ):
            session.execute(text(statement))
        assert session.execute(text("SELECT batch_idle, adoptions FROM hosts")).all() == [(False, 0)]
    database.downgrade("0002")
    with database.reading() as session:
        assert session.execute(text("SELECT record_id FROM decisions")).scalars().all() == ["1"]
        assert session.execute(text("SELECT name FROM vms")).scalars().all() == ["a"]
    database.upgrade("0003")
    with database.reading() as session:
        assert session.execute(text("SELECT cpus, mode, adoptions FROM vms")).all() == [(None, None, 0)]
    database.close()


def test_scheduling_comes_as_left_alone_and_goes_with_what_was_decided_of_it(database_url: str) -> None:
    database = open_database(database_url)
    database.upgrade("0007")
    moment = "'2026-03-01 12:00:00'"
    columns = "record_id, at, host, vm, knob, knob_index, before, after, reason, policy, mode, outcome, detail"
    rest = "0, '', '', '', 'p', 'enforce', 'applied', ''"
    with database.writing() as session:
        values = f"'a', 'critical', 1, {moment}, {moment}"
        session.execute(text(f"INSERT INTO vms (name, vm_class, version, created_at, updated_at) VALUES ({values})"))
    database.upgrade("0008")
    with database.writing() as session:
        assert session.execute(text("SELECT scheduling FROM vms")).all() == [(None,)]
        for number, knob in enumerate(("slice", "scheduling", "rt_runtime", "vcpu_rt_runtime")):
            values = f"'{number}', {moment}, 'h', 'a', '{knob}', {rest}"
            session.execute(text(f"INSERT INTO decisions ({columns}) VALUES ({values})"))
    database.downgrade("0007")
    with database.reading() as session:
        assert session.execute(text("SELECT knob FROM decisions")).scalars().all() == ["slice"]
        assert session.execute(text("SELECT name FROM vms")).scalars().all() == ["a"]
    database.close()


def test_the_cache_comes_undivided_and_goes_with_what_was_decided_of_it(database_url: str) -> None:
    database = open_database(database_url)
    database.upgrade("0008")
    moment = "'2026-03-01 12:00:00'"
    columns = "record_id, at, host, vm, knob, knob_index, before, after, reason, policy, mode, outcome, detail"
    rest = "0, '', '', '', 'p', 'enforce', 'applied', ''"
    with database.writing() as session:
        values = f"'h', 'enforce', 'fair', true, 1, {moment}, {moment}"
        columns_of_hosts = "name, mode, policy, pinning, version, created_at, updated_at"
        session.execute(text(f"INSERT INTO hosts ({columns_of_hosts}) VALUES ({values})"))
        values = f"'shop', 1, {moment}, {moment}"
        session.execute(text(f"INSERT INTO applications (name, version, created_at, updated_at) VALUES ({values})"))
    database.upgrade("0009")
    with database.writing() as session:
        assert session.execute(text("SELECT cache, cache_mount FROM hosts")).all() == [("off", False)]
        assert session.execute(text("SELECT cache FROM applications")).all() == [(None,)]
        for number, knob in enumerate(("slice", "cache_ways", "cache_group")):
            values = f"'{number}', {moment}, 'h', 'a', '{knob}', {rest}"
            session.execute(text(f"INSERT INTO decisions ({columns}) VALUES ({values})"))
    database.upgrade("0011")
    with database.writing() as session:
        assert session.execute(text("SELECT bandwidth_warning FROM hosts")).scalars().all() == [0.9]
        session.execute(text("UPDATE hosts SET bandwidth_warning = 0.5"))
    database.downgrade("0008")
    with database.reading() as session:
        assert session.execute(text("SELECT knob FROM decisions")).scalars().all() == ["slice"]
        assert session.execute(text("SELECT name FROM hosts")).scalars().all() == ["h"]
    database.close()


def test_statuses_keep_their_shares_there_and_back(database_url: str) -> None:
    database = open_database(database_url)
    database.upgrade("0009")
    body = {"vm": "web", "cpu_share": 0.25, "run_delay_share": 0.5, "knobs": []}
    moment = "'2026-03-01 12:00:00.000000'"
    columns = "id, name, mode, policy, pinning, version, created_at, updated_at"
    with database.writing() as session:
        values = f"1, 'h', 'enforce', 'fair', true, 1, {moment}, {moment}"
        session.execute(text(f"INSERT INTO hosts ({columns}) VALUES ({values})"))
        insert = text(f"INSERT INTO vm_status (vm, host_id, at, body) VALUES ('web', 1, {moment}, :body)")
        session.execute(insert, {"body": json.dumps(body)})
    database.upgrade("0010")
    with database.reading() as session:
        [found] = session.scalars(select(VmStatusRow.json_text()))
        assert json.loads(found) == body
    database.downgrade("0009")
    with database.reading() as session:
        assert json.loads(session.scalar(text("SELECT body FROM vm_status")) or "") == body
    database.close()
