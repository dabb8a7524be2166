"""What waits for the manager, on disk, so that neither its absence nor the agent's death loses it.

But for what comes with every interval: the newest windows and ticks are mostly acknowledged before the next ones come,
and are written only if they are not. So an agent that is killed loses those of one interval at most.
"""

from __future__ import annotations

import json
import math
import sqlite3
import threading
from binascii import a2b_base64, b2a_base64
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

from manager.control.tick_means import mean_tick
from manager.errors import JournalError
from manager.loop.sqlite import Layout, open_or_recover, transaction
from manager.model.histogram import Histogram
from manager.model.packed_histogram import UnreadHistogram, as_packed
from manager.model.records import DecisionRecord, Event, TickRecord, VcpuTick, VmTick
from manager.model.resource_use import resources_of
from manager.model.window import Ready, Window, merge
from manager.sqlite_files import Damage, is_broken

_SCHEMA = """
CREATE TABLE IF NOT EXISTS waiting (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, body TEXT NOT NULL
) STRICT
"""
_ASIDE = """
CREATE TABLE IF NOT EXISTS set_aside (
    seq INTEGER PRIMARY KEY AUTOINCREMENT, kind TEXT NOT NULL, body TEXT NOT NULL, why TEXT NOT NULL
) STRICT
"""
_EVENTS = "CREATE INDEX IF NOT EXISTS waiting_events ON waiting (seq) WHERE kind = 'event'"
_ABOUT = "CREATE TABLE IF NOT EXISTS about (host TEXT PRIMARY KEY) STRICT"
_SET_ASIDE = """
INSERT INTO set_aside (kind, body, why) SELECT ?1, ?2, ?3
WHERE NOT EXISTS (SELECT 1 FROM set_aside WHERE kind = ?1 AND body = ?2)
"""
_SET_ALL_ASIDE = "INSERT INTO set_aside (kind, body, why) SELECT kind, body, ? FROM waiting ORDER BY seq DESC LIMIT ?"
_COUNT_ASIDE = "SELECT count(*) FROM set_aside"
_BOUND_ASIDE = "DELETE FROM set_aside WHERE seq <= (SELECT max(seq) FROM set_aside) - ?"
MOST_ASIDE = 1000
"""So many items that the manager does not accept are kept, the newest."""

_INSERT = "INSERT INTO waiting (seq, kind, body) VALUES (?, ?, ?)"
_OLDEST = "SELECT seq, kind, body FROM waiting WHERE seq > ? ORDER BY seq"
_OLDEST_EVENTS = "SELECT seq, kind, body FROM waiting WHERE seq > ? AND kind = 'event' ORDER BY seq"
_FORGET = "DELETE FROM waiting WHERE seq <= ?"
_FORGET_EVENTS = "DELETE FROM waiting WHERE seq <= ? AND kind = 'event'"
_LAST = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'waiting'"
_DROP_BULK = """
DELETE FROM waiting WHERE seq IN (
    SELECT seq FROM waiting WHERE kind IN ('window', 'tick') ORDER BY seq LIMIT ?
)
"""
_DROP_ANY = "DELETE FROM waiting WHERE seq IN (SELECT seq FROM waiting ORDER BY seq LIMIT ?)"

_MOST_UNWRITTEN = 1000

PART_ITEMS = 500
"""A report has so many items at most."""
UNTOUCHED = PART_ITEMS
"""So many of the oldest items stay as they are. They may be on their way to the manager, or may have reached it without
its answer reaching this host; and the manager may know the begin of the first windows among them, which were still
growing. Any of them merged with others would be counted twice."""

_MINUTE_S = 60.0
_THINNED_AT_ONCE = 3000  # rows that are read at once, so that a tick's records do not wait for long
_FIRST = "SELECT seq FROM waiting ORDER BY seq LIMIT 1 OFFSET ?"
_SELECT_BULK = "SELECT seq, kind, body FROM waiting WHERE seq > ? AND kind IN ('window', 'tick') ORDER BY seq LIMIT ?"
_REPLACE = "UPDATE waiting SET body = ? WHERE seq = ?"
_REMOVE = "DELETE FROM waiting WHERE seq = ?"

_Minute = tuple[str, str, int]
"""Kind, application, and number of the minute."""

Item = DecisionRecord | Event | Window | TickRecord
Fields = dict[str, Any]
Found = TypeVar("Found")
_Row = tuple[int, str, str]


class ItemKind(StrEnum):
    """What an item is, as the file says it."""

    DECISION = "decision"
    EVENT = "event"
    WINDOW = "window"
    TICK = "tick"


_BULK = frozenset({ItemKind.WINDOW, ItemKind.TICK})
_KINDS: Mapping[type[Item], ItemKind] = {
    DecisionRecord: ItemKind.DECISION,
    Event: ItemKind.EVENT,
    Window: ItemKind.WINDOW,
    TickRecord: ItemKind.TICK,
}


def _fields_of(item: Any) -> Fields:
    """Like dataclasses.asdict, but that copies all that is below too, which takes twenty times longer."""
    names, values = _reader(type(item))  # type: ignore[arg-type]
    return dict(zip(names, values(item), strict=True))


@cache
def _reader(kind: Hashable) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    """Names of a dataclass's fields, and what returns their values."""
    names: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]
    return names, attrgetter(*names) if len(names) > 1 else lambda item: (getattr(item, names[0]),)


def _written(value: Any) -> Fields:
    """What is not JSON as the file has it: histograms as the manager gets them, in a fifth of the room of counts."""
    if isinstance(value, Histogram):
        return {"packed": b2a_base64(as_packed(value).packed, newline=False).decode()}
    return _fields_of(value)


def kept_histogram(fields: Mapping[str, Any]) -> Histogram:
    """A histogram from the file; agents of earlier versions wrote counts. Raises LookupError, ValueError, TypeError."""
    if "packed" in fields:
        return UnreadHistogram(a2b_base64(fields["packed"], strict_mode=True))
    return Histogram({int(bucket): count for bucket, count in fields["buckets"].items()})


def as_json(item: Item | Fields) -> str:
    """An item as the file has it."""
    return json.dumps(item, default=_written)


@dataclass(frozen=True, slots=True)
class Waiting:
    """The oldest items: number of the last one (0: none wait), whether it is the last of all, and fields by kind.

    ``fresh`` are those of the last interval, which are in no file yet.
    """

    last: int
    complete: bool
    fields: Mapping[ItemKind, list[Fields]]
    fresh: Sequence[tuple[ItemKind, Item]] = ()


def _fits(table: str, row: Mapping[str, object]) -> bool:
    """Whether an item can be understood: one that cannot came of damage or of another version."""
    if table != "waiting":
        return True
    try:
        return isinstance(json.loads(str(row["body"])), dict) and ItemKind(str(row["kind"])) in ItemKind
    except (ValueError, KeyError):
        return False


def _prepare(database: sqlite3.Connection) -> None:
    for table in (_SCHEMA, _ASIDE, _ABOUT):
        database.execute(table)
    with suppress(sqlite3.OperationalError):  # on a full disk a file of an earlier version does without
        database.execute(_EVENTS)
    database.execute("SELECT seq, kind, body FROM waiting LIMIT 1").fetchone()  # also an empty table must have these


_LAYOUT = Layout("NORMAL", _prepare, _fits)


def _newest(rows: list[_Row], most: int) -> list[_Row]:
    """At most so many rows, those that come with every interval being left out first."""
    excess = max(len(rows) - most, 0)
    bulk = {row[0] for row in [row for row in rows if row[1] in _BULK][:excess]}
    rest = [row for row in rows if row[0] not in bulk]
    return rest[max(len(rest) - most, 0) :]


class Thinning:
    """Makes what waits for a manager that is away fewer, going on where it ended the last time."""

    def __init__(self) -> None:
        self._done = 0

    def thin(self, cursor: sqlite3.Cursor) -> int:
        """Merge windows and ticks of whole minutes, the oldest there are, and return how many rows are gone.

        0 means that there are none to be merged. Call it in a transaction. Raises sqlite3.Error.
        """
        oldest = cursor.execute(_FIRST, (UNTOUCHED - 1,)).fetchone()
        if oldest is None:
            return 0
        rows = cursor.execute(_SELECT_BULK, (max(self._done, oldest[0]), _THINNED_AT_ONCE)).fetchall()
        groups: dict[_Minute, list[tuple[int, Fields]]] = {}
        last = 0
        for seq, kind, body in rows:
            fields = json.loads(body)
            with suppress(LookupError, TypeError, ValueError, OverflowError):  # of another version: it stays as it is
                key = _minute(kind, fields)
                groups.setdefault(key, []).append((seq, fields))
                last = key[2]  # there may be more of it
        unfinished = {key: group for key, group in groups.items() if key[2] == last}
        gone = sum(_merged(cursor, key[0], group) for key, group in groups.items() if key not in unfinished)
        if not gone and len(rows) == _THINNED_AT_ONCE:  # else a minute that has more rows than that holds up all others
            gone = sum(_merged(cursor, key[0], group) for key, group in unfinished.items())
            self._done = rows[-1][0]
        else:
            first = min((seq for group in unfinished.values() for seq, _ in group), default=1)
            self._done = max(self._done, first - 1)
        return gone


def _merged(cursor: sqlite3.Cursor, kind: str, group: Sequence[tuple[int, Fields]]) -> int:
    """Put one row in the place of all of a group, and return how many rows are gone. Raises sqlite3.Error."""
    if len(group) == 1:
        return 0
    try:
        parts = [fields for _, fields in group]
        merged = json.dumps(_window(parts) if kind == "window" else _tick(parts), default=_written)
    except (LookupError, TypeError, ValueError, AttributeError):
        return 0  # of another version: it stays as it is
    cursor.execute(_REPLACE, (merged, group[-1][0]))
    cursor.executemany(_REMOVE, [(seq,) for seq, _ in group[:-1]])
    return len(group) - 1


def _minute(kind: str, fields: Mapping[str, Any]) -> _Minute:
    if kind == "window":
        return kind, fields["application"], math.ceil(fields["end_s"] / _MINUTE_S) - 1
    return kind, "", math.floor(fields["time_s"] / _MINUTE_S)


def _window(parts: Sequence[Mapping[str, Any]]) -> Window:
    return merge(_window_of(part) for part in parts)


def _window_of(part: Mapping[str, Any]) -> Window:
    histogram = kept_histogram(part["histogram"])
    ready = Ready(**part["ready"]) if part["ready"] else None
    return Window(part["application"], part["start_s"], part["end_s"], histogram, part["requests"], ready)


def _tick(parts: Sequence[Mapping[str, Any]]) -> TickRecord:
    ticks = sorted((_tick_of(part) for part in parts), key=lambda tick: tick.time_s)
    return mean_tick([(tick, 1) for tick in ticks])


def _tick_of(part: Mapping[str, Any]) -> TickRecord:
    vms = (VmTick(**{**vm, "vcpu": VcpuTick(**vm["vcpu"]) if vm.get("vcpu") else None}) for vm in part["vms"])
    return TickRecord(**{**part, "vms": tuple(vms), "resources": resources_of(part.get("resources"))})


class Outbox:
    """A bounded queue. Safe to use from several threads.

    When it is full, windows and ticks of the same minute are merged, the oldest first; then these are dropped, and only
    without any the oldest records and events: what comes with every interval must not push out what is said once. What
    the disk refuses waits in memory meanwhile, at most 1,000 items, and goes to the manager from there.
    """

    def __init__(self, path: Path, max_rows: int) -> None:
        """Open or create. Raises JournalError when the file cannot be used."""
        self._path = path
        self._max_rows = max_rows
        self._lock = threading.Lock()
        self._unwritten: list[_Row] = []
        self._fresh: list[tuple[int, ItemKind, Item]] = []  # of the last interval, mostly acknowledged before the next
        self._thinning = Thinning()
        self._rows = 0
        self._last = self._taken = 0
        self._damages: list[Damage] = []
        try:
            self._open()
        except (OSError, sqlite3.Error, ValueError) as error:
            raise JournalError(f"the outbox {path} cannot be used: {error}") from error

    def _open(self) -> None:
        self._database, damage = open_or_recover(self._path, _LAYOUT)
        self._damages += [damage] if damage else []
        [self._rows] = self._database.execute("SELECT count(*) FROM waiting").fetchone()
        [last] = self._database.execute(_LAST).fetchone()
        self._last = max(self._last, last)

    def take_damages(self) -> list[Damage]:
        """What happened to the file since this was asked last."""
        with self._lock:
            damages, self._damages = self._damages, []
        return damages

    def _act(self, done: str, act: Callable[[], Found]) -> Found:
        """What ``act`` returns, done again with a file made anew where this one is damaged. Raises JournalError."""
        try:
            try:
                return act()
            except sqlite3.Error as error:
                if not is_broken(error) and not isinstance(error, sqlite3.ProgrammingError):  # closed the time before
                    raise
                self._database.close()
                self._open()
                return act()
        except (OSError, sqlite3.Error, ValueError) as error:
            raise JournalError(f"the outbox cannot be {done}: {error}") from error

    def put(self, items: Iterable[Item]) -> bool:
        """Add to the end, and return whether it was written. Raises JournalError when the disk refuses."""
        with self._lock:
            new = [(seq, _KINDS[type(item)], item) for seq, item in enumerate(items, start=self._last + 1)]
            if not new:
                return False
            room = self._rows + len(new) <= self._max_rows
            self._last = new[-1][0]
            if room and not self._unwritten and not self._fresh and all(kind in _BULK for _, kind, _ in new):
                self._fresh = new
                return False
            self._encode([*self._fresh, *new])
            try:
                self._write()
            finally:
                self._unwritten = _newest(self._unwritten, _MOST_UNWRITTEN)
            return True

    def _encode(self, items: Iterable[tuple[int, ItemKind, Item]]) -> None:
        self._unwritten = [
            *self._unwritten,
            *((seq, kind, as_json(item)) for seq, kind, item in items),
        ]
        self._fresh = []

    def _write(self) -> None:
        self._rows = self._act("written", lambda: self._written(self._unwritten))
        self._unwritten = []

    def _written(self, rows: list[_Row]) -> int:
        with transaction(self._database) as cursor:
            gone = cursor.execute(_FORGET, (self._taken,)).rowcount if self._taken else 0
            cursor.executemany(_INSERT, rows)
            total = self._rows - gone + len(rows)
            if total > self._max_rows:
                total -= self._thinning.thin(cursor)
            for statement in (_DROP_BULK, _DROP_ANY):
                if total > self._max_rows:
                    total -= cursor.execute(statement, (total - self._max_rows,)).rowcount
        return total

    def peek(self, limit: int, max_bytes: int, *, events_only: bool = False) -> Waiting:
        """The oldest items, or the oldest events, at most ``limit`` and ``max_bytes`` of them, but one in any case.

        Raises JournalError when the file cannot be read.
        """
        with self._lock:
            return self._act("read", lambda: self._oldest(limit, max_bytes, events_only=events_only))

    def _oldest(self, limit: int, max_bytes: int, *, events_only: bool) -> Waiting:
        last = size = taken = 0
        complete = True
        fields: dict[ItemKind, list[Fields]] = {kind: [] for kind in ItemKind}
        with closing(self._database.cursor()) as cursor:
            query = _OLDEST_EVENTS if events_only else _OLDEST
            written = cursor.execute(query, (self._taken,)) if self._rows else ()
            unwritten = (row for row in self._unwritten if row[1] == ItemKind.EVENT or not events_only)
            for seq, kind, body in chain(written, unwritten):
                size += len(body)
                complete = not taken or (taken < limit and size <= max_bytes)
                if not complete:
                    break
                fields[ItemKind(kind)].append(json.loads(body))
                last, taken = seq, taken + 1
        after = [] if events_only else self._fresh  # among which there is no event
        fresh = after[: max(limit - taken, 0 if taken else 1)] if complete else []
        return Waiting(
            fresh[-1][0] if fresh else last,
            complete and len(fresh) == len(after),
            fields,
            tuple((item_kind, item) for _, item_kind, item in fresh),
        )

    def drop_through(self, seq: int) -> None:
        """Remove what the manager acknowledged; where the disk refuses, with the next ``put`` that it takes."""
        with self._lock:
            self._taken = max(self._taken, seq)
            self._unwritten = [row for row in self._unwritten if row[0] > seq]
            self._fresh = [row for row in self._fresh if row[0] > seq]
            if self._rows:
                with suppress(JournalError):
                    self._rows = self._act("written", lambda: self._rows - self._dropped())

    def drop_events_through(self, seq: int) -> None:
        """The same of events alone. Those that the disk does not let go are reported once more, and stored once."""
        with self._lock:
            self._unwritten = [row for row in self._unwritten if row[0] > seq or row[1] != ItemKind.EVENT]
            if self._rows:
                with suppress(JournalError):
                    self._rows = self._act("written", lambda: self._rows - self._dropped_events(seq))

    def _dropped_events(self, seq: int) -> int:
        return self._database.execute(_FORGET_EVENTS, (seq,)).rowcount

    def _dropped(self) -> int:
        return self._database.execute(_FORGET, (self._taken,)).rowcount

    def set_aside(self, items: Sequence[tuple[str, Item | Fields, str]]) -> None:
        """Keep what the manager does not accept, with the reason, to be looked at: the newest, each once.

        Where the disk refuses, it is not kept.
        """
        rows = [(kind, as_json(item), why) for kind, item, why in items]
        if rows:
            with self._lock, suppress(JournalError):
                self._act("written", lambda: self._put_aside(rows))

    def _put_aside(self, rows: Sequence[tuple[str, str, str]]) -> None:
        with transaction(self._database) as cursor:
            cursor.executemany(_SET_ASIDE, rows)
            cursor.execute(_BOUND_ASIDE, (MOST_ASIDE,))

    @property
    def waiting(self) -> int:
        """How many items wait."""
        with self._lock:
            return self._rows + len(self._unwritten) + len(self._fresh)

    def oldest_s(self) -> float | None:
        """When the oldest item came about, since the epoch; None: there is none, or it does not say so.

        Raises JournalError.
        """
        items = [*chain.from_iterable(self.peek(1, 1).fields.values())]
        found = items[0].get("time_s", items[0].get("end_s")) if items else None
        return found if isinstance(found, float | int) else None

    @property
    def aside(self) -> int:
        """How many items are kept that the manager did not accept. Raises JournalError."""
        with self._lock:
            [count] = self._act("read", lambda: self._database.execute(_COUNT_ASIDE).fetchone())
        return int(count)

    def claim(self, host: str) -> tuple[str, int]:
        """Whose items wait here, if they were of another host's name, and how many; they are set aside.

        A report is of the host that did it, and so is the token that it is sent with. Empty: there are
        none. Raises JournalError.
        """
        with self._lock:
            return self._act("written", lambda: self._claimed(host))

    def _claimed(self, host: str) -> tuple[str, int]:
        with transaction(self._database) as cursor:
            before = [name for [name] in cursor.execute("SELECT host FROM about")]
            if before == [host]:
                return "", 0
            cursor.execute("DELETE FROM about")
            cursor.execute("INSERT INTO about (host) VALUES (?)", (host,))
            if not before or not self._rows:
                return "", 0
            why = f"it is of host {before[0]}, and this one is {host}"
            cursor.execute(_SET_ALL_ASIDE, (why, MOST_ASIDE))
            cursor.execute(_BOUND_ASIDE, (MOST_ASIDE,))
            gone = cursor.execute(_FORGET, (self._last,)).rowcount
        self._rows = 0
        return before[0], gone

    def close(self) -> None:
        """Write what is not yet written, if the disk lets it, and close the file."""
        with self._lock, closing(self._database):
            self._encode(self._fresh)
            if self._unwritten:
                with suppress(JournalError):
                    self._write()
