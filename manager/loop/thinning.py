"""What waits for a manager that is away, made fewer: windows and ticks of the same minute become one."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from manager.control.tick_means import mean_tick
from manager.model.histogram import Histogram
from manager.model.records import TickRecord, VcpuTick, VmTick
from manager.model.window import Ready, Window, merge

UNTOUCHED = 500
"""So many of the oldest items stay as they are. They may be on their way to the manager, or may have reached it without
its answer reaching this host; and the manager may know the begin of the first windows among them, which were still
growing. Any of them merged with others would be counted twice."""

_MINUTE_S = 60.0
_MOST = 3000  # rows that are read at once, so that a tick's records do not wait for long
_FIRST = "SELECT seq FROM waiting ORDER BY seq LIMIT 1 OFFSET ?"
_BULK = "SELECT seq, kind, body FROM waiting WHERE seq > ? AND kind IN ('window', 'tick') ORDER BY seq LIMIT ?"
_REPLACE = "UPDATE waiting SET body = ? WHERE seq = ?"
_REMOVE = "DELETE FROM waiting WHERE seq = ?"

_Group = tuple[str, str, int]
"""Kind, application, and number of the minute."""


class Thinning:
    """Makes the rows of an outbox fewer, going on where it ended the last time."""

    def __init__(self) -> None:
        self._done = 0

    def thin(self, cursor: sqlite3.Cursor) -> int:
        """Merge windows and ticks of whole minutes, the oldest there are, and tell how many rows are gone.

        0 means that there are none to be merged. Call it in a transaction. Raises sqlite3.Error.
        """
        oldest = cursor.execute(_FIRST, (UNTOUCHED - 1,)).fetchone()
        if oldest is None:
            return 0
        rows = cursor.execute(_BULK, (max(self._done, oldest[0]), _MOST)).fetchall()
        groups: dict[_Group, list[tuple[int, dict[str, Any]]]] = {}
        for seq, kind, body in rows:
            found = json.loads(body)
            groups.setdefault(_group(kind, found), []).append((seq, found))
        last = max((minute for _, _, minute in groups), default=0)  # there may be more of it
        gone = 0
        for (kind, _, minute), group in groups.items():
            if minute < last and len(group) > 1:
                try:
                    merged = (_window if kind == "window" else _tick)([found for _, found in group])
                except (LookupError, TypeError, ValueError, AttributeError):
                    continue  # of another version: it stays as it is
                cursor.execute(_REPLACE, (json.dumps(merged), group[-1][0]))
                cursor.executemany(_REMOVE, [(seq,) for seq, _ in group[:-1]])
                gone += len(group) - 1
        unfinished = [seq for (_, _, minute), group in groups.items() if minute == last for seq, _ in group]
        self._done = max(self._done, min(unfinished, default=1) - 1)
        return gone


def _group(kind: str, found: Mapping[str, Any]) -> _Group:
    if kind == "window":
        return kind, found["application"], math.ceil(found["end_s"] / _MINUTE_S) - 1
    return kind, "", math.floor(found["time_s"] / _MINUTE_S)


def _window(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return asdict(merge(_window_of(part) for part in parts))


def _window_of(part: Mapping[str, Any]) -> Window:
    buckets = {int(bucket): count for bucket, count in part["histogram"]["buckets"].items()}
    ready = Ready(**part["ready"]) if part["ready"] else None
    return Window(part["application"], part["start_s"], part["end_s"], Histogram(buckets), part["requests"], ready)


def _tick(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    ticks = sorted((_tick_of(part) for part in parts), key=lambda tick: tick.time_s)
    return asdict(mean_tick([(tick, 1) for tick in ticks]))


def _tick_of(part: Mapping[str, Any]) -> TickRecord:
    vms = (VmTick(**{**vm, "vcpu": VcpuTick(**vm["vcpu"]) if vm.get("vcpu") else None}) for vm in part["vms"])
    return TickRecord(**{**part, "vms": tuple(vms)})
