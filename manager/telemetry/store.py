"""Counts response times by application and slot."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import groupby
from operator import itemgetter

from manager.control.judged_windows import slot_number
from manager.model.histogram import Histogram, bucket_of
from manager.model.window import MAX_COUNT, Ready, Window

LATE_S = 15.0
"""How long after its end a slot still takes response times; then it is closed."""
KEEP_S = 180.0
"""How long slots are kept for decisions."""
SKEW_S = 1.0
"""How far in the future a response time may have ended: clocks differ a little."""
_MAX_UNCOLLECTED = 100_000


class Fate(Enum):
    """What became of response times: counted, or not because their slot is closed, lies in the future, or is full."""

    TAKEN = auto()
    LATE = auto()
    EARLY = auto()
    FULL = auto()


@dataclass(slots=True)
class _Slot:
    """A slot that is not closed yet."""

    buckets: dict[int, int] = field(default_factory=dict)
    count: int = 0
    requests: float | None = None
    ready: Ready | None = None


class WindowStore:
    """Counts response times per application and slot. Thread-safe; times are seconds since the epoch.

    Slot k of length L covers (k L, (k + 1) L]. It takes response times until ``LATE_S`` after its end, then is closed
    and never changes again.

    Slots are dated by the wall clock, so they begin again where that is set: what was counted before keeps its date and
    is reported, but no decision uses it once it lies in the future.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        slot_s: float = 5.0,
        steady: Callable[[], float] | None = None,
    ) -> None:
        """``steady``, seconds that only grow, shows when the wall clock was set."""
        self._clock = clock
        self._steady = steady
        self._offset_s = self._offset_now_s(clock())
        self._last_s = float("-inf")
        self.slot_s = slot_s
        self._lock = threading.Lock()
        # By application and number of the slot:
        self._open: dict[tuple[str, int], _Slot] = {}
        self._done: dict[tuple[str, int], Window] = {}
        self._uncollected: deque[Window] = deque(maxlen=_MAX_UNCOLLECTED)
        self._closed_until = -1  # number of the last slot that is closed by now

    def set_slot_length(self, slot_s: float) -> None:
        """Count in slots of another length from now on; the slots so far are closed, and not used for decisions."""
        with self._lock:
            if slot_s != self.slot_s:
                self._close(self._open, self._clock())
                self._done.clear()
                self.slot_s = slot_s
                self._closed_until = -1

    def local_s(self, end_s: float) -> float:
        """A sender's ``end_s`` by this machine's clock, or by that clock before it was set where only that fits.

        A VM's clock is not set with the host's, so its dates would be refused from the moment the host's is.
        """
        with self._lock:
            now_s = self._clock()
            moved_s = self._offset_now_s(now_s) - self._offset_s
            if abs(moved_s) <= SKEW_S or _is_plausible(end_s, now_s):
                return end_s
            return end_s + moved_s if _is_plausible(end_s + moved_s, now_s) else end_s

    def add(
        self,
        application: str,
        end_s: float,
        times_us: Collection[float] = (),
        *,
        buckets: Mapping[int, int] | None = None,
        requests: float | None = None,
        ready: Ready | None = None,
    ) -> Fate:
        """Count response times, single ones (microseconds) and by histogram bucket, that ended at ``end_s``.

        ``requests`` of these are real requests; None: unknown.
        """
        with self._lock:
            now_s = self._advance()
            if end_s > now_s + SKEW_S:
                return Fate.EARLY
            slot = self._slot(application, slot_number(min(end_s, now_s), self.slot_s))
            if slot is None:
                return Fate.LATE
            more = len(times_us) + sum((buckets or {}).values())
            if slot.count + more > MAX_COUNT or (slot.requests or 0.0) + (requests or 0.0) > MAX_COUNT:
                return Fate.FULL
            slot.count += more
            counts = slot.buckets
            for time_us in times_us:
                bucket = bucket_of(time_us)
                counts[bucket] = counts.get(bucket, 0) + 1
            for bucket, count in (buckets or {}).items():
                counts[bucket] = counts.get(bucket, 0) + count
            if requests is not None:
                slot.requests = (slot.requests or 0.0) + requests
            slot.ready = ready or slot.ready
            return Fate.TAKEN

    def add_requests(self, application: str, start_s: float, end_s: float, requests: float) -> Fate:
        """Count requests of unknown response times, spread evenly over a time. Closed slots take none.

        Zero counts too: it distinguishes an idle application from a silent source.
        """
        if requests > MAX_COUNT:
            return Fate.FULL
        with self._lock:
            now_s = self._advance()
            end_s = min(end_s, now_s)
            length_s = end_s - start_s
            if length_s <= 0:
                return Fate.TAKEN
            first = max(math.floor(start_s / self.slot_s), self._closed_until + 1)
            for number in range(first, slot_number(end_s, self.slot_s) + 1):
                inside_s = min(end_s, (number + 1) * self.slot_s) - max(start_s, number * self.slot_s)
                slot = self._slot(application, number)
                if inside_s > 0 and slot is not None:
                    slot.requests = min((slot.requests or 0.0) + requests * inside_s / length_s, MAX_COUNT)
        return Fate.TAKEN

    def slots(self) -> Mapping[str, tuple[Window, ...]]:
        """The slots of the last ``KEEP_S``, by application, oldest first."""
        with self._lock:
            now_s = self._advance()
            windows = self._done | {key: self._window(key, slot, now_s) for key, slot in self._open.items()}
            by_application = groupby(sorted(windows), key=itemgetter(0))
            return {application: tuple(windows[key] for key in keys) for application, keys in by_application}

    def recent(self) -> tuple[Window, ...]:
        """The slots that are not closed yet, as they are now."""
        with self._lock:
            now_s = self._advance()
            return tuple(self._window(key, self._open[key], now_s) for key in sorted(self._open))

    def closed(self) -> tuple[Window, ...]:
        """The slots that were closed since the last call."""
        with self._lock:
            self._advance()
            windows = tuple(self._uncollected)
            self._uncollected.clear()
            return windows

    def _offset_now_s(self, now_s: float) -> float:
        return 0.0 if self._steady is None else now_s - self._steady()

    def _slot(self, application: str, number: int) -> _Slot | None:
        """An open slot, made if need be; None where it is closed."""
        if number <= self._closed_until or (application, number) in self._done:
            return None
        return self._open.setdefault((application, number), _Slot())

    def _window(self, key: tuple[str, int], slot: _Slot, now_s: float) -> Window:
        application, number = key
        # Not begin + length: rounded, that could lie in the next slot.
        start_s, end_s = number * self.slot_s, (number + 1) * self.slot_s
        if slot_number(now_s, self.slot_s) == number:
            end_s = now_s
        return Window(application, start_s, end_s, Histogram(dict(slot.buckets)), slot.requests, slot.ready)

    def _advance(self) -> float:
        """Close what is due and forget what is old. Returns the time now."""
        now_s = self._clock()
        if now_s < self._last_s - SKEW_S:  # set back: every time that comes again is counted again
            self._close((key for key in self._open if key[1] * self.slot_s > now_s), now_s)
            self._done.clear()
        self._last_s = now_s
        until = math.floor((now_s - LATE_S) / self.slot_s) - 1
        if until != self._closed_until:
            self._closed_until = until
            self._done |= self._close((key for key in self._open if key[1] <= until), now_s)
            self._done = {key: window for key, window in self._done.items() if window.end_s >= now_s - KEEP_S}
        return now_s

    def _close(self, keys: Iterable[tuple[str, int]], now_s: float) -> dict[tuple[str, int], Window]:
        windows = {key: self._window(key, self._open.pop(key), now_s) for key in sorted(keys)}
        self._uncollected.extend(windows.values())
        return windows


def _is_plausible(end_s: float, now_s: float) -> bool:
    return now_s - LATE_S <= end_s <= now_s + SKEW_S
