"""SQLite files that may be damaged: noticing that, setting them aside, and rebuilding them.

A damaged file is renamed and never deleted, and only when its successor is whole.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ASIDE = ".broken-"
"""Between the name of a file that was set aside and when that was."""

_BROKEN = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_OUTSIDE = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_INTERRUPT,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    }
)
"""Not the file is the cause of these, but what is around it."""

_UNREADABLE = (sqlite3.Error, UnicodeError)
"""What reading raises: errors and names of columns are decoded, too."""

_WHOLE = ".rebuilt"
"""The end of the name of a file that is to take the place of a damaged one."""

Create = Callable[[Path], None]
"""Makes an empty file with all tables, closed again. Raises OSError, sqlite3.Error."""
Fits = Callable[[str, Mapping[str, object]], bool]
"""Whether a row of a table, by column, is understood."""

log = logging.getLogger(__name__)


class DamagedError(ValueError):
    """A file is not what it was written as."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What became of a damaged file: where it is now (None: it was gone), why, and what its successor has of it."""

    path: Path
    aside: Path | None
    why: str
    kept: str = ""

    @property
    def text(self) -> str:
        """For the operator."""
        aside = f", and is set aside as {self.aside.name}" if self.aside else ""
        kept = f"; {self.kept}" if self.kept else ""
        return f"{self.path} was damaged ({self.why}){aside}{kept}"


def is_broken(error: BaseException | None) -> bool:
    """Whether SQLite says with this error that the file itself is damaged."""
    return isinstance(error, sqlite3.Error) and _code(error) in _BROKEN


def is_full(error: sqlite3.Error) -> bool:
    """Whether there is no space left on the disk."""
    return _code(error) == sqlite3.SQLITE_FULL


def is_unusable(error: Exception) -> bool:
    """Whether opening failed because of what is in the file, damaged or not ours, and not of what is around it."""
    if isinstance(error, sqlite3.Error):
        return _code(error) not in _OUTSIDE
    return isinstance(error, ValueError)


def _code(error: sqlite3.Error) -> int:
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF


def read_only(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing. Raises sqlite3.Error."""
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True)


def check_pages(connection: sqlite3.Connection) -> None:
    """Raises DamagedError, or sqlite3.Error, for a file whose pages do not hang together, or its indexes not fit."""
    for [finding] in connection.execute("PRAGMA integrity_check(1)"):
        if finding != "ok":
            raise DamagedError(" ".join(str(finding).split()))


def check_rows(connection: sqlite3.Connection, fits: Fits) -> None:
    """Raises DamagedError, or sqlite3.Error, for a row that does not fit or has a text that is none.

    Such a text SQLite itself does not mind, and it cannot be read with the rows beside it.
    """
    for table, columns in _tables(connection).items():
        for row in connection.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - of the file's own schema, as all here
            if not fits(table, dict(zip(columns, row, strict=True))):
                raise DamagedError(f"a row of {table} is not understood")


def rebuild(path: Path, create: Create, why: str, fill: Callable[[sqlite3.Connection], str]) -> Damage:
    """Set a damaged file aside for one that ``create`` makes and ``fill`` writes to and describes.

    Raises OSError, sqlite3.Error: then all is as it was.
    """
    part = _beside(path, ".part")
    remove(part)
    create(part)
    with closing(sqlite3.connect(part, isolation_level=None)) as target:
        target.execute("PRAGMA foreign_keys = OFF")
        target.execute("PRAGMA journal_mode = DELETE")  # so that all of it is in the one file
        target.execute("BEGIN")
        kept = fill(target)
        target.execute("COMMIT")
    part.rename(_beside(path, _WHOLE))
    return _swap(path, why, kept)


def recover(path: Path, create: Create, why: str, fits: Fits) -> Damage:
    """Rebuild a file from the rows that can be read of it. Raises OSError, sqlite3.Error: then all is as it was."""

    def fill(target: sqlite3.Connection) -> str:
        rows = 0
        with closing(read_only(path)) as source:
            source.execute("PRAGMA writable_schema = ON")  # with which SQLite opens also what lost its end
            source.text_factory = lambda content: content.decode(errors="surrogateescape")  # which no row may hold
            for table, columns in _tables(target).items():
                with suppress(*_UNREADABLE):
                    rows += _copied(source, target, table, columns, fits)
        # Rows whose parents could not be read are of no use.
        while orphans := target.execute("PRAGMA foreign_key_check").fetchall():
            for table, rowid, *_ in orphans:
                target.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (rowid,))  # noqa: S608
        return f"{rows} rows of it are kept"

    return rebuild(path, create, why, fill)


def finish(path: Path) -> Damage | None:
    """Go on where rebuilding a file was interrupted. Raises OSError."""
    return _swap(path, "rebuilding it was interrupted", "") if _beside(path, _WHOLE).exists() else None


def set_aside(path: Path) -> Path:
    """Rename a file, and SQLite's log of it; returns the new name. Raises OSError."""
    stem = f"{path.name}{ASIDE}{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    names = (path.with_name(stem if not number else f"{stem}-{number}") for number in range(1000))
    aside = next(name for name in names if not name.exists())
    for end in ("", "-wal"):
        with suppress(FileNotFoundError):
            _beside(path, end).rename(_beside(aside, end))
    return aside


def remove(path: Path) -> None:
    """Delete a file and what SQLite keeps beside it. Raises OSError."""
    for end in ("", "-wal", "-shm", "-journal"):
        _beside(path, end).unlink(missing_ok=True)


def _swap(path: Path, why: str, kept: str) -> Damage:
    there = path.exists()
    aside = set_aside(path)
    damage = Damage(path, aside if there else None, why, kept)
    _beside(path, "-shm").unlink(missing_ok=True)
    _beside(path, _WHOLE).rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
    log.error("%s", damage.text)
    return damage


def _beside(path: Path, end: str) -> Path:
    return path.with_name(path.name + end)


def _tables(database: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns of each table; of SQLite's own only the last numbers of AUTOINCREMENT, which rows then raise."""
    names = [name for [name] in database.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    names.sort(key=lambda name: name != "sqlite_sequence")
    return {
        name: [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')]
        for name in names
        if name == "sqlite_sequence" or not name.startswith("sqlite_")
    }


def _copied(
    source: sqlite3.Connection, target: sqlite3.Connection, table: str, columns: Iterable[str], fits: Fits
) -> int:
    """Copy what can be read of a table; returns how many rows that were, without SQLite's own."""
    there = {row[1] for row in source.execute(f'PRAGMA table_info("{table}")')}
    columns = [name for name in columns if name in there]
    names, places = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
    insert = f'INSERT OR IGNORE INTO "{table}" ({names}) VALUES ({places})'  # noqa: S608
    count = 0
    for row in _readable(source, f'SELECT rowid, {names} FROM "{table}" NOT INDEXED'):  # noqa: S608
        with suppress(*_UNREADABLE):  # what a damaged row holds may be refused
            if fits(table, dict(zip(columns, row, strict=True))):
                count += target.execute(insert, row).rowcount
    return 0 if table == "sqlite_sequence" else count


def _readable(source: sqlite3.Connection, select: str) -> Iterator[tuple[object, ...]]:
    """Rows from the first one to where the table is damaged, then from the last one back to there."""
    last = 0
    for order in ("ASC", "DESC"):
        with suppress(*_UNREADABLE):
            for rowid, *row in source.execute(f"{select} WHERE rowid > ? ORDER BY rowid {order}", (last,)):
                if order == "ASC":
                    last = rowid
                yield tuple(row)
            return
