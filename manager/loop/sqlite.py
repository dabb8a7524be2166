"""What the journal and the outbox share: a file of their own and transactions on it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from manager.private import make_file
from manager.salvage import Damage, DamagedError, Fits, check_rows, check_sound, finish, is_unusable, mend, start_over

MEMORY = Path(":memory:")
VERSION = 1
"""Of the files, in ``user_version``; those of before it have 0 and the same tables."""


@dataclass(frozen=True, slots=True)
class Layout:
    """``prepare`` makes what is missing of the tables; ``fits`` tells whether a row of a table is understood."""

    synchronous: str
    prepare: Callable[[sqlite3.Connection], None]
    fits: Fits


def open_file(path: Path, layout: Layout) -> tuple[sqlite3.Connection, Damage | None]:
    """Open or create a database in a folder for its owner alone.

    One that is damaged, or of a newer version, is set aside and made anew from what is understood of it. Raises OSError
    or sqlite3.Error.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        unfinished = finish(path)
        return _opened(path, layout), unfinished
    except (sqlite3.Error, ValueError) as error:
        if not is_unusable(error) or not path.is_file():
            raise
        damage = mend(path, lambda new: _opened(new, layout).close(), str(error), fits=layout.fits, same=True)
    return _opened(path, layout), damage


def open_anew(
    path: Path, layout: Layout, why: str, fill: Callable[[sqlite3.Connection], None]
) -> tuple[sqlite3.Connection, Damage]:
    """Set the file aside for one that ``fill`` writes. Raises OSError or sqlite3.Error."""

    def create(new: Path) -> None:
        with closing(_opened(new, layout)) as connection:
            fill(connection)

    damage = start_over(path, create, why)
    return _opened(path, layout), damage


def _opened(path: Path, layout: Layout) -> sqlite3.Connection:
    if path != MEMORY:
        make_file(path)
    connection = sqlite3.connect(path, timeout=5, isolation_level=None, check_same_thread=False)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {layout.synchronous}")
        check_sound(connection)
        [version] = connection.execute("PRAGMA user_version").fetchone()
        if version > VERSION:
            raise DamagedError(f"it is of version {version}, and {VERSION} is understood")
        layout.prepare(connection)
        if version < VERSION:
            connection.execute(f"PRAGMA user_version = {VERSION}")
        check_rows(connection, layout.fits)
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
