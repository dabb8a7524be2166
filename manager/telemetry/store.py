"""The slots in which response times are counted, for each application."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from manager.control.judged_windows import slot_number
from manager.model.histogram import Histogram, bucket_of
from manager.model.window import Ready, Window

LATE_S = 15.0
"""How long after its end a slot still takes response times; then it is closed."""
KEEP_S = 180.0
"""How long slots are kept for decisions."""
SKEW_S = 1.0
"""How far in the future a response time may have ended: clocks differ a little."""
_MAX_UNCOLLECTED = 100_000
MOST = 2**53
"""Response times that a slot counts: no more can be reported."""


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

    Slot k of length L covers (k L, (k + 1) L]. It takes response times until ``late_s`` after its end. Then it is
    closed, and never changes again.

    Slots are dated by the wall clock, so they begin anew where that is set: what was counted before stays as it was
    dated then, and is reported, but is used for no decision once it lies in the future.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.time,
        *,
        slot_s: float = 5.0,
        late_s: float = LATE_S,
        keep_s: float = KEEP_S,
        skew_s: float = SKEW_S,
        steady: Callable[[], float] | None = None,
    ) -> None:
        """``keep_s`` is at least ``late_s``. ``steady``, seconds that only grow, tells when the wall clock was set."""
        self._clock = clock
        self._steady = steady
        self._offset_s = self._offset_now_s(clock())
        self._last_s = float("-inf")
        self._slot_s = slot_s
        self._late_s = late_s
        self._keep_s = keep_s
        self._skew_s = skew_s
        self._lock = threading.Lock()
        self._open: dict[str, dict[int, _Slot]] = {}
        self._done: dict[str, dict[int, Window]] = {}
        self._uncollected: deque[Window] = deque(maxlen=_MAX_UNCOLLECTED)
        self._closed_until = -1  # number of the last slot that is closed by now

    @property
    def slot_s(self) -> float:
        """Length of a slot in seconds."""
        return self._slot_s

    def set_slot_length(self, slot_s: float) -> None:
        """Count in slots of another length from now on; the slots so far are closed, and not used for decisions."""
        with self._lock:
            if slot_s == self._slot_s:
                return
            now_s = self._clock()
            for application, slots in self._open.items():
                self._uncollected.extend(self._window(application, number, slots[number], now_s) for number in slots)
            self._open.clear()
            self._done.clear()
            self._slot_s = slot_s
            self._closed_until = -1

    def local_s(self, end_s: float) -> float:
        """A sender's ``end_s`` by this machine's clock: where only the time before that was set fits, by that one.

        A VM's clock is not set with the host's. So what it dates would be refused from the moment that this one is set.
        """
        with self._lock:
            now_s = self._clock()
            moved_s = self._offset_now_s(now_s) - self._offset_s
            if abs(moved_s) <= self._skew_s or self._plausible(end_s, now_s):
                return end_s
            return end_s + moved_s if self._plausible(end_s + moved_s, now_s) else end_s

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

        ``requests`` of these are real requests; None: that is not known.
        """
        with self._lock:
            now_s = self._advance()
            if end_s > now_s + self._skew_s:
                return Fate.EARLY
            slot = self._slot(application, slot_number(min(end_s, now_s), self._slot_s))
            if slot is None:
                return Fate.LATE
            more = len(times_us) + sum((buckets or {}).values())
            if slot.count + more > MOST:
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
            if ready is not None:
                slot.ready = ready
            return Fate.TAKEN

    def add_requests(self, application: str, start_s: float, end_s: float, requests: float) -> None:
        """Count requests whose response times are not known, spread evenly over an interval.

        None at all is worth knowing too: it tells an idle application from a silent source. What falls into closed
        slots is dropped.
        """
        with self._lock:
            now_s = self._advance()
            end_s = min(end_s, now_s)
            length_s = end_s - start_s
            if length_s <= 0:
                return
            first = max(math.floor(start_s / self._slot_s), self._closed_until + 1)
            for number in range(first, slot_number(end_s, self._slot_s) + 1):
                inside_s = min(end_s, (number + 1) * self._slot_s) - max(start_s, number * self._slot_s)
                slot = self._slot(application, number)
                if inside_s > 0 and slot is not None:
                    slot.requests = (slot.requests or 0.0) + requests * inside_s / length_s

    def slots(self) -> Mapping[str, tuple[Window, ...]]:
        """The slots that are kept, by application, oldest first."""
        with self._lock:
            now_s = self._advance()
            merged: dict[str, tuple[Window, ...]] = {}
            for application in sorted({*self._done, *self._open}):
                windows = dict(self._done.get(application, {}))
                for number, slot in self._open.get(application, {}).items():
                    windows[number] = self._window(application, number, slot, now_s)
                merged[application] = tuple(windows[number] for number in sorted(windows))
            return merged

    def recent(self) -> tuple[Window, ...]:
        """The slots that are not closed yet, as they are now."""
        with self._lock:
            now_s = self._advance()
            return tuple(
                self._window(application, number, slots[number], now_s)
                for application, slots in sorted(self._open.items())
                for number in sorted(slots)
            )

    def closed(self) -> tuple[Window, ...]:
        """The slots that were closed since the last call."""
        with self._lock:
            self._advance()
            samples = tuple(self._uncollected)
            self._uncollected.clear()
            return samples

    def _offset_now_s(self, now_s: float) -> float:
        return 0.0 if self._steady is None else now_s - self._steady()

    def _plausible(self, end_s: float, now_s: float) -> bool:
        return now_s - self._late_s <= end_s <= now_s + self._skew_s

    def _slot(self, application: str, number: int) -> _Slot | None:
        """An open slot, made if need be; None where it is closed."""
        if number <= self._closed_until or number in self._done.get(application, {}):
            return None
        return self._open.setdefault(application, {}).setdefault(number, _Slot())

    def _window(self, application: str, number: int, slot: _Slot, now_s: float) -> Window:
        # Not begin + length: rounded, that could lie in the next slot.
        start_s, end_s = number * self._slot_s, (number + 1) * self._slot_s
        if slot_number(now_s, self._slot_s) == number:
            end_s = now_s
        return Window(application, start_s, end_s, Histogram(dict(slot.buckets)), slot.requests, slot.ready)

    def _advance(self) -> float:
        """Close what is due and forget what is old. Returns the time now."""
        now_s = self._clock()
        if now_s < self._last_s - self._skew_s:
            self._set_back(now_s)
        self._last_s = now_s
        until = math.floor((now_s - self._late_s) / self._slot_s) - 1
        if until == self._closed_until:
            return now_s
        self._closed_until = until
        for application in list(self._open):
            slots = self._open[application]
            for number in sorted(number for number in slots if number <= until):
                window = self._window(application, number, slots.pop(number), now_s)
                self._done.setdefault(application, {})[number] = window
                self._uncollected.append(window)
            if not slots:
                del self._open[application]
        for application in list(self._done):
            done = self._done[application]
            for number, window in list(done.items()):
                if window.end_s < now_s - self._keep_s:
                    del done[number]
            if not done:
                del self._done[application]
        return now_s

    def _set_back(self, now_s: float) -> None:
        """Close what lies in the future now, and let every time that comes again be counted again.

        The slots that are open in both times go on; their earlier half is a few seconds old.
        """
        for application in list(self._open):
            slots = self._open[application]
            for number in sorted(number for number in slots if number * self._slot_s > now_s):
                self._uncollected.append(self._window(application, number, slots.pop(number), now_s))
            if not slots:
                del self._open[application]
        self._done.clear()
