"""Many rows written by one statement, which is built once for each shape of rows.

PostgreSQL gets the columns as arrays and makes rows of them, so that its text, and so its plan, are the same for any
number of rows. SQLite is within the process, where a statement for each row costs little.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import ARRAY, ColumnElement, Table, any_, bindparam, column, func, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.store.by_driver import rows_of
from manager.store.models import Base

Condition = Callable[[Any], ColumnElement[bool]]
"""Makes of the columns of a new row the condition under which it replaces the present one. A function of a module: what
is built for it is remembered by it."""

_Insert = sqlite.Insert | postgresql.Insert
_REMEMBERED = 128


def upsert(
    session: Session,
    table: type[Base],
    rows: Sequence[Mapping[str, Any]],
    keys: Sequence[str],
    where: Condition | None = None,
) -> None:
    """Insert rows (columns by name, the same in all); those whose ``keys`` exist get the other columns of the new row.

    No two of the rows have the same keys. A row that does not meet the condition ``where`` is locked all the same.
    """
    if rows:
        arrays = has_arrays(session)
        statement = _upsert(arrays, table, tuple(rows[0]), tuple(keys), where)
        rows_of(session, statement, _parameters(table, rows, arrays))


def insert_new(session: Session, table: type[Base], rows: Sequence[Mapping[str, Any]], *keys: str) -> int:
    """Insert the rows (columns by name, the same in all) that are new by ``keys``; returns how many were.

    Without ``keys``: by all that is unique. The table has a column ``id``.
    """
    if not rows:
        return 0
    arrays = has_arrays(session)
    statement = _insert_new(arrays, table, tuple(rows[0]), keys)
    return len(rows_of(session, statement, _parameters(table, rows, arrays)))


@lru_cache(_REMEMBERED)
def _upsert(
    arrays: bool, table: type[Base], names: tuple[str, ...], keys: tuple[str, ...], where: Condition | None
) -> _Insert:
    insert = _insert(arrays, table, names)
    changed = {name: insert.excluded[name] for name in names if name not in keys}
    condition = where(insert.excluded) if where else None
    return insert.on_conflict_do_update(index_elements=keys, set_=changed, where=condition)


@lru_cache(_REMEMBERED)
def _insert_new(arrays: bool, table: type[Base], names: tuple[str, ...], keys: tuple[str, ...]) -> Any:
    insert = _insert(arrays, table, names)
    number = inspect(table).columns["id"]
    return insert.on_conflict_do_nothing(index_elements=keys or None).returning(number)


def _insert(arrays: bool, table: type[Base], names: tuple[str, ...]) -> _Insert:
    columns = [inspect(table).columns[name] for name in names]
    if not arrays:
        return sqlite.insert(_table(table))
    given = (bindparam(one.key, type_=ARRAY(one.type, dimensions=1)) for one in columns)
    rows = func.unnest(*given).table_valued(*(column(one.key, one.type) for one in columns)).render_derived()
    return postgresql.insert(_table(table)).from_select([one.key for one in columns], select(*rows.c))


def _table(table: type[Base]) -> Table:
    return next(found for found in inspect(table).tables if isinstance(found, Table))


def _parameters(table: type[Base], rows: Sequence[Mapping[str, Any]], arrays: bool) -> Any:
    keys = {name: inspect(table).columns[name].key for name in rows[0]}
    if arrays:
        return {key: [row[name] for row in rows] for name, key in keys.items()}
    return [{key: row[name] for name, key in keys.items()} for row in rows]


def among(numbers: ColumnElement[Any] | InstrumentedAttribute[Any], name: str, arrays: bool) -> ColumnElement[bool]:
    """Whether a column is one of the values of a parameter: a list, for a statement that is built once.

    With ``arrays``, which PostgreSQL has, its text is the same for any number of them.
    """
    kind = numbers.type
    if arrays:
        return numbers == any_(bindparam(name, type_=ARRAY(kind)))
    return numbers.in_(bindparam(name, expanding=True, type_=kind))


def is_one_of(
    session: Session, asked: ColumnElement[Any] | InstrumentedAttribute[Any], values: Collection[Any]
) -> ColumnElement[bool]:
    """Whether a column is one of these values: one parameter where the database takes lists, as each takes its time."""
    if has_arrays(session):
        return asked == any_(bindparam(None, list(values), type_=ARRAY(asked.type), unique=True))
    return asked.in_(values)


def has_arrays(session: Session) -> bool:
    """Whether the database takes lists as values."""
    return session.get_bind().dialect.name == "postgresql"
