"""What the journal and the outbox share: a file of their own and transactions on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from manager.private import make_file
from manager.sqlite_files import Damage, DamagedError, Fits, check_pages, check_rows, finish, is_unusable, recover

MEMORY = Path(":memory:")
VERSION = 1
"""Of the files, in ``user_version``; 0 is that of one which is empty."""


@dataclass(frozen=True, slots=True)
class Layout:
    """``prepare`` makes what is missing of the tables; ``fits`` says whether a row of a table is understood."""

    synchronous: str
    prepare: Callable[[sqlite3.Connection], None]
    fits: Fits


def open_or_recover(path: Path, layout: Layout) -> tuple[sqlite3.Connection, Damage | None]:
    """Open or create a database; of one that is damaged, or of another version, what is understood is recovered.

    Raises OSError or sqlite3.Error.
    """
    try:
        unfinished = finish(path)
        return open_sound(path, layout), unfinished
    except (sqlite3.Error, ValueError) as error:
        if not is_unusable(error) or not path.is_file():
            raise
        damage = recover(path, lambda new: open_sound(new, layout).close(), str(error), layout.fits)
    return open_sound(path, layout), damage


def open_sound(path: Path, layout: Layout) -> sqlite3.Connection:
    """Open or create a database in a folder for its owner alone.

    Raises OSError, sqlite3.Error, and ValueError for one that is not understood.
    """
    if path != MEMORY:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_file(path)
    connection = connect(path, layout.synchronous)
    try:
        check_pages(connection)
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version not in {0, VERSION}:
            raise DamagedError(f"it is of version {version}, and {VERSION} is understood")
        layout.prepare(connection)
        if not version:
            connection.execute(f"PRAGMA user_version = {VERSION}")
        check_rows(connection, layout.fits)
    except BaseException:  # whatever it is, the file must not stay open
        connection.close()
        raise
    return connection


def connect(path: Path, synchronous: str) -> sqlite3.Connection:
    """Open a file as it is. Raises sqlite3.Error."""
    connection = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
    except BaseException:  # whatever it is, the file must not stay open
        connection.close()
        raise
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
