"""A database in two files, so that no damage to one of them loses anything: the journal's."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from manager.loop.sqlite import MEMORY, Layout, connect, open_or_recover, open_sound, transaction
from manager.private import make_file, open_new
from manager.sqlite_files import Damage, DamagedError, finish, is_broken, is_full, is_unusable, rebuild, remove

Act = Callable[[sqlite3.Connection | sqlite3.Cursor], None]

RESERVE_FILE = "reserve"
RESERVE_BYTES = 512 << 10
_PLENTY_BYTES = 16 * RESERVE_BYTES


class Reserve:
    """A file of zeros, kept where there is plenty of space, and given back when the disk is full.

    So the journal can be written and settings restored.
    """

    def __init__(self, path: Path | None) -> None:
        """``path`` None: there is no disk."""
        self._path = path
        self._kept = False

    def keep(self) -> None:
        """Make the file where it is missing and there is space for it."""
        if self._kept or self._path is None:
            return
        with suppress(OSError):
            if not self._path.exists():
                space = os.statvfs(self._path.parent)
                if space.f_bavail * space.f_frsize < _PLENTY_BYTES:
                    return
                self._write(self._path)
            self._kept = True

    def give_back(self) -> bool:
        """Whether there was a file, and its space is free now."""
        present, self._kept = self._kept, False
        if not present or self._path is None:
            return False
        try:
            self._path.unlink()
        except OSError:
            return False
        return True

    @staticmethod
    def _write(path: Path) -> None:
        """Zeros that were written, not a hole. Raises OSError, and then there is no file."""
        try:
            with open_new(path) as file:
                file.write(bytes(RESERVE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)
            raise


def replica_of(path: Path) -> Path:
    """The second file of a database."""
    return path.with_name(f"{path.stem}-replica{path.suffix}")


class ReplicatedFile:
    """Each transaction is durable in the file before it is written to the replica, which does not wait for the disk.

    That is enough: what a journal holds is of one boot, and a process that is killed loses nothing of either. Where the
    file is damaged it is made anew: in use from memory, at the start from the replica, and only without one from its
    own rows that can still be read. Not thread-safe.
    """

    def __init__(self, path: Path, layout: Layout, reserve: Reserve, read: Act, fill: Act) -> None:
        """``read`` takes into memory what a file has, ``fill`` writes all that memory has to an empty one.

        ``reserve`` is what is given back when the disk is full. Raises OSError, sqlite3.Error, ValueError.
        """
        self._path, self._layout, self._reserve = path, layout, reserve
        self._read, self._fill = read, fill
        self._damages: list[Damage] = []
        self._replica: sqlite3.Connection | None = None
        self._database = self._opened()
        reserve.keep()
        self._renew_replica()

    def take_damages(self) -> list[Damage]:
        """What happened to the file since this was asked last."""
        damages, self._damages = self._damages, []
        return damages

    def write(self, act: Act) -> None:
        """Do all of it or nothing, durable on return. Raises OSError, sqlite3.Error."""
        try:
            with transaction(self._database) as cursor:
                act(cursor)
        except sqlite3.Error as error:
            if is_broken(error):
                damaged = self._database
                self._database = self._rebuilt(str(error))
                damaged.close()
            elif not (is_full(error) and self._reserve.give_back()):
                raise
            with transaction(self._database) as cursor:
                act(cursor)
        self._reserve.keep()
        if self._replica is not None:
            with suppress(sqlite3.Error), transaction(self._replica) as cursor:
                act(cursor)
                return
        self._renew_replica()

    def close(self) -> None:
        """Close both files."""
        self._database.close()
        if self._replica is not None:
            self._replica.close()

    def _opened(self) -> sqlite3.Connection:
        try:
            self._note(finish(self._path))
            if not self._path.exists() and replica_of(self._path).exists():
                raise DamagedError("it is gone")
            database = open_sound(self._path, self._layout)
        except (sqlite3.Error, ValueError) as error:
            if not is_unusable(error):
                raise
            if self._read_replica():
                return self._rebuilt(str(error))
            database, damage = open_or_recover(self._path, self._layout)
            self._note(damage)
        self._read(database)
        return database

    def _note(self, damage: Damage | None) -> None:
        self._damages += [damage] if damage else []

    def _read_replica(self) -> bool:
        """Whether there is one that is understood."""
        path = replica_of(self._path)
        if not path.is_file():
            return False
        try:
            with closing(open_sound(path, self._layout)) as replica:
                self._read(replica)
        except (sqlite3.Error, ValueError) as error:
            if not is_unusable(error):
                raise
            return False
        return True

    def _rebuilt(self, why: str) -> sqlite3.Connection:
        """A file made anew from memory. Raises OSError or sqlite3.Error; then the damaged one is still there."""

        def fill(target: sqlite3.Connection) -> str:
            self._fill(target)
            return "nothing of it is lost"

        self._note(rebuild(self._path, lambda new: open_sound(new, self._layout).close(), why, fill))
        return open_sound(self._path, self._layout)

    def _renew_replica(self) -> None:
        """Make the replica anew. Where that cannot be, as on a full disk, there is none until the next write."""
        if self._replica is not None:
            self._replica.close()
            self._replica = None
        if self._path == MEMORY:
            return
        path = replica_of(self._path)
        part = path.with_name(path.name + ".part")
        with suppress(OSError, sqlite3.Error, ValueError):
            remove(path)
            try:
                remove(part)
                make_file(part)
                with closing(sqlite3.connect(part)) as new:
                    new.execute("PRAGMA synchronous = OFF")
                    self._database.backup(new)
                part.rename(path)
                self._replica = connect(path, "OFF")
            finally:
                remove(part)
