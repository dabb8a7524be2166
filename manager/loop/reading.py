"""What is read of a host and its VMs at one moment."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import InitVar, dataclass, field
from types import MappingProxyType

from manager.errors import HostError, VmVanished
from manager.host.port import HostPort
from manager.model.host import BatchGroup, CpuCounters, CpuTimes, VmInstance, VmState
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.network import UplinkPort
from manager.model.power import ClockDomain

_NO_FAMILIES: Collection[Family] = ()


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
