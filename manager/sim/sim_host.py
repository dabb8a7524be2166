"""``HostPort`` of a simulated host: answers as the kernel does, errors included."""

from __future__ import annotations

import errno
import math
from collections.abc import Collection, Mapping

from manager.errors import HostError, VmVanished
from manager.model.host import CPU_SHARES_V1, Capabilities, CpuTimes, Discovery, VcpuState, VmInstance, VmState
from manager.model.knobs import HOST_UUID, Family, Knob, KnobKey, KnobValue
from manager.model.topology import Topology
from manager.sim.scenario import FaultKind
from manager.sim.services import SimVm
from manager.sim.sim_cache import SimCache
from manager.sim.world import World

BOOT_ID = "simulated-boot"
_IDLE_WEIGHT = 3 / 1024
"""Of a group in the idle class, in terms of the default weight: kernel/sched/sched.h, WEIGHT_IDLEPRIO."""


class SimHost:
    """A host whose kernel is a ``World``. Belongs to the control loop's thread.

    The emulator's threads use no CPU time; where they may run is kept and has no effect. A VM in the idle class has
    the weight that such a group has inside the kernel, but does not yield any sooner than with that weight.
    """

    def __init__(self, world: World, speed: float = 1.0) -> None:
        """``speed``: seconds of the world in one second of its reader, by which CPU times are scaled."""
        self._world = world
        self._speed = speed
        self._listed = self._alive()
        self._idle: set[VmInstance] = set()
        self._topology = Topology.flat(range(world.scenario.pcpus))
        self._cache = SimCache(world, world.memory, speed) if world.memory else None

    @property
    def capabilities(self) -> Capabilities:
        """Weights of the scenario's cgroup version, and all its pCPUs."""
        scenario = self._world.scenario
        cpus = frozenset(range(scenario.pcpus))
        warnings = (f"simulated host: scenario {scenario.name}",)
        return Capabilities(
            "simulated",
            "simulated",
            scenario.cgroup,
            self._world.scale,
            cpus,
            cpus,
            schedstat=True,
            warnings=warnings,
            idle_class=True,
            topology=self._topology,
        )

    @property
    def connected(self) -> bool:
        """False while the simulated libvirtd is away."""
        return (FaultKind.LIBVIRT_AWAY, "") not in self._world.faults

    @property
    def discovery(self) -> Discovery:
        """Never late: a simulated libvirtd is there, or is not."""
        return Discovery(0.0, math.inf)

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

    def ended(self, instances: Collection[VmInstance]) -> Collection[VmInstance]:
        """Which of these runs of VMs are over."""
        return {instance for instance in instances if not self.is_alive(instance)}

    def is_alive(self, instance: VmInstance) -> bool:
        """Whether that very process still runs."""
        if instance.uuid == HOST_UUID:
            return True
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
                self._ns(cpus.cpu_s(vcpu, now_s)),
            )
            for vcpu in vm.vcpus
        )
        idle = instance in self._idle
        weight = None if idle else vm.weight
        return VmState(vm.instance, self._ns(self._world.vm_cpu_s(vm)), weight, vcpus, vm.emulator, idle=idle)

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob and return what it then holds. Raises VmVanished, HostError.

        cgroup v1 takes any positive weight and clamps it, v2 answers ERANGE outside 1 .. 10000; CPU sets are reduced
        to the pCPUs there are, and EINVAL where none is left.
        """
        vm = self._require(instance)
        if (FaultKind.WRITE_ERROR, vm.name) in self._world.faults:
            raise HostError("write: Input/output error", errno.EIO)
        if key.knob is Knob.IDLE and isinstance(value, int):
            return self._set_idle(vm, idle=bool(value))
        if key.knob is Knob.WEIGHT:
            if not isinstance(value, int) or instance in self._idle:
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

    def _set_idle(self, vm: SimVm, *, idle: bool) -> int:
        """kernel/sched/fair.c, sched_group_set_idle: whatever the weight was before, it is lost."""
        if idle != (vm.instance in self._idle):
            self._idle ^= {vm.instance}
            scale = self._world.scale
            weight = max(round(_IDLE_WEIGHT * scale.default), 1) if idle else scale.default
            self._world.cpus.set_weight(vm, weight, self._world.now_s)
        return int(idle)

    @property
    def itself(self) -> VmInstance:
        """The host never boots again."""
        return VmInstance(HOST_UUID, HOST_UUID, 1, 1)

    @property
    def cache(self) -> SimCache | None:
        """None where the scenario has none."""
        return self._cache

    def knobs(self, instance: VmInstance, family: Family) -> Mapping[KnobKey, KnobValue]:  # noqa: ARG002
        """None: a simulated host has no network interfaces, and its kernel neither warps nor policies of vCPUs."""
        return {}

    def warp_counters(self) -> Mapping[str, int]:
        """None: there is no scheduler of ours."""
        return {}

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
