"""``Telemetry`` of a simulated host: what its applications answered, as far as their sources work."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from manager.model.histogram import Histogram
from manager.model.registration import Application
from manager.model.source import UNREGISTERED, SourceKind, SourceState, SourceStatus
from manager.model.traffic import Answered, HostServices, SeenService, TapProtocol
from manager.model.window import Window
from manager.sim.services import App, AppSlot
from manager.sim.world import World, in_step

SERVICE_PORT = 80
_SEEN_S = 60.0


@dataclass(frozen=True, slots=True)
class _Passed:
    """What happened to an application in a slot; ``speed`` as of the simulation."""

    slot: AppSlot
    start_s: float
    end_s: float
    speed: float

    @property
    def requests(self) -> float:
        return (self.slot.answered + self.slot.timed_out + self.slot.failed) / self.speed


@dataclass(slots=True)
class _SimSource:
    slots: deque[Window]
    passed: deque[_Passed]
    since_s: float | None = None
    open: Window | None = None
    accepted: int = 0
    last_sample_s: float | None = None
    working: bool = True


class SimTelemetry:
    """Keeps the slots of the last ``keep_s`` seconds. Only applications of the scenario have any."""

    def __init__(self, world: World, keep_s: float, set_slot: Callable[[float], None] = lambda _slot_s: None) -> None:
        """Whoever drives the world reports each slot that ends; ``set_slot`` takes how long slots are to be."""
        self.world = world
        self._keep_s = keep_s
        self._set_slot = set_slot
        self._sources = {name: _SimSource(deque(), deque()) for name in world.apps}
        self._configured = frozenset(world.apps)
        self._closed: list[Window] = []

    def add(self, slots: Mapping[str, AppSlot], start_s: float, end_s: float, speed: float = 1.0) -> None:
        """Take what happened between ``start_s`` and ``end_s`` (seconds since the epoch); the slots are complete."""
        for name, slot in slots.items():
            source = self._sources[name]
            source.open = None
            _note(source, _Passed(slot, start_s, end_s, speed))
            source.working = self.world.source_works(name)
            window = self._window(name, slot.counts, slot.answered, start_s, end_s, speed)
            if window is not None:
                source.slots.append(window)
                source.accepted += window.histogram.count
                source.last_sample_s = end_s
                self._closed.append(window)
            while source.slots and source.slots[0].end_s <= end_s - self._keep_s:
                source.slots.popleft()

    def show(self, start_s: float, now_s: float, speed: float = 1.0) -> None:
        """Take a look at what happened since ``start_s``; the slots go on."""
        for name, app in self.world.apps.items():
            window = self._window(name, dict(app.counts), app.answered, start_s, now_s, speed)
            self._sources[name].open = window

    def forget_slots(self) -> None:
        """The clock was set back: what was kept for decisions is of the future now. What is to be reported stays."""
        for source in self._sources.values():
            source.slots.clear()
            source.passed.clear()

    @in_step
    def configure(
        self,
        applications: Sequence[Application],
        slot_s: float,
        addresses: Mapping[str, frozenset[str]],
        taps: Mapping[str, frozenset[int]],
    ) -> None:
        """Only registered applications are reported. Addresses are those of the simulation, which has no taps."""
        del addresses, taps
        self._set_slot(slot_s)
        self._configured = frozenset(application.name for application in applications)

    def find_services(self, taps: Mapping[str, frozenset[int]]) -> None:
        """All of them are known."""

    @in_step
    def services(self) -> HostServices:
        """Port 80 of the VMs that take an application's requests, registered or not, with its response times."""
        found = [
            service
            for name, source in self._sources.items()
            if source.since_s is not None and source.passed
            for service in _services(self.world.apps[name], source.passed, source.since_s)
        ]
        return HostServices(tuple(sorted(found, key=lambda service: service.libvirt_uuid)), simulated=True)

    @in_step
    def slots(self) -> Mapping[str, tuple[Window, ...]]:
        """The slots of the last minutes by application, oldest first."""
        return {
            name: (*source.slots, source.open) if source.open else tuple(source.slots)
            for name, source in self._sources.items()
            if name in self._configured
        }

    @in_step
    def recent(self) -> tuple[Window, ...]:
        """The slots that are still going on."""
        return tuple(source.open for name, source in self._sources.items() if source.open and name in self._configured)

    @in_step
    def closed(self) -> tuple[Window, ...]:
        """The slots that ended since the last call."""
        closed = tuple(window for window in self._closed if window.application in self._configured)
        self._closed = []
        return closed

    def answered(self) -> Answered:
        """Nothing passes any tap."""
        return Answered()

    @in_step
    def statuses(self) -> tuple[SourceStatus, ...]:
        """Of each application the source that need not be registered, which stands for all its response times."""
        return tuple(
            SourceStatus(
                name,
                UNREGISTERED.name,
                SourceKind.TAP,
                self._state(source),
                source.last_sample_s,
                source.accepted,
                detail="simulated",
            )
            for name, source in sorted(self._sources.items())
            if name in self._configured
        )

    def close(self) -> None:
        """Nothing runs by itself."""

    def _state(self, source: _SimSource) -> SourceState:
        if source.last_sample_s is None:
            return SourceState.STARTING
        return SourceState.OK if source.working else SourceState.SILENT

    def _window(
        self, name: str, counts: Mapping[int, int], answered: int, start_s: float, end_s: float, speed: float
    ) -> Window | None:
        """None where the source does not work: a source that works tells also of no requests at all."""
        if not self.world.source_works(name):
            return None
        return Window(name, start_s, end_s, Histogram(counts), answered / speed)


def _note(source: _SimSource, passed: _Passed) -> None:
    """Keep what happened in the last minute."""
    source.passed.append(passed)
    while source.passed[0].end_s <= passed.end_s - _SEEN_S:
        source.passed.popleft()
    if source.since_s is None and passed.requests:
        source.since_s = passed.start_s


def _services(app: App, passed: Sequence[_Passed], since_s: float) -> list[SeenService]:
    """That of each VM of the application's first tier, which share its requests."""
    vms = [vm for vm in app.tiers[0] if vm.alive]
    times = Histogram().merge(*(Histogram(one.slot.counts) for one in passed))
    requests = sum(one.requests for one in passed)
    failed = sum((one.slot.timed_out + one.slot.failed) / one.speed for one in passed)
    window_s = sum(one.end_s - one.start_s for one in passed)
    p50_ms, p95_ms, p99_ms = (
        None if time_us is None else round(time_us / 1000, 3) for time_us in map(times.percentile_us, (50, 95, 99))
    )
    return [
        SeenService(
            vm.instance.uuid,
            SERVICE_PORT,
            protocol=TapProtocol.HTTP.value,
            protocol_share=1.0 if requests else 0.0,
            rate_rps=round(requests / len(vms) / window_s, 3),
            p50_ms=p50_ms,
            p95_ms=p95_ms,
            p99_ms=p99_ms,
            error_share=round(failed / requests, 4) if requests else 0.0,
            since_s=since_s,
            window_s=round(window_s, 3),
        )
        for vm in vms
    ]
