"""Reads, at the beginning of a tick, all that is decided from: assignment, response times, host and journal."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from manager.clocks import Drift
from manager.control.limit_assignment import Limited, limit_assignment
from manager.control.warp_plan import warped_vms
from manager.host.port import HostPort
from manager.loop.collect import HostUse, Reading, build_snapshot, host_use, match, read_host
from manager.loop.journal import Journal
from manager.model.decision import Snapshot
from manager.model.host import VmInstance
from manager.model.knobs import HOST_UUID, Family
from manager.model.limits import AgentLimits
from manager.model.problem import Problem, ProblemKind
from manager.model.registration import Assignment, HostSpec, Mode, VmSpec
from manager.model.rules import IrqSteering
from manager.model.warp import WarpUse
from manager.model.window import Window


@dataclass(frozen=True, slots=True)
class Clock:
    """The two times of a tick: seconds since the epoch, and a monotonic one for rates."""

    epoch_s: float
    monotonic_s: float


def system_clock() -> Clock:
    """The time now."""
    return Clock(time.time(), time.monotonic())


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Bounds of the loop: see the settings of the same names."""

    host_name: str
    interval_s: float
    stale_s: float
    min_samples: int


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tick knows. By domain UUID: all that run, the managed ones that could be read, and the registered names of
    these, of those being released and, None, of the host.
    """

    snapshot: Snapshot
    reading: Reading
    use: HostUse
    running: Mapping[str, VmInstance]
    specs: Mapping[str, VmSpec]
    names: Mapping[str, str | None]
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class _Allowed:
    """What may be carried out of an assignment, and the registered names of the VMs that are to have a warp."""

    limited: Limited
    warped: frozenset[str]


class Observer:
    """Remembers the reading before, by which rates are told, and what is derived of an assignment."""

    def __init__(self, host: HostPort, journal: Journal, settings: LoopSettings, limits: AgentLimits) -> None:
        """``limits``: the most that is done whatever is assigned."""
        self._host = host
        self._journal = journal
        self._settings = settings
        self.limits = limits
        self._released = _Allowed(Limited(Assignment(HostSpec(settings.host_name, mode=Mode.RELEASED))), frozenset())
        self._assigned: Assignment | None = None
        self._allowed = self._released
        self._drift = Drift()
        self._before: Reading | None = None

    def observe(self, assignment: Assignment | None, slots: Mapping[str, Sequence[Window]], now: Clock) -> Observation:
        """Read what there is ``now``. ``assignment`` None: a released host."""
        allowed = self._within_limits(assignment)
        wanted = allowed.limited.assignment
        running = self._running()
        matched = match(wanted.vms, running)
        names: dict[str, str | None] = {domain: vm for domain, (_, vm) in self._journal.runs.by_domain.items()}
        names |= {**{domain: spec.name for domain, spec in matched.items()}, HOST_UUID: None}
        reading = read_host(
            self._host,
            {domain: running[domain] for domain in names if domain != HOST_UUID},
            now.monotonic_s,
            self._families(wanted.host, matched, allowed.warped),
        )
        specs = {domain: spec for domain, spec in matched.items() if domain in reading.states}
        snapshot = build_snapshot(
            wanted,
            slots,
            specs,
            self._host.capabilities,
            reading,
            self._before,
            epoch_s=now.epoch_s,
            interval_s=self._settings.interval_s,
            stale_s=self._settings.stale_s,
            min_samples=self._settings.min_samples,
            ahead_s=self._drift.at(now.epoch_s, now.monotonic_s),
        )
        use = host_use(reading, self._before, min(sum(vm.cpu_share for vm in snapshot.vms), 1.0))
        self._before = reading
        problems = (
            *(Problem(ProblemKind.LIMITED, text) for text in allowed.limited.told),
            *(
                Problem(ProblemKind.READ, f"{names.get(domain) or domain}: {why}")
                for domain, why in reading.errors.items()
            ),
        )
        return Observation(snapshot, reading, use, running, specs, names, problems)

    def _within_limits(self, assignment: Assignment | None) -> _Allowed:
        """The same object for the same assignment, which lasts for many ticks."""
        if assignment is None:
            return self._released
        if assignment is not self._assigned:
            limited = limit_assignment(assignment, self.limits)
            self._assigned, self._allowed = assignment, _Allowed(limited, warped_vms(limited.assignment))
        return self._allowed

    def _running(self) -> dict[str, VmInstance]:
        """The listed domains, and those of the journal, which are known to be alive also while libvirtd is away."""
        journalled = {domain: instance for domain, (instance, _) in self._journal.runs.by_domain.items()}
        return journalled | dict(self._host.running())

    def _families(
        self, host: HostSpec, matched: Mapping[str, VmSpec], warped: frozenset[str]
    ) -> dict[str, set[Family]]:
        """What is read of domains, and of the host, besides their state: what was changed of them, or is to be."""
        families = defaultdict[str, set[Family]](set)
        for uuid, changed in self._journal.runs.families.items():
            families[uuid] |= changed
        if warped and host.warp is WarpUse.SCHED_EXT:
            families[HOST_UUID].add(Family.SCHEDULER)
        if host.mode is not Mode.RELEASED and host.placement.irqs is not IrqSteering.OFF:
            families[HOST_UUID].add(Family.INTERRUPT)
        for domain, spec in matched.items():
            if spec.name in warped:
                families[domain].add(Family.WARP)
            if spec.scheduling and host.mode is not Mode.RELEASED:
                families[domain].add(Family.SCHEDULING)
        return families
