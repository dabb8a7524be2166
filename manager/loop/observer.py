"""Reads, at the beginning of a tick, all that is decided from: assignment, response times, host and journal."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from manager.clocks import Drift
from manager.control.judged_windows import latest
from manager.control.limit_assignment import Limited, limit_assignment
from manager.control.resolve import effective_mode
from manager.control.sla import sla_state
from manager.control.warp_plan import warped_vms
from manager.errors import HostError, VmVanished
from manager.host.port import HostPort
from manager.loop.journal import Journal
from manager.model.cpus import CpuSet
from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.host import CpuTimes, VcpuState, VmInstance, VmState
from manager.model.knobs import HOST_UUID, Family, Knob, KnobKey, KnobValue
from manager.model.limits import AgentLimits
from manager.model.problem import Problem, ProblemKind
from manager.model.registration import Application, Assignment, HostSpec, Mode, Tier, VmSpec
from manager.model.rules import IrqSteering
from manager.model.warp import WarpUse
from manager.model.window import Window

_UNKNOWN = VcpuState(0, frozenset())
_SERVES_NONE: tuple[Application | None, Tier | None] = (None, None)


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
class Reading:
    """What was read from the host at one moment, kept to compute rates at the next.

    ``errors`` says for each VM (by UUID) why it could not be read; vanished VMs are in neither. ``own_knobs`` are
    those of the host itself, empty where they were not to be read.
    """

    monotonic_s: float
    states: Mapping[str, VmState]
    times: CpuTimes | None
    errors: Mapping[str, str] = field(default_factory=dict)
    own_knobs: Mapping[KnobKey, KnobValue] = field(default_factory=dict)
    apart: Mapping[str, Mapping[KnobKey, KnobValue]] = field(default_factory=dict)
    """The knobs that were read apart from the state of a VM, by UUID."""
    groups: Mapping[str, tuple[KnobKey, ...]] = field(default_factory=dict)
    """The limits of real-time CPU time above the vCPUs of a VM, by UUID: those of the host, and its own."""
    knobs: Mapping[str, Mapping[KnobKey, KnobValue]] = field(init=False, compare=False, repr=False)
    """Those of each VM, by UUID."""

    def __post_init__(self) -> None:
        knobs = {uuid: state.knobs() for uuid, state in self.states.items()}
        knobs |= {uuid: {**knobs[uuid], **apart} for uuid, apart in self.apart.items()}
        object.__setattr__(self, "knobs", knobs)


def match(specs: tuple[VmSpec, ...], running: Mapping[str, VmInstance]) -> dict[str, VmSpec]:
    """The registered VMs that run here, by domain UUID. A UUID decides before a name; the first in name order wins."""
    by_name = {instance.libvirt_name: uuid for uuid, instance in running.items()}
    matched: dict[str, VmSpec] = {}
    for spec in sorted(specs, key=lambda spec: (spec.libvirt_uuid is None, spec.name)):
        uuid = spec.libvirt_uuid or by_name.get(spec.libvirt_name or spec.name)
        if uuid is not None and uuid in running:
            matched.setdefault(uuid, spec)
    return matched


def read_host(
    host: HostPort,
    instances: Mapping[str, VmInstance],
    monotonic_s: float,
    families: Mapping[str, Collection[Family]] = MappingProxyType({}),
) -> Reading:
    """Read every VM of ``instances`` (by UUID), each for itself.

    ``families`` are the knobs to read besides their state, by UUID, HOST_UUID among them.
    """
    states: dict[str, VmState] = {}
    apart: dict[str, Mapping[KnobKey, KnobValue]] = {}
    groups: dict[str, tuple[KnobKey, ...]] = {}
    own: dict[KnobKey, KnobValue] = {}
    errors: dict[str, str] = {}
    for uuid, instance in sorted(instances.items()):
        try:
            state = host.read(instance)
            for family in sorted(families.get(uuid, ())):
                values = host.knobs(instance, family)
                groups[uuid] = groups.get(uuid, ()) + tuple(key for key in values if key.knob is Knob.RT_RUNTIME)
                own |= {key: value for key, value in values.items() if key.uuid == HOST_UUID}
                of_vm = {key: value for key, value in values.items() if key.uuid != HOST_UUID}
                apart[uuid] = {**apart.get(uuid, {}), **of_vm}
            states[uuid] = state
        except VmVanished:
            continue
        except HostError as error:
            errors[uuid] = str(error)
    try:
        times: CpuTimes | None = host.cpu_times()
    except HostError as error:
        times = None
        errors["host"] = str(error)
    try:
        for family in sorted(families.get(HOST_UUID, ())):
            own |= host.knobs(host.itself, family)
    except HostError as error:
        errors["host"] = str(error)
    return Reading(monotonic_s, states, times, errors, own, apart, groups)


class Rates(NamedTuple):
    """What a VM did since the last reading; all 0 at its first.

    ``cpu_share`` is CPU time used as a fraction of the whole host, ``run_delay_share`` seconds its vCPUs waited for a
    pCPU per second, ``vcpu_pcpus`` CPU seconds per second that each used and ``vcpu_waits`` those that each waited,
    empty where that is not known.
    """

    cpu_share: float = 0.0
    run_delay_share: float = 0.0
    vcpu_pcpus: tuple[float, ...] = ()
    vcpu_waits: tuple[float, ...] = ()


_NO_RATES = Rates()


def rates(uuid: str, now: Reading, before: Reading | None, pcpus: int) -> Rates:
    """The rates of a VM on a host of so many pCPUs."""
    state, earlier = now.states[uuid], before.states.get(uuid) if before else None
    if before is None or earlier is None or earlier.instance != state.instance:
        return _NO_RATES
    elapsed_ns = (now.monotonic_s - before.monotonic_s) * 1e9
    if elapsed_ns <= 0:
        return _NO_RATES
    past = {vcpu.index: vcpu for vcpu in earlier.vcpus}
    waited_ns, used, waits = 0, [], []
    for index, _, delay_ns, run_ns in state.vcpus:
        _, _, delay_then_ns, run_then_ns = past.get(index, _UNKNOWN)
        delayed_ns = 0
        if delay_ns is not None and delay_then_ns is not None and delay_ns > delay_then_ns:
            delayed_ns = delay_ns - delay_then_ns
            waited_ns += delayed_ns
        if run_ns is not None and run_then_ns is not None:
            used.append(_share(run_ns - run_then_ns, elapsed_ns))
            waits.append(_share(delayed_ns, elapsed_ns))
    cpu_share = _share(state.cpu_ns - earlier.cpu_ns, elapsed_ns * pcpus)
    if len(used) != len(state.vcpus):
        return Rates(cpu_share, waited_ns / elapsed_ns)
    return Rates(cpu_share, waited_ns / elapsed_ns, tuple(used), tuple(waits))


def _share(part: float, whole: float) -> float:
    """Between 0 and 1."""
    return 0.0 if part <= 0 else 1.0 if part >= whole else part / whole


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

    def observe(self, assignment: Assignment | None, slots: Mapping[str, Sequence[Window]], now: Clock) -> Observation:
        """Read what there is ``now``. ``assignment`` None: a released host."""
        limited, warped = self._within_limits(assignment)
        wanted = limited.assignment
        running = self._running()
        matched = match(wanted.vms, running)
        names: dict[str, str | None] = {domain: vm for domain, (_, vm) in self._journal.runs.by_domain.items()}
        names |= {**{domain: spec.name for domain, spec in matched.items()}, HOST_UUID: None}
        reading = read_host(
            self._host,
            {domain: running[domain] for domain in names if domain != HOST_UUID},
            now.monotonic_s,
            self._families(wanted.host, matched, warped),
        )
        specs = {domain: spec for domain, spec in matched.items() if domain in reading.states}
        snapshot = self._snapshot(wanted, slots, specs, reading, now)
        busy = _busy(reading, self._before)
        busy_pcpus = _busy_pcpus(reading, self._before, snapshot.capabilities.managed_cpus)
        self._before = reading
        problems = (
            *(Problem(ProblemKind.LIMITED, text) for text in limited.told),
            *(
                Problem(ProblemKind.READ, f"{names.get(domain) or domain}: {why}")
                for domain, why in reading.errors.items()
            ),
        )
        return Observation(snapshot, reading, busy, busy_pcpus, running, specs, names, problems)

    def _snapshot(
        self,
        assignment: Assignment,
        slots: Mapping[str, Sequence[Window]],
        specs: Mapping[str, VmSpec],
        reading: Reading,
        now: Clock,
    ) -> Snapshot:
        """Combine registrations, slots of response times (by application, disjoint and oldest first) and readings.

        ``specs`` are the VMs that could be read. Slots of the future are left out: they say nothing about now.
        """
        capabilities = self._host.capabilities
        pcpus = len(capabilities.online_cpus)
        serving: dict[str, tuple[Application | None, Tier | None]] = {}
        for served in assignment.applications:
            for part in served.tiers:
                serving.update(dict.fromkeys(part.vms, (served, part)))
        views: list[VmView] = []
        for uuid, spec in specs.items():
            state = reading.states[uuid]
            application, tier = serving.get(spec.name, _SERVES_NONE)
            rate = rates(uuid, reading, self._before, pcpus)
            views.append(
                VmView(
                    spec,
                    vcpus=len(state.vcpus),
                    cpu_share=rate.cpu_share,
                    run_delay_share=rate.run_delay_share,
                    mode=effective_mode(assignment.host.mode, application.mode if application else None, spec.mode),
                    weight=state.weight,
                    application=application.name if application else None,
                    tier=tier.name if tier else None,
                    vcpu_pcpus=rate.vcpu_pcpus,
                    vcpu_waits=rate.vcpu_waits,
                    iothreads=tuple(number for number, _ in state.iothread_cpus),
                    idle=state.idle,
                    quota_period_us=state.quota.period_us if state.quota else None,
                )
            )
        bounds = self._settings
        applications: list[ApplicationView] = []
        for served in assignment.applications:
            recent = _until(slots.get(served.name, ()), now.epoch_s + assignment.slot_s)
            window = latest(recent, now.epoch_s, assignment.slot_s)
            state_of_sla = sla_state(window, served.sla, now.epoch_s, bounds.stale_s, bounds.min_samples)
            applications.append(ApplicationView(served, window, state_of_sla, recent))
        return Snapshot(
            now_s=now.epoch_s,
            interval_s=bounds.interval_s,
            host=assignment.host,
            capabilities=capabilities,
            vms=tuple(sorted(views, key=lambda view: view.name)),
            applications=tuple(sorted(applications, key=lambda view: view.application.name)),
            ahead_s=self._drift.at(now.epoch_s, now.monotonic_s),
        )

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


def _busy(now: Reading, before: Reading | None) -> float | None:
    """Busy share of the host since the last reading; None: this is the first, which measures nothing."""
    if before is None:
        return None
    if now.times is None or before.times is None:
        return 0.0
    total_ns = now.times.total_ns - before.times.total_ns
    return _share(now.times.busy_ns - before.times.busy_ns, total_ns) if total_ns > 0 else 0.0


def _busy_pcpus(now: Reading, before: Reading | None, pcpus: CpuSet) -> dict[int, float]:
    """Busy share of each of these pCPUs since the last reading, of those that were online all the time."""
    if before is None or now.times is None or before.times is None:
        return {}
    busy: dict[int, float] = {}
    for number in sorted(now.times.pcpus.keys() & before.times.pcpus.keys() & pcpus):
        (total_ns, busy_ns), (total_before_ns, busy_before_ns) = now.times.pcpus[number], before.times.pcpus[number]
        if total_ns > total_before_ns:
            busy[number] = _share(busy_ns - busy_before_ns, total_ns - total_before_ns)
    return busy


def _until(slots: Sequence[Window], latest_s: float) -> tuple[Window, ...]:
    """Those that end by then: others come from a clock that is ahead, or from before this one was set back."""
    count = len(slots)
    while count and slots[count - 1].end_s > latest_s:
        count -= 1
    return tuple(slots[:count])
