"""How often an agent reports: as the manager asks for, and at once where something cannot wait.

Agents begin their turns at different times, by the names of their hosts: the managers of a fleet get as many reports in
each moment, also after an hour in which there was none of them. Then each host says first that it is there, at its own
time within two intervals, and events follow within the minute. All else that waits comes at a time of the host's own
within a quarter of an hour, so that managers keep up with live reports meanwhile.
"""

from __future__ import annotations

import math
from enum import Enum
from zlib import crc32

from manager.model.window import LONGEST_DELAY_S
from manager.protocol.assignment import Cadence

_MADE_UP_FOR = 1 / 4
"""Hosts deliver what waited within so much of the time without managers, who get five times as much history as usual
meanwhile. Within a minute it would be sixty times as much after an hour, and no CPU time be left for live reports.
After days it takes no longer than ``LONGEST_DELAY_S``: an outbox that is full keeps less and less of each hour."""
_PAUSE = 5.0
"""A host whose part of history took long waits so many times as long before it sends the next one: the busier managers
are, the less they are asked to do."""


class Waits(Enum):
    """What a report has of that which waits for the manager."""

    NOTHING = 0
    EVENTS = 1
    ALL = 2


class Pace:
    """When one host's agent reports. Times are monotonic, in seconds.

    ``cadence``: what the manager asked for last; None: all in each interval. ``phase``: 0 .. 1, this host's own.
    """

    def __init__(self, host: str) -> None:
        self.phase = crc32(host.encode()) / 2**32
        self.cadence: Cadence | None = None
        self._live = self._history = -1
        self._failed_s: float | None = None
        self._retried = self._late = False
        self._span_s, self._span = 0.0, -1
        self._rest_at_s = math.inf
        self._waited_s = 0.0

    def begin(self, waited_s: float) -> None:
        """Before the first report; for so long has waited what an earlier life of this agent left, where that is much.

        It comes as if the managers had been away for as long.
        """
        self._waited_s = waited_s

    def asks(self, now_s: float) -> bool:
        """Whether the manager may be asked: one that did not answer twice is, once in each turn for live reports."""
        return self.cadence is None or not self._retried or self._turns(now_s, self.cadence)[0] != self._live

    def live_due(self, now_s: float) -> bool:
        """Whether the manager is to hear that this host is there."""
        return self.cadence is None or self._turns(now_s, self.cadence)[0] != self._live

    def waits_due(self, now_s: float, *, urgent: bool = False) -> Waits:
        """What the manager is to get of that which waits; ``urgent``: an event does.

        It gets an event at once, with all else. After it was away for long it gets events in this host's next turn.
        """
        if self.cadence is None:
            return Waits.NOTHING if self._waited_s else Waits.ALL
        turn = self._turns(now_s, self.cadence)[1] != self._history
        if not self._late:
            return Waits.ALL if urgent or turn or now_s >= self._rest_at_s else Waits.NOTHING
        if self._failed_s is not None:
            return Waits.NOTHING
        if self._number(now_s) != self._span:
            return Waits.ALL
        return Waits.EVENTS if urgent and turn else Waits.NOTHING

    def failed(self, now_s: float) -> None:
        """The manager did not answer at that time."""
        if self.cadence is None:
            return
        if self._failed_s is None:
            self._failed_s = now_s  # once it is asked again at once: another process or machine may answer
            return
        self._retried, self._live = True, self._turns(now_s, self.cadence)[0]
        self._late = self._late or now_s - self._failed_s >= self.cadence.live_s

    def reported(
        self, now_s: float, cadence: Cadence | None, waits: Waits, *, slow_part_s: float | None = None
    ) -> None:
        """The manager took a report at that time, and asked for this cadence; ``waits``: with so much of what waited.

        ``slow_part_s``: how long it took for the last part of that, where the rest still waits; None: nothing does.
        """
        if waits is Waits.ALL:
            self._rest_at_s = math.inf
        if cadence is not None and slow_part_s is not None:
            self._rest_at_s = now_s + min(_PAUSE * slow_part_s, cadence.history_s)
        if cadence is not None:
            self._live, number = self._turns(now_s, cadence)
            away_s = now_s - self._failed_s if self._late and self._failed_s is not None else None
            if self._waited_s:
                self._late, away_s = True, self._waited_s
            if away_s is not None or waits is not Waits.NOTHING:
                self._history = number
            if away_s is not None:
                self._take_a_time(now_s, away_s, cadence)
        self._failed_s, self._retried, self._waited_s = None, False, 0.0
        self._late = self._late and waits is not Waits.ALL
        self._span_s = self._span_s if self._late else 0.0
        self.cadence = cadence

    def _take_a_time(self, now_s: float, away_s: float, cadence: Cadence) -> None:
        """For what waits, as a manager answers after so long."""
        if self._span_s and away_s < cadence.live_s:
            return  # but a request that failed meanwhile changes nothing
        turns = math.ceil(min(_MADE_UP_FOR * away_s, LONGEST_DELAY_S) / cadence.history_s)  # as many for all of a fleet
        self._span_s = max(turns * cadence.history_s, self._span_s)
        self._span = self._number(now_s)

    def _number(self, now_s: float) -> int:
        """That of the span: it grows when this host's own time for what waits has come."""
        return math.floor(now_s / self._span_s + self.phase)

    def _turns(self, now_s: float, cadence: Cadence) -> tuple[int, int]:
        """The numbers of the turns for live reports and for history; one with history takes the place of a live one."""
        at_s = now_s + self.phase * cadence.history_s
        return math.floor(at_s / cadence.live_s), math.floor(at_s / cadence.history_s)
