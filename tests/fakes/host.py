"""A host in memory that answers as the kernel does, errors included. For unit tests only."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from manager.errors import HostError, VmVanished
from manager.host.port import CachePort, ResourcePort, WaitAlarmPort
from manager.model.cpus import CpuSet
from manager.model.host import (
    CPU_SHARES_V1,
    BatchGroup,
    Capabilities,
    CpuTimes,
    Discovery,
    PcpuTimes,
    Quota,
    VcpuState,
    VmInstance,
    VmState,
    WeightScale,
)
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import (
    BATCH_GROUPS,
    DISK_WEIGHTS,
    EGRESS,
    HOST_UUID,
    LEAST_QUOTA_US,
    MEMORIES,
    OUTSIDE,
    POWERS,
    SCHEDULINGS,
    UNLIMITED,
    WARPS,
    Knob,
    KnobKey,
)
from manager.model.network import ANOTHER, NO_RATE, USUAL_TURN, EgressGroup, UplinkPort
from manager.model.power import ClockDomain
from manager.model.scheduling import MOST_LIMIT_US, is_real_time
from manager.model.topology import Topology
from manager.model.warp import EJECTED, LOADED, OUTDATED, UNLOADED, Mechanism, Offer

SCHEDULER = KnobKey(HOST_UUID, Knob.SCHEDULER)
MACHINE = KnobKey(HOST_UUID, Knob.RT_RUNTIME, 17)
"""The limit of the group that all VMs are below."""
MACHINE_MEMORY = KnobKey(HOST_UUID, Knob.MEMORY_PROTECTION, 17)
"""Its protection."""
WARP_KNOBS = {
    Mechanism.SCHED_EXT: Knob.WARP,
    Mechanism.BVT: Knob.BVT_WARP,
    Mechanism.GROUP_IDENTITY: Knob.GROUP_IDENTITY,
}
_WITH_CLASS = {EgressGroup.BATCH, EgressGroup.CRITICAL, EgressGroup.CHANGED}
"""Where a VM has a class of its own on an uplink."""


def domain_uuid(name: str) -> str:
    """A UUID that is always the same for a name."""
    return f"00000000-0000-4000-8000-{abs(sum(ord(c) * 257**i for i, c in enumerate(name))) % 16**12:012x}"


@dataclass
class FakeVm:
    """A running QEMU process as the kernel shows it."""

    instance: VmInstance
    weight: int | None
    vcpus: list[CpuSet]
    emulator: CpuSet
    cpu_ns: int = 0
    delay_ns: int = 0
    run_ns: dict[int, int] = field(default_factory=dict)
    idle: bool = False
    quota: Quota = field(default_factory=lambda: Quota(UNLIMITED, 100_000))
    iothreads: dict[int, CpuSet] = field(default_factory=dict)
    nodes: frozenset[int] = frozenset()
    slices: dict[int, int] = field(default_factory=dict)
    warps: dict[Knob, int] = field(default_factory=dict)
    schedulings: dict[int, int] = field(default_factory=dict)
    runtimes: dict[tuple[Knob, int], int] = field(default_factory=dict)
    place: int = OUTSIDE
    memories: dict[tuple[Knob, int], int] = field(default_factory=dict)
    disks: dict[tuple[Knob, int], int] = field(default_factory=dict)
    egress: dict[int, int] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)
    tap_limits: dict[int, int] = field(default_factory=dict)


@dataclass
class FakeHost:
    """``HostPort`` in memory. The next writes fail with the errnos in ``fail_next``; knobs in ``ignore`` keep still.

    ``mechanisms`` are those for warps that its kernel has; ``scheduler`` is the state of our sched_ext scheduler, which
    the kernel ``refuses`` or not, and ``others`` the name of somebody else's. ``warp_reads`` are the domains that were
    asked for their warps, ``leaving`` those that migrate to other hosts, ``interfaces`` what ``taps`` answers.
    ``limits``: it has CONFIG_RT_GROUP_SCHED, and all VMs are below one group. ``strangers`` are VMs of others in the
    batch group.
    """

    cpus: int = 4
    scale: WeightScale | None = CPU_SHARES_V1
    boot_id: str = "boot-1"
    connected: bool = True
    discovery: Discovery = field(default_factory=lambda: Discovery(0.0, 60.0))
    vms: dict[str, FakeVm] = field(default_factory=dict)
    listed: dict[str, VmInstance] = field(default_factory=dict)
    fail_next: list[int] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    interfaces: dict[str, frozenset[int]] = field(default_factory=dict)
    ignore: set[Knob] = field(default_factory=set)
    writes: list[tuple[KnobKey, KnobValue]] = field(default_factory=list)
    next_pid: int = 100
    ips: dict[str, frozenset[str]] = field(default_factory=dict)
    offline: set[int] = field(default_factory=set)
    irqs: dict[int, CpuSet] = field(default_factory=dict)
    topology: Topology | None = None
    mechanisms: tuple[Mechanism, ...] = ()
    scheduler: int = UNLOADED
    refuses: bool = False
    others: str = ""
    warp_reads: list[str] = field(default_factory=list)
    limits: bool = False
    machine_us: int = 0
    pcpu_times: dict[int, PcpuTimes] = field(default_factory=dict)
    needs_batch_group: bool | None = None
    strangers: int = 0
    replugs: int = 0
    batch: dict[Knob, int] = field(default_factory=dict)
    """The batch group's idle class and weight; empty: there is no such group."""
    resources: ResourcePort | None = None
    wait_alarm: WaitAlarmPort | None = None
    memory_version: int = 0
    """Of the memory controller that VMs have; 0: none."""
    machine_protected: int = 0
    disk_weights: bool = False
    """VMs have weights on disks."""
    disks: tuple[int, ...] = ()
    """Numbers of those that VMs may have ceilings on."""
    ports: dict[int, UplinkPort] = field(default_factory=dict)
    """What may be an uplink, by index."""
    divided: dict[int, int] = field(default_factory=dict)
    """The rate of each uplink that is divided."""
    batch_ceilings: dict[int, int] = field(default_factory=dict)
    clock_domains: dict[int, ClockDomain] = field(default_factory=dict)
    powers: dict[tuple[Knob, int], int] = field(default_factory=dict)
    """Power settings of pCPUs, and of their clocks."""

    @property
    def online(self) -> CpuSet:
        return frozenset(range(self.cpus)) - self.offline

    @property
    def capabilities(self) -> Capabilities:
        version = 0 if self.scale is None else 1 if self.scale == CPU_SHARES_V1 else 2
        topology = self.topology or Topology.flat(self.online)
        ours = self.scheduler in {LOADED, OUTDATED}
        return Capabilities(
            *("6.1", "9.0.0", version, self.scale, self.online, self.online, True, (), True, topology),
            warps=tuple(
                Offer(mechanism, mechanism in self.mechanisms, f"{mechanism} was looked for")
                for mechanism in Mechanism
                if mechanism != Mechanism.NONE
            ),
            scheduler="equipoise_bvt" if ours else self.others,
            scheduler_is_ours=ours,
            limits_real_time=self.limits,
            needs_batch_group=self.needs_batch_group,
        )

    @property
    def cache(self) -> CachePort | None:
        return None

    @property
    def itself(self) -> VmInstance:
        return VmInstance(HOST_UUID, HOST_UUID, 1, 1)

    def knobs(self, instance: VmInstance, family: Family) -> dict[KnobKey, KnobValue]:
        own = {Family.INTERRUPT: self._interrupts, Family.POWER: self._powers, Family.BATCH_GROUP: self._batch}
        if family in own:
            return own[family]()
        if family is Family.MEMORY:
            return self._memory(instance)
        if family is Family.DISK:
            self._require(instance)
            return self._disks(instance.uuid)
        if family is Family.NETWORK:
            return self._egress(instance)
        return self._scheduling(instance) if family is Family.SCHEDULING else self._warp(instance)

    def _interrupts(self) -> dict[KnobKey, KnobValue]:
        return {KnobKey(HOST_UUID, Knob.IRQ_AFFINITY, irq): cpus for irq, cpus in self.irqs.items()}

    def _powers(self) -> dict[KnobKey, KnobValue]:
        return {KnobKey(HOST_UUID, *knob): value for knob, value in self.powers.items()}

    def clocks(self) -> dict[int, ClockDomain]:
        return dict(self.clock_domains)

    def _batch(self) -> dict[KnobKey, KnobValue]:
        """A group in the idle class has no weight."""
        weightless = self.batch.get(Knob.BATCH_IDLE) == 1
        knobs = [knob for knob in self.batch if not (weightless and knob is Knob.BATCH_WEIGHT)]
        return {KnobKey(HOST_UUID, knob): self.batch[knob] for knob in knobs}

    def batch_group(self) -> BatchGroup:
        return BatchGroup(bool(self.batch), self.strangers)

    def boot(self, name: str, vcpus: int = 1, pinned: CpuSet | None = None) -> str:
        """Start a domain; returns its UUID."""
        uuid = domain_uuid(name)
        self.next_pid += 1
        instance = VmInstance(uuid, name, self.next_pid, self.next_pid * 10)
        weight = self.scale.default if self.scale else None
        mask = pinned or self.online
        self.vms[uuid] = FakeVm(instance, weight, [mask] * vcpus, mask)
        self.listed[uuid] = instance
        return uuid

    def stop(self, name: str) -> None:
        """The domain ends and libvirt has told so."""
        self.vms.pop(domain_uuid(name), None)
        self.listed.pop(domain_uuid(name), None)
        self._tidy()

    def vanish(self, name: str) -> None:
        """The process ends before libvirt tells."""
        self.vms.pop(domain_uuid(name), None)

    def settings(self) -> dict[KnobKey, KnobValue]:
        """Every knob of every VM, and of the host; the warps of our scheduler are 0 while it is not there."""
        settings = self._of_host()
        for uuid in self.vms:
            settings |= self._of_vm(uuid)
        return settings

    def held(self, key: KnobKey) -> KnobValue | None:
        """What a knob holds, None where there is none: as ``settings`` has it."""
        if key.uuid == HOST_UUID:
            return self._of_host().get(key)
        return self._of_vm(key.uuid).get(key) if key.uuid in self.vms else None

    def _of_host(self) -> dict[KnobKey, KnobValue]:
        own = self._interrupts()
        if Mechanism.SCHED_EXT in self.mechanisms:
            own[SCHEDULER] = self.scheduler
        if self.limits:
            own[MACHINE] = self.machine_us
        return own | self._batch() | self._above() | self._uplinks() | self._powers()

    def _of_vm(self, uuid: str) -> dict[KnobKey, KnobValue]:
        numbers = self._warps(uuid) | self._schedulings(uuid) | self._memories(uuid) | self._disks(uuid)
        return {**self._state(uuid).knobs(), **numbers, **self._groups(uuid, self.ports), **self._tap_limits(uuid)}

    def _memory(self, instance: VmInstance) -> dict[KnobKey, KnobValue]:
        if instance.uuid == HOST_UUID:
            return self._above()
        self._require(instance)
        return self._above() | self._memories(instance.uuid)

    def _above(self) -> dict[KnobKey, KnobValue]:
        return {MACHINE_MEMORY: self.machine_protected} if self.memory_version == 2 else {}

    def _memories(self, uuid: str) -> dict[KnobKey, KnobValue]:
        """In v2 the VM's own group and the one inside are protected; v1 has swappiness, here of one group."""
        knobs = [(Knob.MEMORY_CEILING, 0)] if self.memory_version else []
        knobs += [(Knob.SWAPPINESS, 0)] if self.memory_version == 1 else []
        knobs += [(Knob.MEMORY_PROTECTION, index) for index in (0, 1) if self.memory_version == 2]
        held = self.vms[uuid].memories
        return {KnobKey(uuid, *knob): held.get(knob, knob[0].spec.value.usual or 0) for knob in knobs}

    def _disks(self, uuid: str) -> dict[KnobKey, KnobValue]:
        knobs = [(knob, 0) for knob in DISK_WEIGHTS.values() if self.disk_weights]
        knobs += [(Knob.DISK_CEILING, number) for number in self.disks]
        held = self.vms[uuid].disks
        return {KnobKey(uuid, *knob): held.get(knob, knob[0].spec.value.usual or 0) for knob in knobs}

    def uplinks(self) -> dict[int, UplinkPort]:
        return dict(self.ports)

    def _uplinks(self) -> dict[KnobKey, KnobValue]:
        """One that is not divided has no ceiling, which reads like none."""
        other = {index for index, port in self.ports.items() if port.other_qdisc}
        rates = {index: ANOTHER if index in other else self.divided.get(index, 0) for index in self.ports}
        own: dict[KnobKey, KnobValue] = {
            KnobKey(HOST_UUID, Knob.UPLINK_RATE, index): rate for index, rate in rates.items()
        }
        return own | self._batch_ceilings(self.ports)

    def _batch_ceilings(self, uplinks: Iterable[int]) -> dict[KnobKey, KnobValue]:
        held = self.batch_ceilings
        return {KnobKey(HOST_UUID, Knob.BATCH_EGRESS, index): held.get(index, UNLIMITED) for index in uplinks}

    def _egress(self, instance: VmInstance) -> dict[KnobKey, KnobValue]:
        if instance.uuid == HOST_UUID:
            gone = self._batch_ceilings(self.ports.keys() - self.divided.keys())
            return {key: value for key, value in self._uplinks().items() if key not in gone}
        self._require(instance)
        held = self._groups(instance.uuid, self.divided)
        gone = {index for index in self.divided if not self.has_class(instance.uuid, index)}
        there = {key: value for key, value in held.items() if key.knob is Knob.EGRESS_GROUP or key.index not in gone}
        return {**there, **self._tap_limits(instance.uuid)}

    def has_class(self, uuid: str, uplink: int) -> bool:
        """Whether a VM has a class of its own there."""
        return uplink in self.divided and uuid in self.vms and self.vms[uuid].egress.get(uplink) in _WITH_CLASS

    def _tap_limits(self, uuid: str) -> dict[KnobKey, KnobValue]:
        held = self.vms[uuid].tap_limits
        return {KnobKey(uuid, Knob.TAP_LIMIT, tap): held.get(tap, NO_RATE) for tap in self.interfaces.get(uuid, ())}

    def _groups(self, uuid: str, uplinks: Iterable[int]) -> dict[KnobKey, KnobValue]:
        """A VM without a class has no turn, which reads like the usual one."""
        vm = self.vms[uuid]
        return {
            key: value
            for index in uplinks
            for key, value in (
                (KnobKey(uuid, Knob.EGRESS_GROUP, index), vm.egress.get(index, EgressGroup.OTHERS)),
                (KnobKey(uuid, Knob.EGRESS_TURN, index), vm.turns.get(index, USUAL_TURN)),
            )
        }

    def _set_egress(self, key: KnobKey, value: int) -> None:
        """Classes and filters go with the qdisc."""
        index = key.index
        if key.knob is Knob.TAP_LIMIT:
            self.vms[key.uuid].tap_limits[index] = value
        elif key.knob is Knob.UPLINK_RATE:
            if self.ports[index].other_qdisc:
                raise HostError("another tool's qdisc", errno.EBUSY)
            if value > 0:
                self.divided[index] = value
                return
            self.divided.pop(index, None)
            self.batch_ceilings.pop(index, None)
            for vm in self.vms.values():
                vm.egress.pop(index, None)
                vm.turns.pop(index, None)
        elif index not in self.divided:
            raise VmVanished("not divided", errno.ENOENT)
        elif key.knob is Knob.BATCH_EGRESS:
            self.batch_ceilings[index] = value
        elif key.knob is Knob.EGRESS_GROUP:
            self.vms[key.uuid].egress[index] = value
            if value not in _WITH_CLASS:
                self.vms[key.uuid].turns.pop(index, None)
        elif self.has_class(key.uuid, index):
            self.vms[key.uuid].turns[index] = value
        else:
            raise VmVanished("no class", errno.ENOENT)

    def _set_disk(self, key: KnobKey, value: int) -> None:
        if key not in self._disks(key.uuid):
            raise VmVanished(f"no {key.knob}", errno.ENOENT)
        if key.knob.spec.value.objection(value):
            raise HostError("write: Numerical result out of range", errno.ERANGE)
        self.vms[key.uuid].disks[key.knob, key.index] = value

    def _set_memory(self, key: KnobKey, value: int) -> None:
        """Whole pages of an amount, as mm/page_counter.c rounds."""
        is_amount = key.knob is not Knob.SWAPPINESS and value != UNLIMITED
        pages = value // 4096 * 4096 if is_amount else value
        if key == MACHINE_MEMORY:
            self.machine_protected = pages
        elif key in self._memories(key.uuid):
            self.vms[key.uuid].memories[key.knob, key.index] = pages
        else:
            raise VmVanished(f"no {key.knob}", errno.ENOENT)

    def _scheduling(self, instance: VmInstance) -> dict[KnobKey, KnobValue]:
        above: dict[KnobKey, KnobValue] = {MACHINE: self.machine_us} if self.limits else {}
        if instance.uuid == HOST_UUID:
            return above | ({KnobKey(HOST_UUID, Knob.RT_RUNTIME): MOST_LIMIT_US} if self.limits else {})
        self._require(instance)
        return above | self._schedulings(instance.uuid)

    def _schedulings(self, uuid: str) -> dict[KnobKey, KnobValue]:
        vm = self.vms[uuid]
        vcpus = range(len(vm.vcpus))
        found: dict[KnobKey, KnobValue] = {
            KnobKey(uuid, Knob.SCHEDULING, index): vm.schedulings.get(index, 0) for index in vcpus
        }
        if self.limits:
            groups = [(Knob.RT_RUNTIME, 0), (Knob.RT_RUNTIME, 1), *((Knob.VCPU_RT_RUNTIME, index) for index in vcpus)]
            found |= {KnobKey(uuid, *group): vm.runtimes.get(group, 0) for group in groups}
        return found

    def _warp(self, instance: VmInstance) -> dict[KnobKey, KnobValue]:
        self.warp_reads.append(instance.uuid)
        if instance.uuid == HOST_UUID:
            return {SCHEDULER: self.scheduler}
        self._require(instance)
        gone = set() if self.scheduler in {LOADED, OUTDATED} else {Knob.WARP}
        return {key: value for key, value in self._warps(instance.uuid).items() if key.knob not in gone}

    def _warps(self, uuid: str) -> dict[KnobKey, KnobValue]:
        vm = self.vms[uuid]
        found: dict[KnobKey, KnobValue] = {
            KnobKey(uuid, knob): vm.warps.get(knob, 0)
            for mechanism, knob in WARP_KNOBS.items()
            if mechanism in self.mechanisms
        }
        if Mechanism.SLICE in self.mechanisms:
            found |= {KnobKey(uuid, Knob.SLICE, index): vm.slices.get(index, 0) for index in range(len(vm.vcpus))}
        return found

    def warp_counters(self) -> dict[str, int]:
        return {"preemptions": 3, "borrowed_ns": 2_000_000_000}

    def eject(self) -> None:
        """The kernel throws our scheduler out."""
        self._schedule(EJECTED)

    def _schedule(self, scheduler: int) -> None:
        """All warps end with a scheduler, and begin at 0 with the next one."""
        if scheduler == self.scheduler:
            return
        self.scheduler = scheduler
        for vm in self.vms.values():
            vm.warps.pop(Knob.WARP, None)

    def running(self) -> Mapping[str, VmInstance]:
        return self.listed

    def addresses(self) -> Mapping[str, frozenset[str]]:
        return {uuid: self.ips[uuid] for uuid in self.listed if uuid in self.ips}

    def taps(self) -> Mapping[str, frozenset[int]]:
        return {uuid: self.interfaces[uuid] for uuid in self.listed if uuid in self.interfaces}

    def migrating(self) -> Collection[str]:
        return self.leaving & self.listed.keys()

    def ended(self, instances: Collection[VmInstance]) -> set[VmInstance]:
        return {instance for instance in instances if not self.is_alive(instance)}

    def is_alive(self, instance: VmInstance) -> bool:
        if instance.uuid == HOST_UUID:
            return instance == self.itself
        vm = self.vms.get(instance.uuid)
        return vm is not None and vm.instance == instance

    def look(self) -> None:
        """Each reading is one of now."""

    def read(self, instance: VmInstance, afresh: bool = True) -> VmState:
        self._require(instance)
        if instance.uuid in self.unreadable:
            raise HostError("read: Input/output error", errno.EIO)
        return self._state(instance.uuid)

    def waits(self, instances: Iterable[VmInstance]) -> list[tuple[int, ...]]:
        alive = (self.vms[instance.uuid] if self.is_alive(instance) else None for instance in instances)
        return [(vm.delay_ns,) * len(vm.vcpus) if vm else () for vm in alive]

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        if key.uuid != HOST_UUID:
            self._require(instance)
        if self.fail_next:
            number = self.fail_next.pop(0)
            if number:
                raise HostError("write refused", number)
        if key.knob in self.ignore:
            return self._kept(key)
        self.writes.append((key, value))
        self.change(key, value)
        return self._kept(key)

    def _kept(self, key: KnobKey) -> KnobValue:
        value = self.held(key)
        assert value is not None
        return value

    def change(self, key: KnobKey, value: KnobValue) -> None:
        """Set a knob as somebody (also somebody else) would."""
        if isinstance(value, int):
            self._change_number(key, value)
            return
        if not value & self.online:
            raise HostError("sched_setaffinity: Invalid argument", errno.EINVAL)
        if key.knob is Knob.IRQ_AFFINITY:
            self.irqs[key.index] = value & self.online
            return
        vm = self.vms[key.uuid]
        if key.knob is Knob.EMULATOR_PIN:
            vm.emulator = value & self.online
        elif key.knob is Knob.IOTHREAD_PIN and key.index in vm.iothreads:
            vm.iothreads[key.index] = value & self.online
        elif key.knob is Knob.VCPU_PIN and key.index < len(vm.vcpus):
            vm.vcpus[key.index] = value & self.online
        else:
            raise VmVanished("no such thread", errno.ESRCH)

    def _set_power(self, key: KnobKey, value: int) -> None:
        if (key.knob, key.index) not in self.powers:
            raise VmVanished(f"no {key.knob}", errno.ENOENT)
        self.powers[key.knob, key.index] = value

    def _load(self, value: int) -> None:
        if value == LOADED and (self.refuses or self.others):
            raise HostError("the kernel did not take the scheduler", errno.EBUSY)
        self._schedule(value)

    def _change_number(self, key: KnobKey, value: int) -> None:
        if key == SCHEDULER:
            self._load(value)
        elif key.knob in POWERS:
            self._set_power(key, value)
        elif key == MACHINE:
            self._limit(value, 0, (vm.runtimes.get((Knob.RT_RUNTIME, 0), 0) for vm in self.vms.values()))
            self.machine_us = value
        elif key.knob in MEMORIES:
            self._set_memory(key, value)
        elif key.knob.spec.family is Family.DISK:
            self._set_disk(key, value)
        elif key.knob in EGRESS:
            self._set_egress(key, value)
        elif key.knob in BATCH_GROUPS:
            self._set_batch(key.knob, value)
        elif key.knob is Knob.BATCH_GROUP:
            self._move(self.vms[key.uuid], value)
        elif key.knob in SCHEDULINGS:
            self._set_scheduling(self.vms[key.uuid], key, value)
        elif key.knob in WARPS:
            self._set_warp(self.vms[key.uuid], key, value)
        else:
            self._set_number(self.vms[key.uuid], key.knob, value)

    def _set_batch(self, knob: Knob, value: int) -> None:
        if not self.batch or self.scale is None:
            raise VmVanished("no batch group", errno.ENOENT)
        if knob is Knob.BATCH_WEIGHT and self.batch[Knob.BATCH_IDLE]:
            raise HostError("write: Invalid argument", errno.EINVAL)
        if knob is Knob.BATCH_IDLE and self.batch[knob] != value:
            self.batch[Knob.BATCH_WEIGHT] = self.scale.default
        self.batch[knob] = value

    def _move(self, vm: FakeVm, place: int) -> None:
        if self.scale is None:
            raise HostError("cannot be moved", errno.EOPNOTSUPP)
        vm.place = place
        if place and not self.batch:
            self.batch = {Knob.BATCH_IDLE: 0, Knob.BATCH_WEIGHT: self.scale.minimum}
        self._tidy()

    def _tidy(self) -> None:
        if not any(vm.place for vm in self.vms.values()):
            self.batch = {}

    def _set_warp(self, vm: FakeVm, key: KnobKey, value: int) -> None:
        if key not in self._warps(key.uuid) or (key.knob is Knob.WARP and self.scheduler not in {LOADED, OUTDATED}):
            raise VmVanished(f"no {key.knob}", errno.ENOENT)
        if key.knob is Knob.SLICE:
            vm.slices[key.index] = value and min(max(value, 100_000), 100_000_000)
            return
        if key.knob is Knob.GROUP_IDENTITY and abs(value) > 2:
            raise HostError("write: Invalid argument", errno.EINVAL)
        vm.warps[key.knob] = value

    def _set_scheduling(self, vm: FakeVm, key: KnobKey, value: int) -> None:
        if key not in self._schedulings(key.uuid):
            raise VmVanished(f"no {key.knob}", errno.ENOENT)
        if key.knob is Knob.SCHEDULING:
            if is_real_time(value) and not vm.runtimes.get((Knob.VCPU_RT_RUNTIME, key.index)):
                raise HostError("sched_setattr: Operation not permitted", errno.EPERM)
            vm.schedulings[key.index] = value
            return
        outer, inner = (vm.runtimes.get((Knob.RT_RUNTIME, index), 0) for index in (0, 1))
        vcpus = {index: vm.runtimes.get((Knob.VCPU_RT_RUNTIME, index), 0) for index in range(len(vm.vcpus))}
        if key.knob is Knob.VCPU_RT_RUNTIME:
            if not value and is_real_time(vm.schedulings.get(key.index, 0)):
                raise HostError("write: Device or resource busy", errno.EBUSY)
            self._limit(sum((vcpus | {key.index: value}).values()), 0, (), inner)
        elif key.index == 1:
            self._limit(value, 0, vcpus.values(), outer)
        else:
            others = (one.runtimes.get((Knob.RT_RUNTIME, 0), 0) for one in self.vms.values() if one is not vm)
            self._limit(value, sum(others), (inner,), self.machine_us)
        vm.runtimes[key.knob, key.index] = value

    @staticmethod
    def _limit(value: int, beside: int, inside: Iterable[int], around: int = MOST_LIMIT_US) -> None:
        """kernel/sched/rt.c, tg_rt_schedulable: no group has less than those inside it together."""
        if sum(inside) > value or value + beside > around:
            raise HostError("write: Invalid argument", errno.EINVAL)

    def _set_number(self, vm: FakeVm, knob: Knob, value: int) -> None:
        if self.scale is None:
            raise HostError("no such file", errno.ENOENT)
        if knob is Knob.IDLE:
            if value not in {0, 1}:
                raise HostError("write: Invalid argument", errno.EINVAL)
            if vm.idle != bool(value):  # kernel/sched/fair.c, sched_group_set_idle: the weight before is lost
                vm.idle, vm.weight = bool(value), self.scale.default
        elif knob is Knob.QUOTA:
            if value != UNLIMITED and value < LEAST_QUOTA_US:
                raise HostError("write: Invalid argument", errno.EINVAL)
            vm.quota = Quota(value, vm.quota.period_us)
        elif vm.idle:
            raise HostError("write: Invalid argument", errno.EINVAL)
        elif not self.scale.minimum <= value <= self.scale.maximum:
            raise HostError("write: Numerical result out of range", errno.ERANGE)
        else:
            vm.weight = value

    def plug_vcpu(self, name: str) -> None:
        """One vCPU more: its thread is started by, and so runs where, the emulator's does."""
        vm = self.vms[domain_uuid(name)]
        vm.vcpus.append(vm.emulator)

    def unplug_vcpu(self, name: str) -> None:
        """The last vCPU goes, with its group."""
        vm = self.vms[domain_uuid(name)]
        vm.vcpus.pop()
        vm.schedulings.pop(len(vm.vcpus), None)
        vm.runtimes.pop((Knob.VCPU_RT_RUNTIME, len(vm.vcpus)), None)

    def unplug_cpu(self, cpu: int) -> None:
        """A pCPU goes offline: threads that could run nowhere else may run anywhere."""
        self.offline.add(cpu)
        self.replugs += 1
        for vm in self.vms.values():
            vm.vcpus = [mask & self.online or self.online for mask in vm.vcpus]
            vm.emulator = vm.emulator & self.online or self.online

    def replug_cpu(self, cpu: int) -> None:
        """A pCPU comes back: before Linux 6.2 the threads of every cpuset may then run on all pCPUs of that."""
        self.offline.discard(cpu)
        self.replugs += 1
        for vm in self.vms.values():
            vm.vcpus = [self.online for _ in vm.vcpus]
            vm.emulator = self.online

    def forget(self, keep: frozenset[VmInstance]) -> None:
        pass

    def cpu_times(self) -> CpuTimes:
        busy = sum(vm.cpu_ns for vm in self.vms.values())
        return CpuTimes(10**15, busy, self.pcpu_times)

    def _require(self, instance: VmInstance) -> FakeVm:
        vm = self.vms.get(instance.uuid)
        if vm is None or vm.instance != instance:
            raise VmVanished("process is gone", errno.ESRCH)
        return vm

    def _state(self, uuid: str) -> VmState:
        vm = self.vms[uuid]
        vcpus = tuple(VcpuState(index, cpus, vm.delay_ns, vm.run_ns.get(index)) for index, cpus in enumerate(vm.vcpus))
        return VmState(
            VmInstance(*vm.instance),
            vm.cpu_ns,
            None if vm.idle else vm.weight,
            vcpus,
            vm.emulator,
            tuple(sorted(vm.iothreads.items())),
            vm.idle if self.scale else None,
            vm.quota if self.scale else None,
            vm.nodes,
            batch_group=vm.place if self.scale == CPU_SHARES_V1 else None,
        )
