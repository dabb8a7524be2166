"""Databases for all tests that want one, of every kind; and how Hypothesis searches."""

from __future__ import annotations

import gc
import itertools
import os
from collections.abc import Callable, Generator, Iterator

import pytest
from hypothesis import settings
from sqlalchemy import text

from manager.store.database import Database, open_database
from manager.store.models import Base
from tests.deadline import NO_TIME_LEFT, left_s, note_left_out
from tests.postgres import PostgresServer, postgres_server

# No deadlines: machines are shared. In continuous integration the same examples each time, so that a red run is about
# the change; elsewhere new ones. Fewer where tests/run found the machine slow.
SLOW_MACHINE = bool(os.environ.get("TESTS_SLOW_MACHINE"))
EXAMPLES = 30 if SLOW_MACHINE else 100
settings.register_profile("anywhere", deadline=None, max_examples=EXAMPLES)
settings.register_profile("ci", deadline=None, derandomize=True, max_examples=EXAMPLES)
settings.load_profile("ci" if "CI" in os.environ else "anywhere")

KINDS = ("sqlite", "postgresql")
RESTARTED = "SELECT setval(quote_ident(sequencename)::regclass, 1, false) FROM pg_sequences WHERE schemaname = 'public'"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="also what takes long: tests/run says which parts have such")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes long, unless it is asked for."""
    if not config.getoption("--long"):
        left_out = [item for item in items if item.get_closest_marker("long")]
        items[:] = [item for item in items if not item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left_out)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Before any of its fixtures is made."""
    if left_s() <= 0:
        pytest.skip(NO_TIME_LEFT)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # one of several processes, whose reports all come to the first
        return
    skipped = terminalreporter.stats.get("skipped", [])
    note_left_out(report.nodeid for report in skipped if NO_TIME_LEFT in str(report.longrepr))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Thousands of tests are made, and kept to the end: the garbage collector need not look at them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.collect()
        gc.freeze()


@pytest.fixture(scope="session")
def thorough(pytestconfig: pytest.Config) -> bool:
    """Whether to try everything everywhere, however long it takes."""
    return bool(pytestconfig.getoption("--long"))


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="session")
def new_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Makes an empty database of a kind."""
    numbers = itertools.count()

    def make(kind: str) -> str:
        if kind == "sqlite":
            return f"sqlite:///{tmp_path_factory.mktemp('sqlite')}/equipoise.db"
        server: PostgresServer = request.getfixturevalue("postgres")
        return server.create(f"equipoise-{next(numbers)}")

    return make


@pytest.fixture(scope="session")
def migrated(new_url: Callable[[str], str]) -> Iterator[Callable[[str], Database]]:
    """The one database of a kind that has its tables already; as if new, because making one takes long."""
    opened: dict[str, Database] = {}

    def get(kind: str) -> Database:
        if kind not in opened:
            opened[kind] = open_database(new_url(kind))
            opened[kind].upgrade()
        with opened[kind].writing() as session:
            if kind == "postgresql":
                # Without triggers: that of the audit refuses it. TRUNCATE makes new files for each table and index, and
                # takes 50 times as long for a few rows.
                emptied = ["SET LOCAL session_replication_role = replica"]
                emptied += [f'DELETE FROM "{name}"' for name in Base.metadata.tables]
                session.connection().exec_driver_sql(";".join((*emptied, RESTARTED)))
            else:
                session.execute(text("INSERT INTO audit_retention (before) VALUES ('9999-01-01 00:00:00')"))
                names = (table.name for table in reversed(Base.metadata.sorted_tables))
                for table in ["sqlite_sequence", "audit", *names]:
                    session.execute(text(f"DELETE FROM {table}"))
        return opened[kind]

    yield get
    for database in opened.values():
        database.close()


@pytest.fixture
def quick_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passwords whose hashes take little time. tests/security has the real ones."""
    monkeypatch.setattr("manager.store.users._METHOD", "scrypt:1024:8:1")


@pytest.fixture(params=KINDS)
def database_url(request: pytest.FixtureRequest, new_url: Callable[[str], str]) -> str:
    """An empty database of each kind."""
    return new_url(request.param)


@pytest.fixture(params=KINDS)
def database(request: pytest.FixtureRequest, migrated: Callable[[str], Database]) -> Database:
    """A migrated database of each kind, with nothing in its tables."""
    return migrated(request.param)
