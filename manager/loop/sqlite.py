"""What the journal and the outbox share: a file of their own and transactions on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path


def open_file(path: Path, synchronous: str) -> sqlite3.Connection:
    """Open or create a database in a folder for its owner alone. Raises OSError or sqlite3.Error."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    connection = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """A cursor whose statements take effect together, or not at all when one raises."""
    with closing(connection.cursor()) as cursor:
        cursor.execute("BEGIN IMMEDIATE")
        try:
            yield cursor
            cursor.execute("COMMIT")
        except BaseException:  # whatever ends it, the transaction must not stay open
            if connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise
