"""How many requests a source counted in each of the last minutes."""

from __future__ import annotations

from collections.abc import Iterator

from manager.control.counted_twice import MINUTES
from manager.telemetry.store import LATE_S, SKEW_S

_MINUTE_S = 60.0
_SETTLED_S = LATE_S + SKEW_S
"""So long after its end no source counts in a minute any more."""
_KEPT = MINUTES + 2


class Tally:
    """Requests by the minute in which they ended. Not thread-safe."""

    def __init__(self) -> None:
        self._minutes: dict[int, float] = {}

    def add(self, requests: float, start_s: float, end_s: float) -> None:
        """Count requests that ended between these times, in seconds since the epoch; spread evenly."""
        for minute, count in _by_minute(requests, start_s, end_s):
            self._minutes[minute] = self._minutes.get(minute, 0.0) + count
        if len(self._minutes) > _KEPT:
            now = int(end_s // _MINUTE_S)
            # These may be late: requests of the next minute may have come before.
            self._minutes = {
                minute: count for minute, count in self._minutes.items() if now - _KEPT < minute <= now + 1
            }

    def last(self, now_s: float) -> tuple[float, ...]:
        """Of the last MINUTES that are settled, the oldest first."""
        end = int((now_s - _SETTLED_S) // _MINUTE_S)
        return tuple(self._minutes.get(minute, 0.0) for minute in range(end - MINUTES, end))


def _by_minute(requests: float, start_s: float, end_s: float) -> Iterator[tuple[int, float]]:
    first, last = int(start_s // _MINUTE_S), int(end_s // _MINUTE_S)
    if end_s <= start_s:
        yield last, requests
        return
    for minute in range(first, last + 1):
        inside_s = min(end_s, (minute + 1) * _MINUTE_S) - max(start_s, minute * _MINUTE_S)
        yield minute, requests * inside_s / (end_s - start_s)
