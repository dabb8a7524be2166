"""What waits for the manager, on disk, so that neither its absence nor the agent's death loses it.

But for what comes with every interval: the newest windows and ticks are mostly acknowledged before the next ones come,
and are written only if they are not. So an agent that is killed loses those of one interval at most.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from pathlib import Path
from typing import Any

from manager.errors import JournalError
from manager.loop.sqlite import open_file, transaction
from manager.model.records import DecisionRecord, Event, TickRecord
from manager.model.window import Window

_SCHEMA = """
CREATE TABLE IF NOT EXISTS waiting (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, body TEXT NOT NULL
) STRICT
"""
_INSERT = "INSERT INTO waiting (seq, kind, body) VALUES (?, ?, ?)"
_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'waiting'"
_DROP_BULK = """
DELETE FROM waiting WHERE seq IN (
    SELECT seq FROM waiting WHERE kind IN ('window', 'tick') ORDER BY seq LIMIT ?
)
"""
_DROP_ANY = "DELETE FROM waiting WHERE seq IN (SELECT seq FROM waiting ORDER BY seq LIMIT ?)"

Item = DecisionRecord | Event | Window | TickRecord
Fields = dict[str, Any]
_Row = tuple[int, str, str]


class Kind(StrEnum):
    """What an item is, as the file says it."""

    DECISION = "decision"
    EVENT = "event"
    WINDOW = "window"
    TICK = "tick"


_BULK = frozenset({Kind.WINDOW, Kind.TICK})
_KINDS: Mapping[type[Item], Kind] = {
    DecisionRecord: Kind.DECISION,
    Event: Kind.EVENT,
    Window: Kind.WINDOW,
    TickRecord: Kind.TICK,
}


def _fields_of(item: Any) -> Fields:
    """Like dataclasses.asdict, but that copies all that is below too, which takes twenty times longer."""
    return {name: getattr(item, name) for name in item.__slots__}


@dataclass(frozen=True, slots=True)
class Waiting:
    """The oldest items: number of the last one (0: none wait), whether it is the last of all, and fields by kind."""

    last: int
    complete: bool
    fields: Mapping[Kind, list[Fields]]


class Outbox:
    """A bounded queue. Safe to use from several threads.

    When it is full, the oldest windows and ticks are dropped, and only without any the oldest records and events: what
    comes with every interval must not push out what is said once.
    """

    def __init__(self, path: Path, max_rows: int) -> None:
        """Open or create. Raises JournalError when the file cannot be used."""
        self._max_rows = max_rows
        self._lock = threading.Lock()
        try:
            self._database = open_file(path, synchronous="NORMAL")
            self._database.execute(_SCHEMA)
            [self._rows] = self._database.execute("SELECT count(*) FROM waiting").fetchone()
            [self._last] = self._database.execute(_LAST).fetchone()
            self._unwritten: list[_Row] = []
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the outbox {path} cannot be used: {error}") from error

    def put(self, items: Iterable[Item]) -> None:
        """Add to the end. Raises JournalError when the disk refuses; then nothing was added."""
        bodies = [(_KINDS[type(item)], json.dumps(item, default=_fields_of)) for item in items]
        if not bodies:
            return
        with self._lock:
            rows: list[_Row] = [(self._last + place, *body) for place, body in enumerate(bodies, start=1)]
            acknowledged_soon = not self._unwritten and self._rows + len(rows) <= self._max_rows
            if acknowledged_soon and all(kind in _BULK for kind, _ in bodies):
                self._unwritten = rows
            else:
                self._write([*self._unwritten, *rows])
            self._last = rows[-1][0]

    def _write(self, rows: list[_Row]) -> None:
        try:
            with transaction(self._database) as cursor:
                cursor.executemany(_INSERT, rows)
                total = self._rows + len(rows)
                for statement in (_DROP_BULK, _DROP_ANY):
                    if total > self._max_rows:
                        total -= cursor.execute(statement, (total - self._max_rows,)).rowcount
        except sqlite3.Error as error:
            raise JournalError(f"the outbox cannot be written: {error}") from error
        self._rows, self._unwritten = total, []

    def peek(self, limit: int, max_bytes: int) -> Waiting:
        """The oldest items, at most ``limit`` and ``max_bytes`` of them, but one in any case.

        Raises JournalError when the file cannot be read.
        """
        last = size = taken = 0
        complete = True
        fields: dict[Kind, list[Fields]] = {kind: [] for kind in Kind}
        try:
            with self._lock, closing(self._database.cursor()) as cursor:
                written = cursor.execute("SELECT seq, kind, body FROM waiting ORDER BY seq") if self._rows else ()
                for seq, kind, body in chain(written, self._unwritten):
                    size += len(body)
                    complete = not taken or (taken < limit and size <= max_bytes)
                    if not complete:
                        break
                    fields[Kind(kind)].append(json.loads(body))
                    last, taken = seq, taken + 1
        except sqlite3.Error as error:
            raise JournalError(f"the outbox cannot be read: {error}") from error
        return Waiting(last, complete, fields)

    def drop_through(self, seq: int) -> None:
        """Remove what the manager acknowledged. Raises JournalError when the disk refuses."""
        try:
            with self._lock:
                if self._rows:
                    self._rows -= self._database.execute("DELETE FROM waiting WHERE seq <= ?", (seq,)).rowcount
                self._unwritten = [row for row in self._unwritten if row[0] > seq]
        except sqlite3.Error as error:
            raise JournalError(f"the outbox cannot be written: {error}") from error

    def close(self) -> None:
        """Write what is not yet written, if the disk lets it, and close the file."""
        with self._lock, closing(self._database):
            if self._unwritten:
                with suppress(JournalError):
                    self._write(self._unwritten)
