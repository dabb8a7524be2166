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
    CpuCounters,
    CpuTimes,
    Discovery,
    PcpuTimes,
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
    MEMORIES,
    POWERS,
    SCHEDULINGS,
    UNLIMITED,
    WARPS,
    Knob,
    KnobKey,
)
from manager.model.power import ClockDomain
from manager.model.scheduling import MOST_LIMIT_US
from manager.model.topology import Topology
from manager.model.warp import EJECTED, LOADED, OUTDATED, UNLOADED, Mechanism, Offer
from tests.fakes.uplinks import FakeUplinks
from tests.fakes.vm import FakeVm, domain_uuid, within_limit

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


@dataclass
class FakeHost(FakeUplinks):
    """``HostPort`` in memory. The next writes fail with the errnos in ``fail_next``; knobs in ``ignore`` keep still.

    ``mechanisms`` are those for warps that its kernel has; ``scheduler`` is the state of our sched_ext scheduler, which
    the kernel ``refuses`` or not, and ``others`` the name of somebody else's. ``warp_reads`` are the domains that were
    asked for their warps, ``leaving`` those that migrate to other hosts.
    ``limits``: it has CONFIG_RT_GROUP_SCHED, and all VMs are below one group. ``strangers`` are VMs of others in the
    batch group.
    """

    cpus: int = 4
    scale: WeightScale | None = CPU_SHARES_V1
    boot_id: str = "boot-1"
    connected: bool = True
    discovery: Discovery = field(default_factory=lambda: Discovery(0.0, 60.0))
    listed: dict[str, VmInstance] = field(default_factory=dict)
    fail_next: list[int] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    as_read: dict[VmInstance, VmState] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
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
            if instance.uuid == HOST_UUID:
                return self.egress_of_host()
            self._require(instance)
            return self.egress_of_vm(instance.uuid)
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
        return own | self._batch() | self._above() | self.uplink_knobs() | self._powers()

    def _of_vm(self, uuid: str) -> dict[KnobKey, KnobValue]:
        numbers = (
            self._warps(uuid) | self.vms[uuid].real_time_knobs(self.limits) | self._memories(uuid) | self._disks(uuid)
        )
        return {**self._state(uuid).knobs(), **numbers, **self.egress_groups(uuid, self.ports), **self.tap_limits(uuid)}

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
        return above | self.vms[instance.uuid].real_time_knobs(self.limits)

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

    def lost_interrupts(self, irqs: Collection[int]) -> Collection[int]:
        return [irq for irq in irqs if irq not in self.irqs]

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
        self.as_read[instance] = state = self._state(instance.uuid)
        return state

    def counters(self, instances: Mapping[str, VmInstance]) -> dict[str, tuple[VmState, CpuCounters]]:
        found: dict[str, tuple[VmState, CpuCounters]] = {}
        for uuid, instance in instances.items():
            before = self.as_read.get(instance)
            if before is None or uuid in self.unreadable or not self.is_alive(instance):
                continue
            now = self._state(uuid)
            if _settings(now) == _settings(before):
                found[uuid] = before, now.counters
        return found

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
            within_limit(value, 0, (vm.runtimes.get((Knob.RT_RUNTIME, 0), 0) for vm in self.vms.values()))
            self.machine_us = value
        elif key.knob in MEMORIES:
            self._set_memory(key, value)
        elif key.knob.spec.family is Family.DISK:
            self._set_disk(key, value)
        elif key.knob in EGRESS:
            self.set_egress(key, value)
        elif key.knob in BATCH_GROUPS:
            self._set_batch(key.knob, value)
        elif key.knob is Knob.BATCH_GROUP:
            self._move(self.vms[key.uuid], value)
        elif key.knob in SCHEDULINGS:
            self._set_real_time(self.vms[key.uuid], key, value)
        elif key.knob in WARPS:
            self._set_warp(self.vms[key.uuid], key, value)
        else:
            self.vms[key.uuid].set_cpu(self.scale, key.knob, value)

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

    def _set_real_time(self, vm: FakeVm, key: KnobKey, value: int) -> None:
        others = (other.runtimes.get((Knob.RT_RUNTIME, 0), 0) for other in self.vms.values() if other is not vm)
        vm.set_real_time(key, value, self.limits, sum(others), self.machine_us)

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


def _settings(state: VmState) -> VmState:
    """All but the counters."""
    vcpus = tuple(vcpu._replace(run_ns=None, run_delay_ns=None) for vcpu in state.vcpus)
    return state._replace(cpu_ns=0, vcpus=vcpus)
