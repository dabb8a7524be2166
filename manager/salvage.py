"""SQLite files that are damaged: noticed, set aside, and made anew from the rows that can still be read.

The damaged file is never deleted. It is set aside only when its successor is whole, so that who is killed in between
finds the one or the other.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from manager.private import make_file

ASIDE = ".broken-"
"""Between the name of a file that was set aside and when that was."""

_PAGE_BYTES = 4096
_MOST_PAGES = 1 << 28  # a terabyte
_TRIES = 1_000_000, 10_000  # rows that are looked for one by one where a table has a hole, and where it has no end
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
"""Of these not the file is to blame, but what is around it."""

_UNREADABLE = (sqlite3.Error, UnicodeDecodeError)
"""What reading raises: errors and names of columns are decoded too."""

Create = Callable[[Path], None]
"""Makes an empty file with all tables, closed again. Raises OSError, sqlite3.Error."""
Fits = Callable[[str, Mapping[str, object]], bool]
"""Whether a row of a table, by column, is understood."""

log = logging.getLogger(__name__)


def _anything(_table: str, _row: Mapping[str, object]) -> bool:
    return True


class DamagedError(ValueError):
    """A file is not what it was written as."""


@dataclass(frozen=True, slots=True)
class Damage:
    """What became of a damaged file: where it is now, why, and how many rows its successor has of it."""

    path: Path
    aside: Path
    why: str
    rows: int | None = None

    @property
    def text(self) -> str:
        """For the operator."""
        kept = "" if self.rows is None else f"; {self.rows} rows of it are kept"
        return f"{self.path} was damaged ({self.why}), and is set aside as {self.aside.name}{kept}"


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


def check_sound(connection: sqlite3.Connection) -> None:
    """Raises DamagedError, or sqlite3.Error, for a file whose pages do not hang together, or its indexes not fit."""
    for [said] in connection.execute("PRAGMA integrity_check(1)"):
        if said != "ok":
            raise DamagedError(" ".join(str(said).split()))


def check_rows(connection: sqlite3.Connection, fits: Fits = _anything) -> None:
    """Raises DamagedError, or sqlite3.Error, for a row that does not fit or has a text that is none.

    Such a text SQLite itself does not mind, and it cannot be read with the rows beside it.
    """
    tables = [table for [table] in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    for table in tables:
        with closing(connection.execute(f'SELECT * FROM "{table}"')) as cursor:  # noqa: S608 - out of its schema
            names = [column[0] for column in cursor.description]
            for row in cursor:
                if not fits(table, dict(zip(names, row, strict=True))):
                    raise DamagedError(f"a row of {table} is not understood")


def mend(
    path: Path,
    create: Create,
    why: str,
    *,
    fits: Fits = _anything,
    own: frozenset[str] = frozenset(),
    same: bool = False,
) -> Damage:
    """Make a file anew from what can be read of it; the tables ``own`` stay as ``create`` made them.

    ``same``: ``create`` always puts the same tables at the same places, so that what is in a file without a readable
    first page can be read with that of a new one. Raises OSError, sqlite3.Error: then all is as it was.
    """
    new = _new(path)
    _remove(new)
    create(new)
    with closing(sqlite3.connect(new, isolation_level=None)) as target:
        target.execute("PRAGMA foreign_keys = OFF")
        target.execute("PRAGMA journal_mode = MEMORY")  # who is killed begins with an empty one again
        target.execute("BEGIN IMMEDIATE")
        tables = {table: columns for table, columns in _tables(target).items() if table not in own}
        for table in tables:
            target.execute(f'DELETE FROM "{table}"')  # noqa: S608 - a name out of the file's own schema, as all here
        with _legible(path, new if same else None, tables) as source:
            rows = sum(_copied(source, target, table, columns, fits) for table, columns in tables.items())
        _drop_orphans(target)
        target.execute("COMMIT")
    aside = set_aside(path)
    _swap(path)
    damage = Damage(path, aside, why, rows)
    log.error("%s", damage.text)
    return damage


def start_over(path: Path, create: Create, why: str) -> Damage:
    """Like ``mend``, but its successor is whatever ``create`` makes. Raises OSError, sqlite3.Error."""
    new = _new(path)
    _remove(new)
    create(new)
    damage = Damage(path, set_aside(path), why)
    _swap(path)
    log.error("%s", damage.text)
    return damage


def finish(path: Path) -> Damage | None:
    """Go on where somebody was killed while mending. Raises OSError."""
    if path.exists() or not _new(path).exists():
        return None
    _swap(path)
    return Damage(path, _last_aside(path), "mending it was interrupted")


def set_aside(path: Path) -> Path:
    """Rename a file, and its log of SQLite's if it has one. Raises OSError."""
    stem = f"{path.name}{ASIDE}{datetime.now(UTC):%Y%m%dT%H%M%SZ}"
    names = (path.with_name(stem if not number else f"{stem}-{number}") for number in range(1000))
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    with suppress(FileNotFoundError):
        _log(path).rename(_log(aside))
    return aside


def _swap(path: Path) -> None:
    """Let the new file take the place of the one that was renamed, whose log must not be taken for its."""
    with suppress(FileNotFoundError):
        _log(path).rename(_log(_last_aside(path)))
    path.with_name(path.name + "-shm").unlink(missing_ok=True)
    _new(path).rename(path)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _last_aside(path: Path) -> Path:
    found = [one for one in path.parent.glob(f"{path.name}{ASIDE}*") if not one.name.endswith(("-wal", "-shm"))]
    return max(found, key=lambda one: one.stat().st_ctime_ns, default=path)


def _new(path: Path) -> Path:
    return path.with_name(path.name + ".mended")


def _log(path: Path) -> Path:
    return path.with_name(path.name + "-wal")


def _remove(path: Path) -> None:
    for end in ("", "-wal", "-shm"):
        path.with_name(path.name + end).unlink(missing_ok=True)


def _tables(database: sqlite3.Connection) -> dict[str, list[str]]:
    """The columns of each table; of SQLite's own only the last numbers of AUTOINCREMENT."""
    kept = "type = 'table' AND (name NOT LIKE 'sqlite%' OR name = 'sqlite_sequence')"
    # Those numbers first, as each row that is copied raises its table's.
    order = "ORDER BY name <> 'sqlite_sequence', name"
    names = [name for [name] in database.execute(f"SELECT name FROM sqlite_master WHERE {kept} {order}")]  # noqa: S608
    return {name: [row[1] for row in database.execute(f'PRAGMA table_info("{name}")')] for name in names}


@contextmanager
def _legible(path: Path, new: Path | None, tables: Iterable[str]) -> Iterator[sqlite3.Connection]:
    """The file as it is; else with the length that its first page tells of; else with the first page of ``new``.

    In memory with nothing in it where also that cannot be read.
    """
    copy = path.with_name(path.name + ".copy")
    try:
        for begin in (None, path, new) if new else (None, path):
            if begin is not None:
                _restored_begin(path, begin, copy)
            with closing(
                sqlite3.connect(f"{(copy if begin else path).resolve().as_uri()}?mode=ro", uri=True)
            ) as source:
                source.text_factory = _text
                try:
                    there = {name for [name] in source.execute("SELECT name FROM sqlite_master")}
                except _UNREADABLE as error:
                    log.warning("%s cannot be read: %s", path, error)
                    continue
                if there & set(tables):
                    yield source
                    return
        with closing(sqlite3.connect(":memory:")) as source:
            yield source
    finally:
        _remove(copy)


def _restored_begin(path: Path, begin: Path, copy: Path) -> None:
    make_file(copy)
    shutil.copyfile(path, copy)
    with begin.open("rb") as file:
        first = file.read(_PAGE_BYTES)
        pages = max(int.from_bytes(first[28:32], "big"), -(-path.stat().st_size // _PAGE_BYTES))
    with copy.open("r+b") as file:
        file.write(first)
        if pages < _MOST_PAGES:  # it is damaged, after all
            file.truncate(pages * _PAGE_BYTES)
            file.seek(28)
            file.write(pages.to_bytes(4, "big"))
    with suppress(FileNotFoundError):
        make_file(_log(copy))
        shutil.copyfile(_log(path), _log(copy))


def _copied(
    source: sqlite3.Connection, target: sqlite3.Connection, table: str, columns: Iterable[str], fits: Fits
) -> int:
    """Copy what can be read of a table, and tell how many rows that were; of SQLite's own none."""
    try:
        there = {row[1] for row in source.execute(f'PRAGMA table_info("{table}")')}
    except _UNREADABLE as error:
        log.warning("nothing can be read of %s: %s", table, error)
        return 0
    found = [name for name in columns if name in there]
    names, places = ", ".join(f'"{name}"' for name in found), ", ".join("?" * len(found))
    insert = f'INSERT OR IGNORE INTO "{table}" ({names}) VALUES ({places})'  # noqa: S608
    count = 0
    for row in _readable(source, table, names) if found else ():
        with suppress(*_UNREADABLE):  # what a damaged row holds may be refused
            if fits(table, dict(zip(found, row, strict=True))):
                count += target.execute(insert, row).rowcount
    return 0 if table == "sqlite_sequence" else count


def _readable(source: sqlite3.Connection, table: str, names: str) -> Iterator[tuple[object, ...]]:
    """Rows from the first one up to where the table is damaged, from the last one down to it, and what is between."""
    select = f'SELECT rowid, {names} FROM "{table}" NOT INDEXED'  # noqa: S608
    low, high = 0, None
    try:
        for rowid, *row in source.execute(f"{select} ORDER BY rowid"):
            yield tuple(row)
            low = rowid
        return
    except _UNREADABLE:
        pass
    try:
        for rowid, *row in source.execute(f"{select} WHERE rowid > ? ORDER BY rowid DESC", (low,)):
            yield tuple(row)
            high = rowid
    except _UNREADABLE:
        pass
    for rowid in range(low + 1, low + _TRIES[1] if high is None else min(high, low + _TRIES[0])):
        with suppress(*_UNREADABLE):
            for _, *row in source.execute(f"{select} WHERE rowid = ?", (rowid,)):
                yield tuple(row)


def _drop_orphans(database: sqlite3.Connection) -> None:
    """Rows whose parents could not be read are of no use to anybody; they are in the file that was set aside."""
    while orphans := [(row[0], row[1]) for row in database.execute("PRAGMA foreign_key_check")]:
        for table, rowid in orphans:
            database.execute(f'DELETE FROM "{table}" WHERE rowid = ?', (rowid,))  # noqa: S608


class _Unreadable:
    """In place of a text that is none: no row with it can be inserted."""


def _text(content: bytes) -> str | _Unreadable:
    try:
        return content.decode()
    except UnicodeDecodeError:
        return _Unreadable()
