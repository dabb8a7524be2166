"""The manager's database in one file and back, while it is in use: a SQLite file, or PostgreSQL's dump.

Either is one state of the database, and contains the revision of its tables.

A backup does not know of tokens that were revoked, or of users that were removed or have a smaller role or another
password since. So access stays as it is in the database that is replaced, unless it is restored explicitly.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Table, delete, insert, select
from sqlalchemy import inspect as inspect_tables

from manager.errors import BackupError, DatabaseUnavailable
from manager.private import make_file
from manager.sqlite_files import check_pages, read_only
from manager.store.access_models import SessionRow, TokenRow, UserRow
from manager.store.database import Database, is_known
from manager.store.host_models import JoinTokenRow
from manager.store.models import Base

_SQLITE, _POSTGRESQL = b"SQLite format 3\0", b"PGDMP"
_PACKAGE = "postgresql-client (Debian, Ubuntu) or postgresql (RHEL, Fedora)"
_MADE = """
DO $$ BEGIN
    IF to_regnamespace(quote_ident('{0}')) IS NULL THEN EXECUTE format('CREATE SCHEMA %I', '{0}'); END IF;
END $$;
"""


_EMPTY = """
DO $$ DECLARE one record; BEGIN
    FOR one IN SELECT format('%I.%I', schemaname, tablename) AS name FROM pg_tables WHERE schemaname = current_schema()
    LOOP EXECUTE 'DROP TABLE IF EXISTS ' || one.name || ' CASCADE'; END LOOP;
    FOR one IN SELECT oid::regprocedure::text AS name FROM pg_proc AS proc
        WHERE pronamespace = quote_ident(current_schema())::regnamespace
        AND NOT EXISTS (SELECT 1 FROM pg_depend WHERE objid = proc.oid AND deptype = 'e')
    LOOP EXECUTE 'DROP ROUTINE ' || one.name || ' CASCADE'; END LOOP;
    FOR one IN SELECT oid::regtype::text AS name FROM pg_type
        WHERE typtype = 'e' AND typnamespace = quote_ident(current_schema())::regnamespace
    LOOP EXECUTE 'DROP TYPE ' || one.name || ' CASCADE'; END LOOP;
END $$;
"""


_CLOSED = """
DO $$ DECLARE name text := format('%I.%I', '{0}', '{1}'); BEGIN
    IF to_regclass(name) IS NOT NULL THEN EXECUTE 'DELETE FROM ' || name; END IF;
END $$;
"""


_TABLES: tuple[type[Base], ...] = (TokenRow, UserRow, JoinTokenRow)
Say = Callable[[str], None]
Access = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows by table."""


class _ProgramFailed(BackupError):
    """One of PostgreSQL's programs failed."""


@dataclass(frozen=True, slots=True)
class Backup:
    """A file with a database in it: of which kind that is, the revision of its tables, and how long the file is."""

    path: Path
    kind: str
    revision: str
    size_bytes: int


def back_up(database: Database, path: Path, say: Say) -> Backup:
    """Write the database to a new file that its owner alone can read. Raises BackupError, DatabaseUnavailable."""
    if path.exists():
        raise BackupError(f"{path} exists: choose another name, or remove it")
    if database.current() is None:
        raise BackupError("there is nothing to back up: the database has no tables")
    part = path.with_name(path.name + ".part")
    try:
        part.unlink(missing_ok=True)
        make_file(part)
        if database.file is not None:
            say(f"copying {database.file} ({database.file.stat().st_size / 1e6:,.1f} MB)")
            _copy(database.file, part)
            with closing(sqlite3.connect(part)) as there:  # all in one file, which is read where nobody can write
                there.execute("PRAGMA journal_mode = DELETE")
        else:
            say("running pg_dump")
            _run(database.url, "pg_dump", "--format=custom", "--no-owner", "--no-privileges", f"--file={part}")
        with part.open("rb") as file:
            os.fsync(file.fileno())
        say("reading it back")
        read_back = inspect(part)
        part.rename(path)
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"the backup {path} cannot be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    return Backup(path, read_back.kind, read_back.revision, read_back.size_bytes)


def restore(database: Database, path: Path, say: Say, *, force: bool = False, with_access: bool = False) -> Backup:
    """Restore the state of the file, and bring its tables to the newest revision.

    Tokens and users stay as they are in the database that is replaced, unless ``with_access``; sessions always end.

    Raises BackupError, before anything is changed: for a file of the other kind of database, of a newer version, or
    that is no backup; without ``force`` for a database that has tables. Raises DatabaseUnavailable.
    """
    backup = inspect(path)
    kind = "postgresql" if database.file is None else "sqlite"
    if backup.kind != kind:
        raise BackupError(f"{path} is of {backup.kind}, and the database of {kind}")
    if not is_known(backup.revision):
        raise BackupError(f"{path} is of a newer version (revision {backup.revision}): upgrade Equipoise first")
    if not force and database.current() is not None:
        raise BackupError("the database is not empty: --force replaces all that is in it")
    access = None if with_access else _access(database, say)
    say(f"restoring revision {backup.revision}")
    try:
        if database.file is not None:
            _restore_file(path, database, database.file, access, say)
        else:
            _restore_dump(path, database.url, revives=with_access)
            say("upgrading the tables")
            database.upgrade()
            _admit(database, access, say)
    except (OSError, sqlite3.Error) as error:
        raise BackupError(f"{path} cannot be restored: {error}") from error
    return backup


def _access(database: Database, say: Say) -> Access:
    """Who has access now, also in tables of an older version; nobody where it cannot be read, as that can be mended."""
    access: dict[str, Sequence[Mapping[str, Any]]] = {}
    try:
        with database.reading() as session:
            inspector = inspect_tables(session.connection())
            existing = {*inspector.get_table_names()}
            for table in map(_table, _TABLES):
                if table.name in existing:
                    names = {column["name"] for column in inspector.get_columns(table.name)} - {"id"}
                    columns = [column for column in table.columns if column.name in names]
                    access[table.name] = [dict(row) for row in session.execute(select(*columns)).mappings()]
    except DatabaseUnavailable as error:
        say(f"tokens and users of the present database cannot be read, so there will be none: {error}")
        return {}
    return access


def _admit(database: Database, access: Access | None, say: Say) -> None:
    """End all sessions, and let only those have access that had it; None: those of the backup. In one transaction."""
    with database.writing() as session:
        session.execute(delete(SessionRow))
        if access is None:
            return
        for table in map(_table, _TABLES):
            session.execute(delete(table))
            if rows := access.get(table.name):
                session.execute(insert(table), [dict(row) for row in rows])
    stay = ", ".join(
        f"{len(access.get(table.name, ()))} {table.name.replace('_', ' ')}" for table in map(_table, _TABLES)
    )
    say(
        f"access is as before this restore: {stay}; all sessions ended. Who needs more gets it anew: `equipoise user"
        " create`, `equipoise token create`, and for hosts `equipoise token create --join`; or restore --with-access"
    )


def _table(row: type[Base]) -> Table:
    table = row.__table__
    if not isinstance(table, Table):
        raise TypeError(f"{row} is no table")
    return table


def inspect(path: Path) -> Backup:
    """The content of a file. Raises BackupError where it is no backup, or a damaged one."""
    try:
        with path.open("rb") as file:
            begin = file.read(16)
    except OSError as error:
        raise BackupError(f"{path} cannot be read: {error.strerror}") from error
    try:
        if begin == _SQLITE:
            with closing(read_only(path)) as source:
                check_pages(source)
                [revision] = source.execute("SELECT version_num FROM alembic_version").fetchone()
            return Backup(path, "sqlite", str(revision), path.stat().st_size)
        if begin.startswith(_POSTGRESQL):
            revision = _copied_revision(path)[1]
            _run(None, "pg_restore", f"--file={os.devnull}", str(path))  # to its end
            return Backup(path, "postgresql", revision, path.stat().st_size)
    except (OSError, sqlite3.Error, ValueError, TypeError, StopIteration, IndexError, _ProgramFailed) as error:
        raise BackupError(f"{path} is no backup, or a damaged one: {error}") from error
    raise BackupError(f"{path} is no backup")


def _copied_revision(path: Path) -> Sequence[str]:
    """Of a dump the lines that copy the revision: into which table, and itself. Raises StopIteration, BackupError."""
    text = _run(None, "pg_restore", "--data-only", "--table=alembic_version", "--file=-", str(path))
    lines = text.splitlines()
    return lines[next(at for at, line in enumerate(lines) if line.startswith("COPY ")) :]


def _schema(path: Path) -> str:
    """The schema of a dump's tables."""
    name = _copied_revision(path)[0].removeprefix("COPY ").partition(".alembic_version ")[0]
    return name[1:-1].replace('""', '"') if name.startswith('"') else name


def _copy(source: Path, target: Path) -> None:
    """One state of a file of SQLite, whoever writes to it meanwhile; of ``target`` all at once or nothing."""
    with closing(sqlite3.connect(source, timeout=15)) as here, closing(sqlite3.connect(target, timeout=15)) as there:
        here.backup(there)


def _restore_file(path: Path, database: Database, file: Path, access: Access | None, say: Say) -> None:
    with tempfile.TemporaryDirectory(dir=file.parent, prefix="restore-") as folder:
        copy = Path(folder) / "equipoise.db"
        shutil.copyfile(path, copy)
        say("upgrading the tables")
        migrated = Database(database.url.set(database=str(copy)), 1)
        migrated.upgrade()
        _admit(migrated, access, say)
        migrated.close()
        _copy(copy, file)


def _restore_dump(path: Path, url: URL, *, revives: bool) -> None:
    """In one transaction: where anything fails, all is as before.

    Unless it ``revives`` access, nobody has any at its end, so that being killed then lets nobody in.
    """
    with tempfile.TemporaryDirectory() as folder:
        empty, script = Path(folder) / "empty.sql", Path(folder) / "restore.sql"
        schema = _schema(path)
        quoted = schema.replace("'", "''")
        empty.write_text(_MADE.format(quoted) + _EMPTY)
        # Without the schema itself, which mostly exists.
        _run(None, "pg_restore", "--no-owner", "--no-privileges", f"--schema={schema}", f"--file={script}", str(path))
        options = ("--quiet", "--no-psqlrc", "--single-transaction", "--set=ON_ERROR_STOP=1", "--output=" + os.devnull)
        closed = Path(folder) / "closed.sql"
        tables: tuple[type[Base], ...] = (SessionRow,) if revives else (SessionRow, *_TABLES)
        closed.write_text("\n".join(_CLOSED.format(quoted, table.__tablename__) for table in tables))
        _run(url, "psql", *options, f"--file={empty}", f"--file={script}", f"--file={closed}")


def _run(url: URL | None, program: str, *arguments: str) -> str:
    """The output of a program of PostgreSQL's. Raises BackupError."""
    with tempfile.TemporaryDirectory() as folder:
        variables = dict(os.environ)
        if url is not None:
            arguments = (f"--dbname={_without_secrets(url, variables, Path(folder))}", *arguments)
        try:
            done = subprocess.run([program, *arguments], env=variables, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise BackupError(f"{program} is not there: install {_PACKAGE}") from None
    if done.returncode:
        raise _ProgramFailed(f"{program} failed: {done.stderr.strip()}")
    return done.stdout


def _without_secrets(url: URL, variables: dict[str, str], folder: Path) -> str:
    """A URL for arguments, which other users see. Its secrets go into environment ``variables`` and a private file.

    A key's password has no variable of its own, only a place in a service file:
    https://www.postgresql.org/docs/current/libpq-pgservice.html. Raises BackupError where the URL names one already.
    """
    if password := url.query.get("password", url.password):
        variables["PGPASSWORD"] = str(password)
    query = dict(url.difference_update_query(("password", "sslpassword")).query)
    if key_password := url.query.get("sslpassword"):
        if "service" in query:
            raise BackupError(
                "the database's URL has both `service` and `sslpassword`: put the latter into the service"
            )
        file = folder / "service.conf"
        make_file(file)
        file.write_text(f"[equipoise]\nsslpassword={key_password}\n")
        variables["PGSERVICEFILE"], query["service"] = str(file), "equipoise"
    plain = URL.create("postgresql", url.username, None, url.host, url.port, url.database, query)
    return plain.render_as_string(hide_password=False)
