"""Backups of both kinds of database: one state while others write, and back; and what is refused."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from click.testing import CliRunner
from sqlalchemy import text

from manager.cli import main
from manager.errors import BackupError
from manager.store.backup import back_up, inspect, restore
from manager.store.database import Database, open_database
from tests.db.test_migrations import revisions

EVENT = "INSERT INTO events (record_id, at, host, severity, kind, message) VALUES (:id, :at, :host, 'info', 'x', '')"
MOMENT = "2026-03-01 12:00:00+00:00"


def add(database: Database, number: int) -> None:
    """Two rows in one transaction: a state has both or none."""
    with database.writing() as session:
        for half in "ab":
            session.execute(text(EVENT), {"id": f"{number}{half}", "at": MOMENT, "host": half})


def counted(database: Database) -> tuple[int, int]:
    with database.reading() as session:
        count = "SELECT count(*) FROM events WHERE host = :host"
        return tuple(session.scalar(text(count), {"host": half}) for half in "ab")  # type: ignore[return-value]


@contextmanager
def written_to(database: Database) -> Iterator[Callable[[], int]]:
    """Somebody writes all the time; how many writes were acknowledged by now is told."""
    stop, done = threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            add(database, 1_000_000 + done[0])
            done[0] += 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield lambda: done[0]
    finally:
        stop.set()
        writer.join()


def quiet(_text: str) -> None:
    pass


@pytest.fixture
def filled(database_url: str) -> Iterator[Database]:
    database = open_database(database_url)
    database.upgrade()
    for number in range(50):
        add(database, number)
    yield database
    database.close()


def test_a_backup_is_one_state_with_all_that_was_acknowledged_before_and_comes_back(
    filled: Database, tmp_path: Path, new_url: Callable[[str], str]
) -> None:
    said: list[str] = []
    with written_to(filled) as acknowledged:
        while acknowledged() < 5:
            pass
        before = acknowledged()
        made = back_up(filled, tmp_path / "backup", said.append)
        after = acknowledged() + 1
    assert made.path.stat().st_mode & 0o777 == 0o600
    assert (made.revision, made.size_bytes) == (revisions()[-1], made.path.stat().st_size)
    assert len(said) == 2
    assert [one.name for one in tmp_path.iterdir() if one.suffix == ".part"] == []
    other = open_database(new_url(made.kind))
    restore(other, made.path, quiet)
    one, same = counted(other)
    assert one == same, "no half of a transaction"
    assert 50 + before <= one <= 50 + after
    add(other, 77)  # numbers go on where they were
    with pytest.raises(BackupError, match="is not empty: --force replaces"):
        restore(other, made.path, quiet)
    assert counted(other) == (one + 1, one + 1)
    restore(other, made.path, quiet, force=True)
    assert counted(other) == (one, one)
    assert other.current() == revisions()[-1]
    other.close()


def test_a_backup_of_sqlite_is_one_file_from_anywhere(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'equipoise.db'}")
    database.upgrade()
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    made = back_up(database, shelf / "backup", quiet)
    database.close()
    assert [one.name for one in shelf.iterdir()] == ["backup"]
    inspect(made.path)  # as of a medium that cannot be written: nothing is made beside it
    assert [one.name for one in shelf.iterdir()] == ["backup"]


def test_an_older_one_is_migrated(database_url: str, tmp_path: Path) -> None:
    revision = revisions()[0]
    database = open_database(database_url)
    database.upgrade(revision)
    add(database, 1)
    made = back_up(database, tmp_path / "backup", quiet)
    assert made.revision == revision
    database.upgrade()
    add(database, 2)
    restore(database, made.path, quiet, force=True)
    assert (counted(database), database.current()) == ((1, 1), revisions()[-1])
    database.close()


@pytest.mark.parametrize("schema", ["equipoise", 'Their "own"'])
def test_tables_of_a_schema_of_their_own_come_back(new_url: Callable[[str], str], tmp_path: Path, schema: str) -> None:
    urls = {name: new_url("postgresql") for name in ("present", "new")}
    quoted = '"' + schema.replace('"', '""') + '"'
    for url in urls.values():
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET search_path = {quoted}')
    with psycopg.connect(urls["present"], autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {quoted}")
    present, new = map(open_database, urls.values())
    present.upgrade()
    add(present, 1)
    made = back_up(present, tmp_path / "backup", quiet)
    add(present, 2)
    for database in (present, new):
        restore(database, made.path, quiet, force=True)
        assert counted(database) == (1, 1)
        database.close()


def test_a_newer_one_is_refused_and_nothing_is_changed(filled: Database, tmp_path: Path) -> None:
    made = back_up(filled, tmp_path / "old", quiet)
    with filled.writing() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    newer = back_up(filled, tmp_path / "newer", quiet)
    with pytest.raises(BackupError, match=r"is of a newer version \(revision 9999\): upgrade Equipoise first"):
        restore(filled, newer.path, quiet, force=True)
    assert counted(filled) == (50, 50)
    restore(filled, made.path, quiet, force=True)
    assert filled.current() == revisions()[-1]


def test_what_is_no_backup_or_damaged_is_refused(filled: Database, tmp_path: Path) -> None:
    made = back_up(filled, tmp_path / "backup", quiet)
    content = made.path.read_bytes()
    for number, bad in enumerate((b"", b"x" * 5000, content[: len(content) // 2], content[:40])):
        path = tmp_path / str(number)
        path.write_bytes(bad)
        with pytest.raises(BackupError, match="is no backup"):
            restore(filled, path, quiet, force=True)
    with pytest.raises(BackupError, match="missing cannot be read: No such file or directory"):
        inspect(tmp_path / "missing")
    with pytest.raises(BackupError, match="exists: choose another name"):
        back_up(filled, made.path, quiet)
    with pytest.raises(BackupError, match="cannot be written"):
        back_up(filled, tmp_path / "no/such/folder", quiet)
    assert counted(filled) == (50, 50)


def test_one_of_the_other_kind_is_refused(new_url: Callable[[str], str], tmp_path: Path) -> None:
    databases = [open_database(new_url(kind)) for kind in ("sqlite", "postgresql")]
    for database in databases:
        database.upgrade()
    one, other = databases
    for database, wrong in ((one, other), (other, one)):
        made = back_up(database, tmp_path / str(id(database)), quiet)
        with pytest.raises(BackupError, match=f"is of {made.kind}, and the database of"):
            restore(wrong, made.path, quiet, force=True)
        database.close()


def test_a_restore_that_fails_leaves_all_as_it_was(filled: Database, tmp_path: Path, monkeypatch) -> None:
    made = back_up(filled, tmp_path / "backup", quiet)
    if made.kind == "sqlite":
        monkeypatch.setattr("manager.store.backup._copy", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    else:
        real = subprocess.run

        def spoil(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
            script = next((one for one in command if one.endswith("restore.sql") and command[0] == "psql"), "")
            if script:
                with Path(script.removeprefix("--file=")).open("a") as file:
                    file.write("\nSELECT 1 / 0;\n")
            return real(command, **options)  # type: ignore[call-overload, no-any-return]

        monkeypatch.setattr("manager.store.backup.subprocess.run", spoil)
    add(filled, 99)
    with pytest.raises(BackupError):
        restore(filled, made.path, quiet, force=True)
    assert counted(filled) == (51, 51)


def test_without_the_programs_it_says_what_to_install(new_url, tmp_path: Path, monkeypatch) -> None:
    database = open_database(new_url("postgresql"))
    with pytest.raises(BackupError, match="nothing to back up"):
        back_up(database, tmp_path / "backup", quiet)
    database.upgrade()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BackupError, match=r"pg_dump is not there: install postgresql-client \(Debian"):
        back_up(database, tmp_path / "backup", quiet)
    assert list(tmp_path.iterdir()) == []
    database.close()


@pytest.mark.parametrize(
    "given", [lambda url: f"{url}&password=s3cret", lambda url: url.replace("tester@", "tester:s3cret@")]
)
def test_other_users_do_not_see_the_password(
    new_url: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Callable[[str], str]
) -> None:
    """Neither of the place for it in a URL, nor as a parameter: arguments of a process are public."""
    url, said = new_url("postgresql"), tmp_path / "said"
    open_database(url).upgrade()
    program = tmp_path / "pg_dump"
    program.write_text(f'#!/bin/sh\necho "$PGPASSWORD" >{said}; echo "$@" >>{said}; exit 1\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    database = open_database(given(url))
    with pytest.raises(BackupError, match="pg_dump failed"):
        back_up(database, tmp_path / "backup", quiet)
    password, arguments = said.read_text().splitlines()
    assert password == "s3cret"
    assert "--dbname=postgresql://tester@" in arguments
    assert "s3cret" not in arguments
    database.close()


def test_other_users_do_not_see_the_password_of_a_key(
    new_url: Callable[[str], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches the program by a file that its owner alone reads, and which is gone at the end."""
    url, said = new_url("postgresql"), tmp_path / "said"
    open_database(url).upgrade()
    program = tmp_path / "pg_dump"
    program.write_text(
        f'#!/bin/sh\nstat -c %a "$PGSERVICEFILE" >{said}; echo "$PGSERVICEFILE" "$@" >>{said}\n'
        f'cat "$PGSERVICEFILE" >>{said}; exec /usr/bin/pg_dump "$@"\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    database = open_database(f"{url}&sslpassword=s3cret")
    back_up(database, tmp_path / "backup", quiet)
    mode, arguments, *content = said.read_text().splitlines()
    assert (mode, content) == ("600", ["[equipoise]", "sslpassword=s3cret"])
    assert "s3cret" not in arguments
    assert not Path(arguments.split()[0]).exists()
    database.close()
    both = open_database(f"{url}&sslpassword=s3cret&service=mine")
    with pytest.raises(BackupError, match="has both `service` and `sslpassword`"):
        restore(both, tmp_path / "backup", quiet, force=True, with_access=True)
    both.close()


def test_tables_of_others_in_the_same_database_are_left_alone(new_url: Callable[[str], str], tmp_path: Path) -> None:
    """Also where they are called like ours, as `users` often is, and their schema is older."""
    url = new_url("postgresql")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE SCHEMA another")
        connection.execute("CREATE TABLE another.users AS SELECT 1 AS id")
        connection.execute("CREATE SCHEMA equipoise")
        connection.execute(f'ALTER DATABASE "{connection.info.dbname}" SET search_path = equipoise')
    database = open_database(url)
    database.upgrade()
    made = back_up(database, tmp_path / "backup", quiet)
    restore(database, made.path, quiet, force=True)
    database.close()
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT id FROM another.users").fetchall() == [(1,)]


def test_the_commands(filled: Database, database_url: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> tuple[int, str, str]:
        result = CliRunner().invoke(main, [*arguments, "--state-dir", str(tmp_path), "--database-url", database_url])
        return result.exit_code, result.stdout, result.stderr

    file = tmp_path / "backup"
    status, out, err = run("backup", "--json", str(file))
    told = json.loads(out)
    assert (status, told["file"], told["revision"]) == (0, str(file), revisions()[-1])
    assert "reading it back" in err
    add(filled, 99)
    assert run("restore", str(file))[0] == 1
    status, out, err = run("restore", "--force", str(file))
    assert (status, out.startswith(f"restored: {file}, ")) == (0, True), err
    assert counted(filled) == (50, 50)
