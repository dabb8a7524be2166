"""Who may use the manager, apart from all else that its database holds: what a backup must not bring back.

Of tokens that were revoked, of people who were removed or have a smaller role or another password since, a backup does
not know. So these stay as they are in the database that is replaced.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, delete, insert, inspect, select

from manager.store.access_models import SessionRow, TokenRow, UserRow
from manager.store.database import Database
from manager.store.host_models import JoinTokenRow
from manager.store.models import Base

Access = Mapping[str, Sequence[Mapping[str, Any]]]
"""Rows by table."""

KINDS: Mapping[str, str] = {"tokens": "tokens", "users": "users", "join_tokens": "join tokens"}
_ROWS: tuple[type[Base], ...] = (TokenRow, UserRow, JoinTokenRow)
TABLES: tuple[str, ...] = ("sessions", *KINDS)
"""In an order in which they can be emptied."""


def access_of(database: Database) -> Access:
    """Who has access now, also in tables of an older version, or without any. Raises DatabaseUnavailable."""
    access: dict[str, Sequence[Mapping[str, Any]]] = {}
    with database.reading() as session:
        inspector = inspect(session.connection())
        there = {*inspector.get_table_names()}
        for table in map(_table, _ROWS):
            if table.name in there:
                names = {column["name"] for column in inspector.get_columns(table.name)} - {"id"}
                columns = [column for column in table.columns if column.name in names]
                access[table.name] = [dict(row) for row in session.execute(select(*columns)).mappings()]
    return access


def replace_access(database: Database, access: Access) -> None:
    """Let those have access and nobody else, and end all sessions.

    Raises DatabaseUnavailable, and then nothing was changed.
    """
    with database.writing() as session:
        session.execute(delete(SessionRow))
        for table in map(_table, _ROWS):
            session.execute(delete(table))
            if wanted := access.get(table.name):
                session.execute(insert(table), [dict(row) for row in wanted])


def drop_sessions(database: Database) -> None:
    """End all sessions. Raises DatabaseUnavailable."""
    with database.writing() as session:
        session.execute(delete(SessionRow))


def _table(row: type[Base]) -> Table:
    table = row.__table__
    if not isinstance(table, Table):
        raise TypeError(f"{row} is no table")
    return table
