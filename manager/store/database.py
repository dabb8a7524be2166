"""The engine, its sessions, and the migrations.

Supported are SQLite (one manager, the default) and PostgreSQL (a fleet, several managers). Writers on SQLite take the
write lock at the start of their transaction, so that a transaction never fails half-way because another one wrote.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any
from zlib import crc32

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import (
    URL,
    Connection,
    Engine,
    NullPool,
    PoolProxiedConnection,
    Update,
    create_engine,
    event,
    func,
    make_url,
    select,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, InvalidatePoolError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session, sessionmaker
from sqlalchemy.pool import ConnectionPoolEntry

from manager.errors import DatabaseUnavailable, SettingsError
from manager.private import make_file
from manager.sqlite_files import Damage, is_broken
from manager.store.by_driver import failure_of, text_of
from manager.store.models import Base
from manager.store.recovery import mark, recover_database
from manager.store.revisions import assign_anew, note_registration

_IMMEDIATE = "equipoise_immediate"
_TIMEOUT_S = 15  # how long a writer waits for another one
_MIGRATION_TIMEOUT_S = 120
_IDLE_S = 1.0
"""A connection that was used so lately is not asked whether it still is one."""
_WAITS: Mapping[str, int] = {
    "connect_timeout": 10,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 20_000,
}
"""For libpq, where the URL says nothing else: a server whose machine is gone times out after 20 s, not in 15 min."""

# Keys of PostgreSQL's advisory locks; the numbers only have to differ from those of other users of the database.
_MIGRATION_LOCK = 0x65717569
_REGISTRATION_LOCK = _MIGRATION_LOCK + 1
_NAMED_LOCKS = _MIGRATION_LOCK << 32


class Database:
    """Sessions and migrations of one database. Thread-safe; make one a process with ``open_database``."""

    def __init__(self, url: URL, pool_size: int) -> None:
        self.url = url
        """With the password."""
        self._engine = _make_engine(url, pool_size)
        # All statements of a reader see one state: SQLite's do anyway, PostgreSQL's at this isolation level.
        snapshot = {} if url.get_backend_name() == "sqlite" else {"isolation_level": "REPEATABLE READ"}
        self._readers = sessionmaker(self._engine.execution_options(**snapshot), expire_on_commit=False)
        alone = {} if url.get_backend_name() == "sqlite" else {"isolation_level": "AUTOCOMMIT"}
        self._alone = self._engine.execution_options(**alone)
        self._askers = sessionmaker(self._alone, expire_on_commit=False)
        self._writers = sessionmaker(_immediate(self._engine), expire_on_commit=False)

    @contextmanager
    def reading(self) -> Iterator[Session]:
        """A session that sees one state of the database; nothing it does is kept. Raises DatabaseUnavailable."""
        with self._answering("read"), self._readers() as session:
            yield session

    @contextmanager
    def asking(self) -> Iterator[Session]:
        """A session for a single query, with no transaction around it where that costs. Raises DatabaseUnavailable."""
        with self._answering("read"), self._askers() as session:
            yield session

    @contextmanager
    def writing(self) -> Iterator[Session]:
        """A session in one transaction: committed at the end, rolled back when the block raises.

        Raises DatabaseUnavailable; then nothing was changed.
        """
        with self._answering("written"), self._writers.begin() as session:
            yield session

    def change(self, statement: Update, given: Mapping[str, Any]) -> int:
        """Execute a single statement in a transaction of its own; returns how many rows it changed.

        ``given`` are values as PostgreSQL's driver takes them: there it is called without SQLAlchemy in between, which
        would take most of the time. Raises DatabaseUnavailable; then nothing was changed.
        """
        with self._answering("written"):
            if self.file:
                with _immediate(self._engine).begin() as connection:
                    return connection.execute(statement, given).rowcount
            return self._change_by_driver(statement, given)

    def _change_by_driver(self, statement: Update, given: Mapping[str, Any]) -> int:
        """Raises DBAPIError, as SQLAlchemy does."""
        failed: type[Exception] = self._engine.dialect.loaded_dbapi.Error
        pooled: PoolProxiedConnection | None = None
        try:
            pooled = self._engine.raw_connection()
            driver: Any = pooled.driver_connection
            driver.autocommit = True  # no transaction around it, which would be two statements more
            try:
                changed: int = driver.execute(text_of(statement, self._engine.dialect), given).rowcount
            finally:
                if not driver.closed:
                    driver.autocommit = False
        except failed as error:
            if pooled is not None and driver.closed:
                pooled.invalidate(error)
                self._engine.dispose()  # the server has gone, and so have the others that are idle
            raise failure_of(self._engine.dialect, error) from error
        finally:
            if pooled is not None:
                pooled.close()
        return changed

    @contextmanager
    def exclusively(self) -> Iterator[Session]:
        """Like ``writing``, but one at a time in the whole fleet.

        What is registered, users and tokens change seldom and depend on each other (a domain belongs to one VM, a VM to
        one tier), so they are checked and written one after the other.
        """
        with self.writing() as session:
            lock_registrations(session)
            yield session

    @contextmanager
    def registering(self, *hosts: str) -> Iterator[Session]:
        """Like ``exclusively``, for hosts, VMs, applications and proposals: of a new ``registration_revision``.

        With that lists of registrations are read again, so it is for these alone; and the assignments of ``hosts``, or
        of all hosts where none is named.
        """
        with self.exclusively() as session:
            note_registration(session, hosts or None)
            yield session
            assign_anew(session, hosts or None)

    @contextmanager
    def alone(self, name: str) -> Iterator[bool]:
        """Whether this is the only block of this name in the fleet. It never waits. Raises DatabaseUnavailable.

        On PostgreSQL it is an advisory lock of a connection, outside of transactions, free again however this process
        ends. SQLite has one manager, which is always alone.
        """
        if self.file:
            yield True
            return
        with self._answering("locked"), self._engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT")
            key = _NAMED_LOCKS + crc32(name.encode())
            alone = bool(connection.scalar(select(func.pg_try_advisory_lock(key))))
            try:
                yield alone
            finally:
                if alone:
                    connection.execute(select(func.pg_advisory_unlock(key)))

    def upgrade(self, revision: str = "head") -> Damage | None:
        """Bring the tables to ``revision``, all of it or nothing. Several processes may call this at once.

        A damaged file of SQLite is recovered before; what became of it. Raises DatabaseUnavailable when the database
        cannot be opened.
        """
        damage = recover_database(self.file, self._create) if self.file else None
        self._migrate(lambda config: command.upgrade(config, revision))
        return damage

    @property
    def file(self) -> Path | None:
        """The file of SQLite's; None: it is another database."""
        return Path(self.url.database or "") if self.url.get_backend_name() == "sqlite" else None

    def _create(self, file: Path, revision: str) -> None:
        """An empty database of SQLite with the tables of a revision."""
        Database(self.url.set(database=str(file)), 1)._migrate(lambda config: command.upgrade(config, revision))

    def downgrade(self, revision: str) -> None:
        """Take the tables back to ``revision``; ``base`` removes them. Raises DatabaseUnavailable."""
        self._migrate(lambda config: command.downgrade(config, revision))

    def current(self) -> str | None:
        """The revision of the tables, or None where there are none. Raises DatabaseUnavailable."""
        with self.reading() as session:
            return MigrationContext.configure(session.connection()).get_current_revision()

    def ping(self) -> None:
        """Raises DatabaseUnavailable when the database does not answer."""
        with self.reading() as session:
            session.execute(select(1))

    def close(self) -> None:
        """Close all idle connections."""
        self._engine.dispose()

    def _migrate(self, act: Callable[[Config], None]) -> None:
        # An engine of its own: waiting for another process's migration takes longer than any request may, and SQLite
        # must not enforce foreign keys while a migration rebuilds a table, or dropping the old one deletes its rows.
        engine = _immediate(_make_engine(self.url, None))
        with self._answering("migrated"), as_file(files("migrations")) as folder, engine.begin() as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(_MIGRATION_LOCK)))
            revision = MigrationContext.configure(connection).get_current_revision()
            if revision is not None and not is_known(revision):
                raise DatabaseUnavailable(
                    f"database {_shown(self.url)} is of a newer version (revision {revision}): upgrade Equipoise first"
                )
            act(_config(str(folder), connection))

    @contextmanager
    def _answering(self, done: str) -> Iterator[None]:
        try:
            yield
        except (DataError, IntegrityError):
            raise  # our mistake, not the database's
        except (DBAPIError, PoolTimeout, CommandError) as error:
            where = _shown(self.url)
            why = str(getattr(error, "orig", error)).strip()
            if self.file and is_broken(getattr(error, "orig", None)):
                mark(self.file)
                why += "; restart the manager: it sets the file aside and goes on with what can be read of it"
            raise DatabaseUnavailable(f"database {where} cannot be {done}: {why}") from error


def open_database(url: str, pool_size: int = 8) -> Database:
    """The database at a SQLAlchemy URL. Nothing is connected or created yet.

    ``pool_size`` is the number of threads that use it at once. Raises SettingsError for a URL of another kind.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        in_memory = backend == "sqlite" and parsed.database in {None, "", ":memory:"}
        if backend not in {"sqlite", "postgresql"} or in_memory:
            raise SettingsError(
                f"database_url {_shown(parsed)} is refused: "
                "use sqlite:///<file> or postgresql://<user>:<password>@<host>/<name>"
            )
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        return Database(parsed, pool_size)
    except ArgumentError as error:
        raise SettingsError(f"database_url is refused: {error}") from None
    except ValueError:  # its text may hold a part of a password
        raise SettingsError("database_url is refused: its port is no number") from None
    except ModuleNotFoundError as error:
        raise SettingsError(f"database_url needs the Python package {error.name!r}: install it") from None


def _shown(url: URL) -> str:
    """A URL without its passwords, which may also be parameters of it."""
    return url.difference_update_query(("password", "sslpassword")).render_as_string(hide_password=True)


def is_known(revision: str) -> bool:
    """Whether there is a migration of that name, as there is not for a newer version's."""
    with as_file(files("migrations")) as folder:
        return revision in {script.revision for script in ScriptDirectory(str(folder)).walk_revisions()}


def lock_registrations(session: Session) -> None:
    """Register exclusively until the end of the transaction. Writers on SQLite are alone anyway."""
    if is_postgresql(session):
        session.execute(select(func.pg_advisory_xact_lock(_REGISTRATION_LOCK)))


def insert_for(session: Session, table: type[Base]) -> sqlite.Insert | postgresql.Insert:
    """An INSERT into ``table`` that can say what to do ON CONFLICT, in the words of the session's database."""
    return postgresql.insert(table) if is_postgresql(session) else sqlite.insert(table)


def is_postgresql(session: Session) -> bool:
    """Whether its database is PostgreSQL; else it is SQLite."""
    return session.get_bind().dialect.name == "postgresql"


def _config(folder: str, connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", folder.replace("%", "%%"))  # a ConfigParser reads it
    config.attributes["connection"] = connection
    return config


def _immediate(engine: Engine) -> Engine:
    return engine.execution_options(**{_IMMEDIATE: True})


def _make_engine(url: URL, pool_size: int | None) -> Engine:
    """An engine; ``pool_size`` None makes one for migrations."""
    migrating = pool_size is None
    timeout_s = _MIGRATION_TIMEOUT_S if migrating else _TIMEOUT_S
    pool: dict[str, Any] = {"poolclass": NullPool} if migrating else {"pool_size": pool_size, "max_overflow": pool_size}
    pool["hide_parameters"] = True  # errors and logs of statements must not tell hashes, addresses and names
    if url.get_backend_name() == "sqlite":
        engine = create_engine(url, **pool)
        _prepare_sqlite(engine, foreign_keys=not migrating, timeout_s=timeout_s)
        return engine
    waits = {name: value for name, value in _WAITS.items() if name not in url.query}
    given = " ".join(url.normalized_query.get("options", ()))  # such as the schema of the tables
    arguments = {**waits, "options": f"-c lock_timeout={timeout_s}s {given} -c timezone=utc"}
    if not migrating:
        pool |= {"pool_use_lifo": True, "pool_recycle": 1800}
    engine = create_engine(url, connect_args=arguments, **pool)
    if not migrating:
        _check_idle_connections(engine)
        _send_arrays_as_they_are(engine)
    return engine


def _check_idle_connections(engine: Engine) -> None:
    """Ask whether the server is still there before a connection is used that nobody used lately.

    Asking each time, as ``pool_pre_ping`` does, costs as much as a short statement.
    """

    def returned(_connection: object, record: ConnectionPoolEntry) -> None:
        record.info["used_s"] = time.monotonic()

    def taken(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        if time.monotonic() - record.info.get("used_s", math.inf) > _IDLE_S:
            try:
                engine.dialect.do_ping(connection)
            except engine.dialect.loaded_dbapi.Error as error:
                raise InvalidatePoolError from error  # the pool connects anew

    event.listen(engine, "checkin", returned)
    event.listen(engine, "checkout", taken)


def _send_arrays_as_they_are(engine: Engine) -> None:
    """Have lists sent to PostgreSQL in its binary format: as text they take several times as long, on both sides."""
    from psycopg.types.array import ListBinaryDumper  # noqa: PLC0415 - only there with PostgreSQL

    def connected(connection: Any, _record: object) -> None:
        connection.adapters.register_dumper(list, ListBinaryDumper)

    event.listen(engine, "connect", connected)


def _use_wal(connection: Any, timeout_s: int) -> None:
    """Have the file written by way of a log. SQLite does not wait for who uses a new file at the same moment."""
    deadline_s = time.monotonic() + timeout_s
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)


def _prepare_sqlite(engine: Engine, *, foreign_keys: bool, timeout_s: int) -> None:
    def connected(connection: Any, _record: object) -> None:
        # The driver's own transaction control begins too late to isolate reads, and never around DDL; see
        # SQLAlchemy's documentation of the dialect, "Serializable isolation / Savepoints / Transactional DDL".
        connection.isolation_level = None
        connection.execute(f"PRAGMA busy_timeout = {timeout_s * 1000}")
        connection.execute(f"PRAGMA foreign_keys = {'ON' if foreign_keys else 'OFF'}")
        _use_wal(connection, timeout_s)

    def begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get(_IMMEDIATE, False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    def create(*_connecting: object) -> None:
        name = engine.url.database or ""
        if not name.startswith("file:"):
            with suppress(OSError):  # for which SQLite has a better error
                make_file(Path(name))

    event.listen(engine, "do_connect", create)
    event.listen(engine, "connect", connected)
    event.listen(engine, "begin", begin)
