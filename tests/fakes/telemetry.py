"""Sources of response times that are told what to have measured. For unit tests only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from manager.control.judged_windows import slot_number
from manager.model.histogram import Histogram
from manager.model.registration import Application
from manager.model.source import SourceStatus
from manager.model.traffic import Answered, HostServices
from manager.model.window import Window, merge


@dataclass
class FakeTelemetry:
    """``Telemetry`` in memory: ``count`` response times, and ``finish`` to close all slots."""

    slot_s: float = 5.0
    configured: list[tuple[Sequence[Application], float, Mapping[str, frozenset[str]]]] = field(default_factory=list)
    health: tuple[SourceStatus, ...] = ()
    is_closed: bool = False
    found: HostServices = field(default_factory=HostServices)
    counted: Answered = field(default_factory=Answered)
    domain_taps: Mapping[str, frozenset[int]] = field(default_factory=dict)
    _open: dict[tuple[str, int], Window] = field(default_factory=dict)
    _done: dict[tuple[str, int], Window] = field(default_factory=dict)
    _uncollected: list[Window] = field(default_factory=list)

    def count(self, application: str, end_s: float, count: int, time_ms: float = 5.0) -> None:
        """So many requests were answered at ``end_s``."""
        place = (application, slot_number(end_s, self.slot_s))
        start_s = place[1] * self.slot_s
        histogram = Histogram.of([time_ms * 1000] * count)
        window = Window(application, start_s, start_s + self.slot_s, histogram, count)
        self._open[place] = merge([self._open[place], window]) if place in self._open else window

    def finish(self) -> None:
        """All slots are closed."""
        self._uncollected += [self._open[place] for place in sorted(self._open)]
        self._done |= self._open
        self._open = {}

    def configure(
        self,
        applications: Sequence[Application],
        slot_s: float,
        addresses: Mapping[str, frozenset[str]],
        taps: Mapping[str, frozenset[int]],
    ) -> None:
        self.taps = taps
        self.configured.append((applications, slot_s, addresses))
        self.slot_s = slot_s

    def find_services(self, taps: Mapping[str, frozenset[int]]) -> None:
        self.domain_taps = dict(taps)

    def services(self) -> HostServices:
        return self.found

    def answered(self) -> Answered:
        return self.counted

    def slots(self) -> Mapping[str, tuple[Window, ...]]:
        found: dict[str, tuple[Window, ...]] = {}
        for place, window in sorted((self._done | self._open).items(), key=lambda item: item[0]):
            found[place[0]] = (*found.get(place[0], ()), window)
        return found

    def recent(self) -> tuple[Window, ...]:
        return tuple(self._open[place] for place in sorted(self._open))

    def closed(self) -> tuple[Window, ...]:
        found, self._uncollected = tuple(self._uncollected), []
        return found

    def statuses(self) -> tuple[SourceStatus, ...]:
        return self.health

    def close(self) -> None:
        self.is_closed = True
