"""Records and events waiting for the manager, on disk, so that neither its absence nor the agent's death loses them."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any

from manager.errors import JournalError
from manager.loop.sqlite import open_file, transaction
from manager.model.records import DecisionRecord, Event

_SCHEMA = """
CREATE TABLE IF NOT EXISTS waiting (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, body TEXT NOT NULL
) STRICT
"""
DECISION, EVENT = "decision", "event"


class Outbox:
    """A bounded queue of records; the oldest are dropped when it is full. Safe to use from several threads."""

    def __init__(self, path: Path, max_rows: int) -> None:
        """Open or create. Raises JournalError when the file cannot be used."""
        self._max_rows = max_rows
        self._lock = threading.Lock()
        try:
            self._database = open_file(path, synchronous="NORMAL")
            self._database.execute(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise JournalError(f"the outbox {path} cannot be used: {error}") from error

    def put(self, records: Sequence[DecisionRecord], events: Sequence[Event]) -> None:
        """Add to the end. Raises JournalError when the disk refuses."""
        rows = [(DECISION, json.dumps(asdict(record))) for record in records]
        rows += [(EVENT, json.dumps(asdict(event))) for event in events]
        if not rows:
            return
        try:
            with self._lock, transaction(self._database) as cursor:
                cursor.executemany("INSERT INTO waiting (kind, body) VALUES (?, ?)", rows)
                cursor.execute("DELETE FROM waiting WHERE seq <= (SELECT max(seq) FROM waiting) - ?", (self._max_rows,))
        except sqlite3.Error as error:
            raise JournalError(f"the outbox cannot be written: {error}") from error

    def peek(self, limit: int) -> tuple[int, list[dict[str, Any]], list[dict[str, Any]]]:
        """The oldest ``limit`` rows: the last one's number (0 when empty), decisions, events.

        Raises JournalError when the file cannot be read.
        """
        decisions: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        last = 0
        try:
            with self._lock, closing(self._database.cursor()) as cursor:
                rows = cursor.execute("SELECT seq, kind, body FROM waiting ORDER BY seq LIMIT ?", (limit,)).fetchall()
        except sqlite3.Error as error:
            raise JournalError(f"the outbox cannot be read: {error}") from error
        for seq, kind, body in rows:
            last = seq
            (decisions if kind == DECISION else events).append(json.loads(body))
        return last, decisions, events

    def drop_through(self, seq: int) -> None:
        """Remove what the manager acknowledged. Raises JournalError when the disk refuses."""
        try:
            with self._lock:
                self._database.execute("DELETE FROM waiting WHERE seq <= ?", (seq,))
        except sqlite3.Error as error:
            raise JournalError(f"the outbox cannot be written: {error}") from error

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._database.close()
