"""``HostPort`` of a simulated host: answers as the kernel does, errors included."""

from __future__ import annotations

import errno
from collections.abc import Mapping

from manager.errors import HostError, VmVanished
from manager.model.host import (
    CPU_SHARES_V1,
    Capabilities,
    CpuTimes,
    KnobKey,
    KnobValue,
    VcpuState,
    VmInstance,
    VmState,
)
from manager.model.records import Knob
from manager.sim.scenario import FaultKind
from manager.sim.services import SimVm
from manager.sim.world import World

BOOT_ID = "simulated-boot"


class SimHost:
    """A host whose kernel is a ``World``. Belongs to the control loop's thread.

    The emulator's threads use no CPU time; where they may run is kept and has no effect.
    """

    def __init__(self, world: World, speed: float = 1.0) -> None:
        """``speed``: seconds of the world in one second of its reader, by which CPU times are scaled."""
        self._world = world
        self._speed = speed
        self._listed = self._alive()

    @property
    def capabilities(self) -> Capabilities:
        """Weights of the scenario's cgroup version, and all its pCPUs."""
        scenario = self._world.scenario
        cpus = frozenset(range(scenario.pcpus))
        warnings = (f"simulated host: scenario {scenario.name}",)
        return Capabilities(
            "simulated", "simulated", scenario.cgroup, self._world.scale, cpus, cpus, schedstat=True, warnings=warnings
        )

    @property
    def connected(self) -> bool:
        """False while the simulated libvirtd is away."""
        return (FaultKind.LIBVIRT_AWAY, "") not in self._world.faults

    @property
    def boot_id(self) -> str:
        """A simulated host never boots again."""
        return BOOT_ID

    def running(self) -> Mapping[str, VmInstance]:
        """The running VMs by UUID; while libvirtd is away, those that ran before."""
        if self.connected:
            self._listed = self._alive()
        return self._listed

    def addresses(self) -> Mapping[str, frozenset[str]]:
        """None: nothing of a simulated VM comes over a network."""
        return {}

    def is_alive(self, instance: VmInstance) -> bool:
        """Whether that very process still runs."""
        vm = self._world.vms.get(instance.libvirt_name)
        return vm is not None and vm.alive and vm.instance == instance

    def read(self, instance: VmInstance) -> VmState:
        """Settings and counters of a VM. Raises VmVanished, HostError."""
        vm = self._require(instance)
        if (FaultKind.READ_ERROR, vm.name) in self._world.faults:
            raise HostError("read: Input/output error", errno.EIO)
        cpus, now_s = self._world.cpus, self._world.now_s
        vcpus = tuple(
            VcpuState(
                vcpu.index,
                frozenset(pcpu.index for pcpu in vcpu.allowed),
                self._ns(cpus.delay_s(vcpu, now_s)),
            )
            for vcpu in vm.vcpus
        )
        return VmState(vm.instance, self._ns(self._world.vm_cpu_s(vm)), vm.weight, vcpus, vm.emulator)

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob and return what it then holds. Raises VmVanished, HostError.

        cgroup v1 takes any positive weight and clamps it, v2 answers ERANGE outside 1 .. 10000; CPU sets are reduced
        to the pCPUs there are, and EINVAL where none is left.
        """
        vm = self._require(instance)
        if (FaultKind.WRITE_ERROR, vm.name) in self._world.faults:
            raise HostError("write: Input/output error", errno.EIO)
        if key.knob is Knob.WEIGHT:
            if not isinstance(value, int):
                raise HostError("write: Invalid argument", errno.EINVAL)
            scale = self._world.scale
            if scale != CPU_SHARES_V1 and scale.clamp(value) != value:
                raise HostError("write: Numerical result out of range", errno.ERANGE)
            if value < 0:
                raise HostError("write: Invalid argument", errno.EINVAL)
            self._world.cpus.set_weight(vm, scale.clamp(value), self._world.now_s)
            return vm.weight
        if isinstance(value, int):
            raise HostError(f"{key.knob} takes pCPUs, not {value!r}", errno.EINVAL)
        online = value & frozenset(range(self._world.scenario.pcpus))
        if not online:
            raise HostError("sched_setaffinity: Invalid argument", errno.EINVAL)
        if key.knob is Knob.EMULATOR_PIN:
            vm.emulator = online
        elif 0 <= key.index < len(vm.vcpus):
            self._world.cpus.set_allowed(vm.vcpus[key.index], online, self._world.now_s)
        else:
            raise VmVanished(f"{vm.name} has no vCPU {key.index}", errno.ESRCH)
        return online

    def forget(self, keep: frozenset[VmInstance]) -> None:
        """Nothing is held open."""

    def cpu_times(self) -> CpuTimes:
        """CPU time of all pCPUs."""
        total_s = self._world.scenario.pcpus * self._world.now_s
        return CpuTimes(self._ns(total_s), self._ns(self._world.busy_s()))

    def _require(self, instance: VmInstance) -> SimVm:
        if not self.is_alive(instance):
            raise VmVanished(f"process {instance.pid} is gone", errno.ESRCH)
        return self._world.vms[instance.libvirt_name]

    def _alive(self) -> dict[str, VmInstance]:
        return {vm.instance.uuid: vm.instance for vm in self._world.vms.values() if vm.alive}

    def _ns(self, seconds: float) -> int:
        return round(seconds / self._speed * 1e9)
