"""A host in memory that answers as the kernel does, errors included. For unit tests only."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from manager.errors import HostError, VmVanished
from manager.model.cpus import CpuSet
from manager.model.host import (
    CPU_SHARES_V1,
    Capabilities,
    CpuTimes,
    KnobKey,
    KnobValue,
    VcpuState,
    VmInstance,
    VmState,
    WeightScale,
)
from manager.model.records import Knob


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


@dataclass
class FakeHost:
    """``HostPort`` in memory. The next writes fail with the errnos in ``fail_next``; knobs in ``ignore`` keep still."""

    cpus: int = 4
    scale: WeightScale | None = CPU_SHARES_V1
    boot_id: str = "boot-1"
    connected: bool = True
    vms: dict[str, FakeVm] = field(default_factory=dict)
    listed: dict[str, VmInstance] = field(default_factory=dict)
    fail_next: list[int] = field(default_factory=list)
    unreadable: set[str] = field(default_factory=set)
    ignore: set[Knob] = field(default_factory=set)
    writes: list[tuple[KnobKey, KnobValue]] = field(default_factory=list)
    next_pid: int = 100
    ips: dict[str, frozenset[str]] = field(default_factory=dict)

    @property
    def online(self) -> CpuSet:
        return frozenset(range(self.cpus))

    @property
    def capabilities(self) -> Capabilities:
        version = 0 if self.scale is None else 1 if self.scale == CPU_SHARES_V1 else 2
        return Capabilities("6.1", "9.0.0", version, self.scale, self.online, self.online, True)

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

    def vanish(self, name: str) -> None:
        """The process ends before libvirt tells."""
        self.vms.pop(domain_uuid(name), None)

    def settings(self) -> dict[KnobKey, KnobValue]:
        """Every knob of every VM."""
        return {key: value for uuid in self.vms for key, value in self._state(uuid).knobs().items()}

    def running(self) -> Mapping[str, VmInstance]:
        return self.listed

    def addresses(self) -> Mapping[str, frozenset[str]]:
        return {uuid: self.ips[uuid] for uuid in self.listed if uuid in self.ips}

    def is_alive(self, instance: VmInstance) -> bool:
        vm = self.vms.get(instance.uuid)
        return vm is not None and vm.instance == instance

    def read(self, instance: VmInstance) -> VmState:
        self._require(instance)
        if instance.uuid in self.unreadable:
            raise HostError("read: Input/output error", errno.EIO)
        return self._state(instance.uuid)

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        vm = self._require(instance)
        if self.fail_next:
            number = self.fail_next.pop(0)
            if number:
                raise HostError("write refused", number)
        if key.knob in self.ignore:
            return self._state(instance.uuid).knobs()[key]
        self.writes.append((key, value))
        self.change(key, value)
        del vm
        return self._state(instance.uuid).knobs()[key]

    def change(self, key: KnobKey, value: KnobValue) -> None:
        """Set a knob as somebody (also somebody else) would."""
        vm = self.vms[key.uuid]
        if isinstance(value, int):
            if self.scale is None or not self.scale.minimum <= value <= self.scale.maximum:
                raise HostError("write: Numerical result out of range", errno.ERANGE)
            vm.weight = value
            return
        if not value & self.online:
            raise HostError("sched_setaffinity: Invalid argument", errno.EINVAL)
        if key.knob is Knob.EMULATOR_PIN:
            vm.emulator = value & self.online
        elif key.index < len(vm.vcpus):
            vm.vcpus[key.index] = value & self.online
        else:
            raise VmVanished("no such vCPU", errno.ESRCH)

    def forget(self, keep: frozenset[VmInstance]) -> None:
        pass

    def cpu_times(self) -> CpuTimes:
        busy = sum(vm.cpu_ns for vm in self.vms.values())
        return CpuTimes(10**15, busy)

    def _require(self, instance: VmInstance) -> FakeVm:
        vm = self.vms.get(instance.uuid)
        if vm is None or vm.instance != instance:
            raise VmVanished("process is gone", errno.ESRCH)
        return vm

    def _state(self, uuid: str) -> VmState:
        vm = self.vms[uuid]
        vcpus = tuple(VcpuState(index, cpus, vm.delay_ns) for index, cpus in enumerate(vm.vcpus))
        return VmState(replace(vm.instance), vm.cpu_ns, vm.weight, vcpus, vm.emulator)
