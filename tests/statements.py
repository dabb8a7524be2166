"""What a block asks of a database: how many statements, and how many rows they return."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, event

from manager.store import by_driver
from manager.store.database import Database


@dataclass(slots=True)
class Counted:
    """Statements, and the rows that they returned. SQLite's driver does not tell rows."""

    statements: int = 0
    rows: int = 0


@contextmanager
def counted(database: Database) -> Iterator[Counted]:
    """Count those of the block."""
    count = Counted()

    def executed(_connection: Any, cursor: Any, *_rest: Any) -> None:
        count.statements += 1
        count.rows += max(cursor.rowcount, 0)

    def changed(*given: Any) -> int:
        rows = change(*given)
        count.statements += 1
        count.rows += rows
        return rows

    def driven(connection: Connection, *given: Any) -> Any:
        cursor = execute(connection, *given)
        if connection.engine.pool is engine.pool:
            executed(connection, cursor)
        return cursor

    engine, change, execute = database._engine, database._change_by_driver, by_driver._execute
    event.listen(engine, "after_cursor_execute", executed)
    # SQLAlchemy has no part in these.
    database._change_by_driver = changed  # type: ignore[method-assign]
    by_driver._execute = driven
    try:
        yield count
    finally:
        event.remove(engine, "after_cursor_execute", executed)
        del database._change_by_driver
        by_driver._execute = execute
