"""Reads, at the beginning of a tick, all that is decided from: assignment, response times, host and journal."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from manager.clocks import Drift
from manager.control.batch_membership import is_wanted
from manager.control.judged_windows import latest
from manager.control.limit_assignment import Limited, limit_assignment
from manager.control.network_plan import divisible
from manager.control.resolve import effective_mode
from manager.control.sla import sla_state
from manager.control.warp_plan import warped_vms
from manager.host.port import HostPort
from manager.loop.journal import Journal, Runs
from manager.loop.rates import busy_share, pcpu_shares, rates
from manager.loop.reading import Reading, pinned_cpus, read_host
from manager.model.cpus import CpuSet
from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.host import NO_BATCH_GROUP, Capabilities, VmInstance
from manager.model.knob_spec import Family
from manager.model.knobs import HOST_UUID, Knob
from manager.model.limits import AgentLimits
from manager.model.problem import Problem, ProblemKind
from manager.model.registration import Application, Assignment, HostSpec, Mode, Tier, VmClass, VmSpec
from manager.model.resource_use import ResourceUse
from manager.model.rules import IrqSteering
from manager.model.warp import WarpUse
from manager.model.window import Window

_SERVES_NONE: tuple[Application | None, Tier | None] = (None, None)
_NO_RESOURCES = ResourceUse()
_NONE: CpuSet = frozenset()


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


def match(specs: tuple[VmSpec, ...], running: Mapping[str, VmInstance]) -> dict[str, VmSpec]:
    """The registered VMs that run here, by domain UUID. A UUID decides before a name; the first in name order wins."""
    by_name = {instance.libvirt_name: uuid for uuid, instance in running.items()}
    matched: dict[str, VmSpec] = {}
    for spec in sorted(specs, key=lambda spec: (spec.libvirt_uuid is None, spec.name)):
        uuid = spec.libvirt_uuid or by_name.get(spec.libvirt_name or spec.name)
        if uuid is not None and uuid in running:
            matched.setdefault(uuid, spec)
    return matched


@dataclass(frozen=True, slots=True)
class Observation:
    """What a tick knows. ``busy``: share of all pCPUs' time in the last interval, 0 .. 1; None at the first tick.

    ``busy_pcpus``: the share of each managed pCPU's own, by number; empty where it was not measured.

    By domain UUID: all that run, the managed ones that could be read, and the registered names of these, of those being
    released and, None, of the host.
    """

    snapshot: Snapshot
    reading: Reading
    busy: float | None
    busy_pcpus: Mapping[int, float]
    running: Mapping[str, VmInstance]
    specs: Mapping[str, VmSpec]
    names: Mapping[str, str | None]
    problems: tuple[Problem, ...]


class _Served(NamedTuple):
    """A registered VM that runs here: the part of its view that is not read."""

    domain: str
    spec: VmSpec
    mode: Mode
    application: str | None
    tier: str | None


@dataclass(frozen=True, slots=True)
class _Managed:
    """What follows from assignment, journal and list of domains alone, and so is the same for many ticks.

    By domain UUID: all that run; the registered VMs among them; ``names`` as in ``Observation``; and, in order, what is
    to be read. ``served`` and ``applications`` are sorted by name.
    """

    of: tuple[Assignment, Runs, Mapping[str, VmInstance], bool]
    running: Mapping[str, VmInstance]
    specs: Mapping[str, VmSpec]
    names: Mapping[str, str | None]
    instances: Mapping[str, VmInstance]
    families: Mapping[str, Collection[Family]]
    served: tuple[_Served, ...]
    applications: tuple[Application, ...]

    def follows_from(
        self, assignment: Assignment, runs: Runs, listed: Mapping[str, VmInstance], grouping: bool
    ) -> bool:
        """Whether it does still. ``grouping``: there is to be a batch group."""
        return self.of[0] is assignment and self.of[1] is runs and self.of[2:] == (listed, grouping)


class Observer:
    """Remembers the reading before, by which rates are computed, and what is derived of an assignment."""

    def __init__(self, host: HostPort, journal: Journal, settings: LoopSettings, limits: AgentLimits) -> None:
        """``limits``: the most that is done whatever is assigned."""
        self._host = host
        self._journal = journal
        self._settings = settings
        self.limits = limits
        self._released = Limited(Assignment(HostSpec(settings.host_name, mode=Mode.RELEASED))), frozenset[str]()
        self._assigned: Assignment | None = None
        self._allowed = self._released
        self._drift = Drift()
        self._before: Reading | None = None
        self._managed: _Managed | None = None
        self._pinned: tuple[object, Mapping[str, CpuSet]] = None, {}  # of which knobs, and the pCPUs by UUID

    def observe(
        self,
        assignment: Assignment | None,
        slots: Mapping[str, Sequence[Window]],
        now: Clock,
        resources: ResourceUse = _NO_RESOURCES,
    ) -> Observation:
        """Read what there is ``now``. ``assignment`` None: a released host, of which everything is read afresh.

        ``resources`` was read before.
        """
        capabilities = self._host.capabilities  # once: it looks at files
        limited, warped = self._within_limits(assignment)
        managed = self._manage(limited.assignment, warped, capabilities)
        names = managed.names
        reading = read_host(
            self._host, managed.instances, now.monotonic_s, managed.families, self._before, assignment is None
        )
        specs = managed.specs
        if not specs.keys() <= reading.states.keys():
            specs = {domain: spec for domain, spec in specs.items() if domain in reading.states}
        busy = busy_share(reading, self._before)
        busy_pcpus, interrupts = pcpu_shares(reading, self._before, capabilities.managed_cpus)
        snapshot = self._snapshot(limited.assignment, slots, managed, reading, now, interrupts, resources, capabilities)
        self._before = reading
        problems = (
            *(Problem(ProblemKind.LIMITED, text) for text in limited.told),
            *(
                Problem(ProblemKind.READ, f"{names.get(domain) or domain}: {why}")
                for domain, why in reading.errors.items()
            ),
        )
        return Observation(snapshot, reading, busy, busy_pcpus, managed.running, specs, names, problems)

    def _snapshot(
        self,
        assignment: Assignment,
        slots: Mapping[str, Sequence[Window]],
        managed: _Managed,
        reading: Reading,
        now: Clock,
        interrupts: Mapping[int, float],
        resources: ResourceUse,
        capabilities: Capabilities,
    ) -> Snapshot:
        """Combine registrations, slots of response times (by application, disjoint and oldest first) and readings.

        Slots of the future are left out: they say nothing about now.
        """
        pcpus = len(capabilities.online_cpus)
        pinned = self._pinned_of(reading)
        views: list[VmView] = []
        for uuid, spec, mode, application, tier in managed.served:
            state = reading.states.get(uuid)
            if state is None:  # it could not be read
                continue
            cpu_share, run_delay_share, vcpu_pcpus, vcpu_waits = rates(uuid, reading, self._before, pcpus)
            views.append(
                VmView(  # by position: there are many
                    spec,
                    len(state.vcpus),
                    cpu_share,
                    run_delay_share,
                    mode,
                    state.weight,
                    application,
                    tier,
                    vcpu_pcpus,
                    vcpu_waits,
                    tuple([number for number, _ in state.iothread_cpus]) if state.iothread_cpus else (),
                    state.idle,
                    state.quota.period_us if state.quota else None,
                    state.batch_group,
                    pinned=pinned[uuid] if spec.vm_class is VmClass.CRITICAL else _NONE,
                )
            )
        bounds = self._settings
        applications: list[ApplicationView] = []
        for served in managed.applications:
            recent = _until(slots.get(served.name, ()), now.epoch_s + assignment.slot_s)
            window = latest(recent, now.epoch_s, assignment.slot_s)
            state_of_sla = sla_state(window, served.sla, now.epoch_s, bounds.stale_s, bounds.min_samples)
            applications.append(ApplicationView(served, window, state_of_sla, recent))
        return Snapshot(
            now_s=now.epoch_s,
            interval_s=bounds.interval_s,
            host=assignment.host,
            capabilities=capabilities,
            vms=tuple(views),
            applications=tuple(applications),
            ahead_s=self._drift.at(now.epoch_s, now.monotonic_s),
            batch_group=reading.batch_group or NO_BATCH_GROUP,
            interrupts=interrupts,
            resources=resources,
            resource_knobs=_resource_knobs(managed, reading) if reading.memories or reading.disks else {},
            divisible_uplinks=divisible(assignment.host.network, reading.uplinks) if reading.uplinks else frozenset(),
        )

    def _pinned_of(self, reading: Reading) -> Mapping[str, CpuSet]:
        """The pCPUs that vCPUs of each VM are pinned to one by one: the same object while no knob has changed."""
        if self._pinned[0] is not reading.knobs:
            pinned = {uuid: frozenset(pinned_cpus(knobs)) for uuid, knobs in reading.knobs.items()}
            self._pinned = reading.knobs, pinned
        return self._pinned[1]

    def _within_limits(self, assignment: Assignment | None) -> tuple[Limited, frozenset[str]]:
        """What may be carried out of an assignment, and the names of the VMs that are to have a warp.

        The same objects for the same assignment, which lasts for many ticks.
        """
        if assignment is None:
            return self._released
        if assignment is not self._assigned:
            limited = limit_assignment(assignment, self.limits)
            self._assigned, self._allowed = assignment, (limited, warped_vms(limited.assignment))
        return self._allowed

    def _manage(self, assignment: Assignment, warped: frozenset[str], capabilities: Capabilities) -> _Managed:
        """The same object while nothing has changed that it follows from."""
        runs, listed, before = self._journal.runs, self._host.running(), self._managed
        grouping = is_wanted(assignment.host, capabilities)
        if before is not None and before.follows_from(assignment, runs, listed, grouping):
            return before
        # Those of the journal are known to be alive also while libvirtd is away.
        running = {domain: instance for domain, (instance, _) in runs.by_domain.items()} | dict(listed)
        specs = match(assignment.vms, running)
        names: dict[str, str | None] = {domain: vm for domain, (_, vm) in runs.by_domain.items()}
        names |= {**{domain: spec.name for domain, spec in specs.items()}, HOST_UUID: None}
        families = self._families(assignment.host, specs, warped)
        if grouping:
            families[HOST_UUID].add(Family.BATCH_GROUP)
        self._managed = _Managed(
            (assignment, runs, dict(listed), grouping),
            running,
            specs,
            names,
            {domain: running[domain] for domain in sorted(names) if domain != HOST_UUID},
            {domain: sorted(wanted) for domain, wanted in families.items()},
            _served(assignment, specs),
            tuple(sorted(assignment.applications, key=lambda application: application.name)),
        )
        return self._managed

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
        if host.placement.powers and host.mode is not Mode.RELEASED:
            families[HOST_UUID].add(Family.POWER)
        if host.network.in_use and host.mode is not Mode.RELEASED:
            families[HOST_UUID].add(Family.NETWORK)
        for domain, spec in matched.items():
            if host.memory.in_use and host.mode is not Mode.RELEASED:
                families[domain].add(Family.MEMORY)
            if host.disk.in_use and host.mode is not Mode.RELEASED:
                families[domain].add(Family.DISK)
            if host.network.in_use and host.mode is not Mode.RELEASED:
                families[domain].add(Family.NETWORK)
            if spec.name in warped:
                families[domain].add(Family.WARP)
            if spec.scheduling and host.mode is not Mode.RELEASED:
                families[domain].add(Family.SCHEDULING)
        return families


def _resource_knobs(managed: _Managed, reading: Reading) -> dict[str, frozenset[Knob]]:
    """What each VM has of memory and disks, by name."""
    return {
        served.spec.name: frozenset(
            key.knob
            for keys in (reading.memories.get(served.domain, ()), reading.disks.get(served.domain, ()))
            for key in keys
        )
        for served in managed.served
    }


def _served(assignment: Assignment, specs: Mapping[str, VmSpec]) -> tuple[_Served, ...]:
    serving: dict[str, tuple[Application | None, Tier | None]] = {}
    for application in assignment.applications:
        for tier in application.tiers:
            serving.update(dict.fromkeys(tier.vms, (application, tier)))
    served: list[_Served] = []
    for domain, spec in specs.items():
        serves, part = serving.get(spec.name, _SERVES_NONE)
        mode = effective_mode(assignment.host.mode, serves.mode if serves else None, spec.mode)
        served.append(_Served(domain, spec, mode, serves.name if serves else None, part.name if part else None))
    return tuple(sorted(served, key=lambda vm: vm.spec.name))


def _until(slots: Sequence[Window], latest_s: float) -> tuple[Window, ...]:
    """Those that end by then: others come from a clock that is ahead, or from before this one was set back."""
    count = len(slots)
    while count and slots[count - 1].end_s > latest_s:
        count -= 1
    return tuple(slots[:count])
