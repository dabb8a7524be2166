"""A damaged SQLite database: noticed at the start, set aside, and rebuilt from the rows that can be read.

A file is checked at the start where it is small, was not closed, or showed damage in use, which leaves a mark for the
next start. PostgreSQL looks after its own files.
"""

from __future__ import annotations

import fcntl
import os
import re
import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from pathlib import Path

from manager.errors import DatabaseUnavailable
from manager.private import make_file
from manager.sqlite_files import Damage, check_pages, check_rows, finish, is_unusable, read_only, recover

_SMALL_BYTES = 64 << 20
_MAGIC, _ENDING = b"SQLite format 3\0", ".db"
_REVISION = re.compile("[0-9]{4}")


def mark(file: Path) -> None:
    """Note for the next start that the file showed damage. Where that cannot be, it shows again."""
    with suppress(OSError):
        make_file(_mark(file))


def recover_database(file: Path, create: Callable[[Path, str], None]) -> Damage | None:
    """Recover the file if it is damaged. ``create`` makes an empty database of a revision at another path.

    Of several processes that start at once, one does. Raises DatabaseUnavailable: then all is as it was. So it does for
    a file that neither begins as one of SQLite's nor is called ``*.db``: then the URL is wrong.
    """
    if not file.parent.is_dir():
        return None
    try:
        folder = os.open(file.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            damage = finish(file)
            if why := _damage(file):
                revision = _revision(file)
                damage = recover(file, lambda new: create(new, revision), why, _fits)
            _mark(file).unlink(missing_ok=True)
            return damage
        finally:
            os.close(folder)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseUnavailable(f"database {file} cannot be checked, or recovered: {error}") from error


def _damage(file: Path) -> str:
    """The damage of a file, empty for none."""
    if not file.is_file() or not file.stat().st_size or not _is_suspect(file):
        return ""
    try:
        with closing(sqlite3.connect(file, timeout=15)) as connection:
            check_pages(connection)
            check_rows(connection, _fits)
    except (sqlite3.Error, ValueError) as error:
        if not is_unusable(error) or not _is_ours(file):
            raise
        return str(error)
    return ""


def _fits(table: str, row: Mapping[str, object]) -> bool:
    """Whether the revision of the database is written like one."""
    return table != "alembic_version" or _REVISION.fullmatch(str(row["version_num"])) is not None


def _is_ours(file: Path) -> bool:
    with file.open("rb") as content:
        return content.read(len(_MAGIC)) == _MAGIC or file.suffix == _ENDING


def _is_suspect(file: Path) -> bool:
    log = file.with_name(file.name + "-wal")
    return file.stat().st_size < _SMALL_BYTES or _mark(file).exists() or (log.exists() and log.stat().st_size > 0)


def _revision(file: Path) -> str:
    """That of the tables, the newest where it cannot be read."""
    with suppress(sqlite3.Error, UnicodeDecodeError), closing(read_only(file)) as source:
        for [revision] in source.execute("SELECT version_num FROM alembic_version"):
            if _REVISION.fullmatch(str(revision)):
                return str(revision)
    return "head"


def _mark(file: Path) -> Path:
    return file.with_name(file.name + ".damaged")
