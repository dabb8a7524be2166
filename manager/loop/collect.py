"""Reads the host and the registrations into a snapshot."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from manager.control.judged_windows import latest
from manager.control.resolve import effective_mode
from manager.control.sla import sla_state
from manager.errors import HostError, VmVanished
from manager.host.port import HostPort
from manager.model.decision import ApplicationView, Snapshot, VmView
from manager.model.host import Capabilities, CpuTimes, VcpuState, VmInstance, VmState
from manager.model.knobs import HOST_UUID, Family, Knob, KnobKey, KnobValue
from manager.model.registration import Application, Assignment, Tier, VmSpec
from manager.model.window import Window

_UNKNOWN = VcpuState(0, frozenset())
_SERVES_NONE: tuple[Application | None, Tier | None] = (None, None)


@dataclass(frozen=True, slots=True)
class Reading:
    """What was read from the host at one moment, kept to compute rates at the next.

    ``errors`` says for each VM (by UUID) why it could not be read; vanished VMs are in neither. ``own_knobs`` are
    those of the host itself, empty where they were not asked for.
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


@dataclass(frozen=True, slots=True)
class HostUse:
    """Shares of all pCPUs' time in the last interval, 0 .. 1."""

    busy: float = 0.0
    managed_vms: float = 0.0


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
    pCPU per second, ``vcpu_pcpus`` CPU seconds a second that each used and ``vcpu_waits`` those that each waited, empty
    where that is not known.
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


def host_use(now: Reading, before: Reading | None, managed_share: float) -> HostUse:
    """How busy the host was since the last reading."""
    if before is None or now.times is None or before.times is None:
        return HostUse(managed_vms=managed_share)
    total_ns = now.times.total_ns - before.times.total_ns
    busy_ns = now.times.busy_ns - before.times.busy_ns
    return HostUse(min(max(busy_ns / total_ns, 0.0), 1.0) if total_ns > 0 else 0.0, managed_share)


def build_snapshot(  # noqa: PLR0913 - all that a snapshot is made of
    assignment: Assignment,
    slots: Mapping[str, Sequence[Window]],
    matched: Mapping[str, VmSpec],
    capabilities: Capabilities,
    now: Reading,
    before: Reading | None,
    *,
    epoch_s: float,
    interval_s: float,
    stale_s: float,
    min_samples: int,
    ahead_s: float = 0.0,
) -> Snapshot:
    """Combine registrations, slots of response times (by application, disjoint and oldest first) and readings.

    VMs that could not be read are left out, and so are slots of the future, which tell nothing about now.
    """
    serving: dict[str, tuple[Application | None, Tier | None]] = {}
    for served in assignment.applications:
        for part in served.tiers:
            serving.update(dict.fromkeys(part.vms, (served, part)))
    views: list[VmView] = []
    pcpus = len(capabilities.online_cpus)
    for uuid, spec in matched.items():
        state = now.states.get(uuid)
        if state is None:
            continue
        application, tier = serving.get(spec.name, _SERVES_NONE)
        rate = rates(uuid, now, before, pcpus)
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
    applications: list[ApplicationView] = []
    for served in assignment.applications:
        recent = _until(slots.get(served.name, ()), epoch_s + assignment.slot_s)
        window = latest(recent, epoch_s, assignment.slot_s)
        promise = sla_state(window, served.sla, epoch_s, stale_s, min_samples)
        applications.append(ApplicationView(served, window, promise, recent))
    return Snapshot(
        now_s=epoch_s,
        interval_s=interval_s,
        host=assignment.host,
        capabilities=capabilities,
        vms=tuple(sorted(views, key=lambda view: view.name)),
        applications=tuple(sorted(applications, key=lambda view: view.application.name)),
        ahead_s=ahead_s,
    )


def _until(slots: Sequence[Window], latest_s: float) -> tuple[Window, ...]:
    """Those that end by then: others come from a clock that is ahead, or from before this one was set back."""
    count = len(slots)
    while count and slots[count - 1].end_s > latest_s:
        count -= 1
    return tuple(slots[:count])
