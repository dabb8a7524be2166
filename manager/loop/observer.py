"""Reads, at the beginning of a tick, all that is decided from: assignment, response times, host and journal."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from manager.clocks import Drift
from manager.control.batch_membership import is_wanted
from manager.control.judged_windows import latest
from manager.control.limit_assignment import Limited, limit_assignment
from manager.control.network_plan import divisible
from manager.control.resolve import effective_mode
from manager.control.sla import sla_state
from manager.control.warp_plan import warped_vms
from manager.errors import HostError, VmVanished
from manager.host.port import HostPort
from manager.loop.journal import Journal, Runs
from manager.model.cpus import CpuSet
from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.host import NO_BATCH_GROUP, BatchGroup, Capabilities, CpuCounters, CpuTimes, VmInstance, VmState
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.limits import AgentLimits
from manager.model.network import UplinkPort
from manager.model.power import ClockDomain
from manager.model.problem import Problem, ProblemKind
from manager.model.registration import Application, Assignment, HostSpec, Mode, Tier, VmClass, VmSpec
from manager.model.resource_use import ResourceUse
from manager.model.rules import IrqSteering
from manager.model.warp import WarpUse
from manager.model.window import Window

_SERVES_NONE: tuple[Application | None, Tier | None] = (None, None)
_NO_FAMILIES: Collection[Family] = ()
_NO_RESOURCES = ResourceUse()


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
    those of the host itself, empty where they were not to be read. ``knobs`` are the very ones of the reading
    ``before`` while nothing has changed: who derives anything of them sees that at once. Of a VM of which nothing but
    counters changed, ``states`` has what was read when anything did; ``counters`` are of this moment, for all of them.
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
    memories: Mapping[str, tuple[KnobKey, ...]] = field(default_factory=dict)
    """Likewise what limits or protects its memory."""
    disks: Mapping[str, tuple[KnobKey, ...]] = field(default_factory=dict)
    """The weights and ceilings that it has on disks, by UUID."""
    knobs: Mapping[str, Mapping[KnobKey, KnobValue]] = field(init=False, compare=False, repr=False)
    """Those of each VM, by UUID."""
    before: InitVar[Reading | None] = None
    counters: Mapping[str, CpuCounters] = field(default_factory=dict)
    """By UUID; those of ``states`` where none are given."""
    batch_group: BatchGroup | None = None
    """None: it could not be read, or was not to be."""
    uplinks: Mapping[int, UplinkPort] = field(default_factory=dict)
    """The interfaces that may be uplinks, by index; empty where they could not be read, or were not to be."""
    clocks: Mapping[int, ClockDomain] = field(default_factory=dict)
    """The pCPUs that share a clock, by number of the policy; likewise."""

    def __post_init__(self, before: Reading | None) -> None:
        knobs: Mapping[str, Mapping[KnobKey, KnobValue]] = {uuid: state.knobs() for uuid, state in self.states.items()}
        if self.apart:
            knobs = {**knobs, **{uuid: {**knobs[uuid], **apart} for uuid, apart in self.apart.items()}}
        if not self.counters:
            object.__setattr__(self, "counters", {uuid: state.counters for uuid, state in self.states.items()})
        object.__setattr__(self, "knobs", before.knobs if before is not None and before.knobs == knobs else knobs)


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
    before: Reading | None = None,
    afresh: bool = True,
) -> Reading:
    """Read every VM of ``instances`` (by UUID), each for itself.

    ``families`` are the knobs to read besides their state, in that order, by UUID, HOST_UUID among them; ``before`` is
    the reading before; for ``afresh`` see ``HostPort.read``.
    """
    states: dict[str, VmState] = {}
    apart: dict[str, Mapping[KnobKey, KnobValue]] = {}
    groups: dict[str, tuple[KnobKey, ...]] = {}
    memories: dict[str, tuple[KnobKey, ...]] = {}
    disks: dict[str, tuple[KnobKey, ...]] = {}
    own: dict[KnobKey, KnobValue] = {}
    errors: dict[str, str] = {}
    host.look()
    counters: dict[str, CpuCounters] = {}
    unchanged = {} if afresh else host.counters(instances)
    for uuid, instance in instances.items():
        wanted, known = families.get(uuid), unchanged.get(uuid)
        if known is not None and not wanted:  # mostly so
            states[uuid], counters[uuid] = known
            continue
        try:
            state = known[0] if known is not None else host.read(instance, afresh)
            of_family = {family: host.knobs(instance, family) for family in wanted} if wanted else {}
            states[uuid], counters[uuid] = state, known[1] if known is not None else state.counters
        except VmVanished:
            continue
        except HostError as error:
            errors[uuid] = str(error)
            continue
        for family, values in of_family.items():  # only once all were read: there is no part of a VM
            if family is Family.MEMORY:
                memories[uuid] = tuple(values)
            elif family is Family.DISK:
                disks[uuid] = tuple(values)
            else:
                groups[uuid] = groups.get(uuid, ()) + tuple(key for key in values if key.knob is Knob.RT_RUNTIME)
            own |= {key: value for key, value in values.items() if key.uuid == HOST_UUID}
            of_vm = {key: value for key, value in values.items() if key.uuid != HOST_UUID}
            apart[uuid] = {**apart.get(uuid, {}), **of_vm}
    try:
        times: CpuTimes | None = host.cpu_times()
    except HostError as error:
        times = None
        errors["host"] = str(error)
    batch_group: BatchGroup | None = None
    uplinks: Mapping[int, UplinkPort] = {}
    clocks: Mapping[int, ClockDomain] = {}
    try:
        batch_group, uplinks, clocks = _read_own(host, families.get(HOST_UUID, _NO_FAMILIES), own)
    except HostError as error:
        errors["host"] = str(error)
    of_host = batch_group, uplinks, clocks
    return Reading(monotonic_s, states, times, errors, own, apart, groups, memories, disks, before, counters, *of_host)


def _read_own(
    host: HostPort, families: Collection[Family], own: dict[KnobKey, KnobValue]
) -> tuple[BatchGroup | None, Mapping[int, UplinkPort], Mapping[int, ClockDomain]]:
    """The host's batch group, uplinks and clocks; its knobs go to ``own`` as they are read. Raises HostError."""
    for family in families:
        own.update(host.knobs(host.itself, family))
    return (
        host.batch_group() if Family.BATCH_GROUP in families else None,
        host.uplinks() if Family.NETWORK in families else {},
        host.clocks() if Family.POWER in families else {},
    )


def pinned_cpus(knobs: Mapping[KnobKey, KnobValue]) -> Iterator[int]:
    """The pCPUs that vCPUs are pinned to, one by one."""
    for key, cpus in knobs.items():
        if key.knob is Knob.VCPU_PIN and isinstance(cpus, frozenset) and len(cpus) == 1:
            yield from cpus


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
_NONE: CpuSet = frozenset()


def rates(uuid: str, now: Reading, before: Reading | None, pcpus: int) -> Rates:
    """The rates of a VM on a host of so many pCPUs."""
    state, earlier = now.states[uuid], before.states.get(uuid) if before else None
    if before is None or earlier is None or earlier.instance != state.instance:
        return _NO_RATES
    elapsed_ns = (now.monotonic_s - before.monotonic_s) * 1e9
    if elapsed_ns <= 0:
        return _NO_RATES
    cpu_ns, run_ns, delay_ns = now.counters[uuid]
    cpu_then_ns, run_then_ns, delay_then_ns = before.counters[uuid]
    if state is not earlier and [vcpu.index for vcpu in state.vcpus] != [vcpu.index for vcpu in earlier.vcpus]:
        run_then_ns, delay_then_ns = (_for_vcpus(state, earlier, then) for then in (run_then_ns, delay_then_ns))
    cpu_share = _share(cpu_ns - cpu_then_ns, elapsed_ns * pcpus)
    waited_ns = 0
    used: list[float] = []
    waits: list[float] = []
    # Without calls: it is for each vCPU in each tick.
    for ran_ns, ran_then_ns, delayed_ns, delayed_then_ns in zip(
        run_ns, run_then_ns, delay_ns, delay_then_ns, strict=True
    ):
        wait = 0.0
        if delayed_ns is not None and delayed_then_ns is not None and delayed_ns > delayed_then_ns:
            waited_ns += delayed_ns - delayed_then_ns
            wait = (delayed_ns - delayed_then_ns) / elapsed_ns
        if ran_ns is not None and ran_then_ns is not None:
            ran = (ran_ns - ran_then_ns) / elapsed_ns
            used.append(0.0 if ran <= 0.0 else ran if ran < 1.0 else 1.0)
            waits.append(wait if wait < 1.0 else 1.0)
    if len(used) != len(state.vcpus):
        return Rates(cpu_share, waited_ns / elapsed_ns)
    return Rates(cpu_share, waited_ns / elapsed_ns, tuple(used), tuple(waits))


def _for_vcpus(state: VmState, earlier: VmState, counted_ns: Sequence[int | None]) -> list[int | None]:
    """What was counted of each vCPU of ``earlier``, in the order of those of ``state``; None for one that is new."""
    by_index = dict(zip([vcpu.index for vcpu in earlier.vcpus], counted_ns, strict=True))
    return [by_index.get(vcpu.index) for vcpu in state.vcpus]


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
        busy = _busy(reading, self._before)
        busy_pcpus, interrupts = _pcpu_shares(reading, self._before, capabilities.managed_cpus)
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


def _busy(now: Reading, before: Reading | None) -> float | None:
    """Busy share of the host since the last reading; None: this is the first, which measures nothing."""
    if before is None:
        return None
    if now.times is None or before.times is None:
        return 0.0
    total_ns = now.times.total_ns - before.times.total_ns
    return _share(now.times.busy_ns - before.times.busy_ns, total_ns) if total_ns > 0 else 0.0


def _pcpu_shares(now: Reading, before: Reading | None, pcpus: CpuSet) -> tuple[dict[int, float], dict[int, float]]:
    """How much of its time each of these pCPUs was busy since the last reading, and on interrupts.

    Of those that were online all the time.
    """
    if before is None or now.times is None or before.times is None:
        return {}, {}
    busy: dict[int, float] = {}
    interrupts: dict[int, float] = {}
    for number in sorted(now.times.pcpus.keys() & before.times.pcpus.keys() & pcpus):
        total_ns, busy_ns, interrupts_ns = now.times.pcpus[number]
        total_before_ns, busy_before_ns, interrupts_before_ns = before.times.pcpus[number]
        if total_ns > total_before_ns:
            busy[number] = _share(busy_ns - busy_before_ns, total_ns - total_before_ns)
            interrupts[number] = _share(interrupts_ns - interrupts_before_ns, total_ns - total_before_ns)
    return busy, interrupts


def _until(slots: Sequence[Window], latest_s: float) -> tuple[Window, ...]:
    """Those that end by then: others come from a clock that is ahead, or from before this one was set back."""
    count = len(slots)
    while count and slots[count - 1].end_s > latest_s:
        count -= 1
    return tuple(slots[:count])
