"""Statements of every report, given to PostgreSQL's driver without SQLAlchemy in between.

Of a short statement that is executed all the time SQLAlchemy takes more CPU time than driver and server together:
finding its text again by what it was built from, a context and a result of each execution. Here its text is made once,
with the functions by which its types write and read values. SQLite goes through SQLAlchemy as ever: it is within the
process, and has no fleet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import CompoundSelect, Connection, Dialect, Float, Insert, Select, Update
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session
from sqlalchemy.types import TypeEngine

Statement = Select[*tuple[Any, ...]] | CompoundSelect[*tuple[Any, ...]] | Insert | Update
Parameters = Mapping[str, Any]

_REMEMBERED = 256
_Process = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Compiled:
    """The text of a statement, the values that are part of it, and how others are written and columns are read."""

    text: str
    constants: Parameters
    writers: Sequence[tuple[str, _Process]]
    readers: Sequence[tuple[int, _Process]]
    returns_rows: bool


def rows_of(session: Session, statement: Statement, given: Parameters | Sequence[Parameters]) -> Sequence[Any]:
    """The rows of a statement as tuples, executed in the transaction of a session; none where it returns no rows.

    The statement is built once and kept by who calls: it is remembered, and on PostgreSQL has no lists that expand.
    ``given`` are the values of its parameters; several of them are for an INSERT on SQLite. New objects of the session
    are written before, as rows may refer to theirs; changed ones are not. Raises DBAPIError, as SQLAlchemy does.
    """
    if session.new:
        session.flush()
    connection = session.connection()
    if connection.dialect.name != "postgresql" or not isinstance(given, Mapping):
        result = connection.execute(statement, given)
        return result.all() if result.returns_rows else ()
    compiled = _compile(statement, connection.dialect)
    values = {**compiled.constants, **given}
    for name, write in compiled.writers:
        values[name] = write(values[name])
    cursor = _execute(connection, compiled.text, values)
    if not compiled.returns_rows:
        return ()
    rows: Sequence[Any] = cursor.fetchall()
    return _read(rows, compiled.readers) if compiled.readers else rows


def text_of(statement: Statement, dialect: Dialect) -> str:
    """The text of a statement for the driver of a dialect, which takes the values of its parameters by name."""
    return _compile(statement, dialect).text


def failure_of(dialect: Dialect, error: Exception) -> DBAPIError:
    """An error of the driver as SQLAlchemy raises it, without the values of parameters."""
    failed = dialect.loaded_dbapi.Error
    wrapped = DBAPIError.instance(None, None, error, failed, hide_parameters=True)
    if not isinstance(wrapped, DBAPIError):
        raise TypeError(f"{error!r} is not of the driver") from error
    return wrapped


def _execute(connection: Connection, text: str, values: Parameters) -> Any:
    driver: Any = connection.connection.driver_connection
    try:
        return driver.execute(text, values)
    except connection.dialect.loaded_dbapi.Error as error:
        if driver.closed:
            connection.invalidate(error)
            connection.engine.dispose()  # the server has gone, and so have the others that are idle
        raise failure_of(connection.dialect, error) from error


@lru_cache(_REMEMBERED)
def _compile(statement: Statement, dialect: Dialect) -> _Compiled:
    compiled: Any = statement.compile(dialect=dialect)
    constants = {name: one.effective_value for name, one in compiled.binds.items() if not one.required}
    kinds = ((name, one.type) for name, one in compiled.binds.items())
    writers = [(name, write) for name, kind in kinds if (write := _of(kind, dialect).bind_processor(dialect))]
    # Numbers are as the driver reads them: SQLAlchemy's would have to know of which of its types they are.
    columns = [one.type for one in statement.exported_columns]
    others = ((place, kind) for place, kind in enumerate(columns) if not isinstance(kind, Float))
    readers = [(place, read) for place, kind in others if (read := _of(kind, dialect).result_processor(dialect, None))]
    return _Compiled(str(compiled), constants, writers, readers, bool(columns))


def _of(kind: TypeEngine[Any], dialect: Dialect) -> TypeEngine[Any]:
    return kind.dialect_impl(dialect)


def _read(rows: Sequence[Sequence[Any]], readers: Sequence[tuple[int, _Process]]) -> Sequence[Any]:
    read = []
    for row in rows:
        values = list(row)
        for place, process in readers:
            values[place] = process(values[place])
        read.append(tuple(values))
    return read
