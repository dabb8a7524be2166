"""``HostPort`` of a simulated host: answers as the kernel does, errors included."""

from __future__ import annotations

import errno
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from manager.errors import HostError, VmVanished
from manager.model.finding import Finding, FindingStatus
from manager.model.host import (
    CPU_SHARES_V1,
    NO_BATCH_GROUP,
    BatchGroup,
    Capabilities,
    CpuCounters,
    CpuTimes,
    Discovery,
    Quota,
    VcpuState,
    VmInstance,
    VmState,
)
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import HOST_UUID, LEAST_QUOTA_US, UNLIMITED, Knob, KnobKey
from manager.model.network import UplinkPort
from manager.model.power import ClockDomain
from manager.model.topology import Topology
from manager.sim.scenario import FaultKind, Scenario
from manager.sim.services import SimVm
from manager.sim.sim_cache import SimCache
from manager.sim.world import World, in_step

BOOT_ID = "simulated-boot"
PERIOD_US = 100_000
_IDLE_WEIGHT = 3 / 1024
"""Of a group in the idle class, in terms of the default weight: kernel/sched/sched.h, WEIGHT_IDLEPRIO."""


class SimHost:
    """A host whose kernel is a ``World``. Belongs to the control loop's thread.

    The emulator's threads use no CPU time; where they may run is kept and has no effect. A VM in the idle class has
    the weight that such a group has inside the kernel, but does not yield any sooner than with that weight.
    """

    def __init__(self, world: World, speed: float = 1.0, boot_id: str = BOOT_ID) -> None:
        """``speed``: seconds of the world in one second of its reader, by which CPU times are scaled."""
        self.world = world
        self._speed = speed
        self._listed = self._alive()
        self._idle: set[VmInstance] = set()
        self._quota_us: dict[VmInstance, int] = {}
        self.boot_id = boot_id
        self.itself = VmInstance(HOST_UUID, HOST_UUID, 1, 1)
        self.cache = SimCache(world, world.memory, speed) if world.memory else None
        self.resources = None  # a model of pCPUs and caches alone
        self.wait_alarm = None
        cpus = frozenset(range(world.scenario.pcpus))
        self.capabilities = Capabilities(
            "simulated",
            "simulated",
            world.scenario.cgroup,
            world.scale,
            cpus,
            cpus,
            schedstat=True,
            warnings=(f"simulated host: scenario {world.scenario.name}",),
            idle_class=True,
            topology=Topology.flat(sorted(cpus)),
            cpu_model="simulated CPU",
        )

    @property
    def replugs(self) -> int:
        """No pCPU ever goes."""
        return 0

    @property
    @in_step
    def connected(self) -> bool:
        """False while the simulated libvirtd is away."""
        return (FaultKind.LIBVIRT_AWAY, "") not in self.world.faults

    @property
    def discovery(self) -> Discovery:
        """Never late: a simulated libvirtd is there, or is not."""
        return Discovery(0.0, math.inf)

    @in_step
    def running(self) -> Mapping[str, VmInstance]:
        """The running VMs by UUID; while libvirtd is away, those that ran before."""
        if self.connected:
            self._listed = self._alive()
        return self._listed

    def addresses(self) -> Mapping[str, frozenset[str]]:
        """None: nothing of a simulated VM comes over a network."""
        return {}

    def taps(self) -> Mapping[str, frozenset[int]]:
        """None: likewise."""
        return {}

    def migrating(self) -> Collection[str]:
        """None: simulated VMs stay where they are."""
        return ()

    @in_step
    def ended(self, instances: Collection[VmInstance]) -> Collection[VmInstance]:
        """Which of these runs of VMs are over."""
        return {instance for instance in instances if not self.is_alive(instance)}

    def is_alive(self, instance: VmInstance) -> bool:
        """Whether that very process still runs."""
        if instance.uuid == HOST_UUID:
            return True
        vm = self.world.vms.get(instance.libvirt_name)
        return vm is not None and vm.alive and vm.instance == instance

    @in_step
    def look(self) -> None:
        """Nobody else writes, and each reading is one of now."""

    def read(self, instance: VmInstance, afresh: bool = True) -> VmState:  # noqa: ARG002 - it always is
        """Settings and counters of a VM. Raises VmVanished, HostError."""
        vm = self._require(instance)
        if (FaultKind.READ_ERROR, vm.name) in self.world.faults:
            raise HostError("read: Input/output error", errno.EIO)
        cpus, now_s = self.world.cpus, self.world.now_s
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
        quota = Quota(self._quota_us.get(instance, UNLIMITED), PERIOD_US)
        return VmState(
            vm.instance, self._ns(self.world.vm_cpu_s(vm)), weight, vcpus, vm.emulator, idle=idle, quota=quota
        )

    def counters(self, instances: Mapping[str, VmInstance]) -> Mapping[str, tuple[VmState, CpuCounters]]:  # noqa: ARG002
        """None: each reading is one of now."""
        return {}

    @in_step
    def waits(self, instances: Iterable[VmInstance]) -> Sequence[tuple[int, ...]]:
        """How long the vCPUs of these VMs have waited, in nanoseconds; here a wait counts while it lasts."""
        cpus, now_s = self.world.cpus, self.world.now_s
        vcpus = (self._require(one).vcpus if self.is_alive(one) else () for one in instances)
        return [tuple(self._ns(cpus.delay_s(vcpu, now_s)) for vcpu in of_vm) for of_vm in vcpus]

    @in_step
    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob and return what it then holds. Raises VmVanished, HostError.

        cgroup v1 takes any positive weight and clamps it, v2 answers ERANGE outside 1 .. 10000; quotas below a
        millisecond are EINVAL; CPU sets are reduced to the pCPUs there are, and EINVAL where none is left.
        """
        vm = self._require(instance)
        if (FaultKind.WRITE_ERROR, vm.name) in self.world.faults:
            raise HostError("write: Input/output error", errno.EIO)
        if key.knob is Knob.IDLE and isinstance(value, int):
            return self._set_idle(vm, idle=bool(value))
        if key.knob is Knob.QUOTA and isinstance(value, int):
            return self._set_quota(vm, value)
        if key.knob is Knob.WEIGHT:
            if not isinstance(value, int) or instance in self._idle:
                raise HostError("write: Invalid argument", errno.EINVAL)
            scale = self.world.scale
            if scale != CPU_SHARES_V1 and scale.clamp(value) != value:
                raise HostError("write: Numerical result out of range", errno.ERANGE)
            if value < 0:
                raise HostError("write: Invalid argument", errno.EINVAL)
            self.world.cpus.set_weight(vm, scale.clamp(value), self.world.now_s)
            return vm.weight
        if isinstance(value, int):
            raise HostError(f"{key.knob} takes pCPUs, not {value!r}", errno.EINVAL)
        online = value & frozenset(range(self.world.scenario.pcpus))
        if not online:
            raise HostError("sched_setaffinity: Invalid argument", errno.EINVAL)
        if key.knob is Knob.EMULATOR_PIN:
            vm.emulator = online
        elif 0 <= key.index < len(vm.vcpus):
            self.world.cpus.set_allowed(vm.vcpus[key.index], online, self.world.now_s)
        else:
            raise VmVanished(f"{vm.name} has no vCPU {key.index}", errno.ESRCH)
        return online

    def _set_idle(self, vm: SimVm, *, idle: bool) -> int:
        """kernel/sched/fair.c, sched_group_set_idle: whatever the weight was before, it is lost."""
        if idle != (vm.instance in self._idle):
            self._idle ^= {vm.instance}
            scale = self.world.scale
            weight = max(round(_IDLE_WEIGHT * scale.default), 1) if idle else scale.default
            self.world.cpus.set_weight(vm, weight, self.world.now_s)
        return int(idle)

    def _set_quota(self, vm: SimVm, quota_us: int) -> int:
        """kernel/sched/core.c, tg_set_cfs_bandwidth: no quota is smaller than the least period."""
        if quota_us != UNLIMITED and quota_us < LEAST_QUOTA_US:
            raise HostError("write: Invalid argument", errno.EINVAL)
        self._quota_us[vm.instance] = quota_us
        pcpus = None if quota_us == UNLIMITED else quota_us / PERIOD_US
        self.world.quotas.set(vm, pcpus, self.world.now_s)
        return quota_us

    def knobs(self, instance: VmInstance, family: Family) -> Mapping[KnobKey, KnobValue]:  # noqa: ARG002
        """None: a simulated host has no network interfaces, and its kernel neither warps nor policies of vCPUs."""
        return {}

    def batch_group(self) -> BatchGroup:
        """The simulated scheduler has no need of one."""
        return NO_BATCH_GROUP

    def uplinks(self) -> Mapping[int, UplinkPort]:
        """None: as above."""
        return {}

    def clocks(self) -> Mapping[int, ClockDomain]:
        """None: its pCPUs have no idle states and one frequency."""
        return {}

    def lost_interrupts(self, irqs: Collection[int]) -> Collection[int]:
        """All: it has none."""
        return irqs

    def warp_counters(self) -> Mapping[str, int]:
        """None: there is no scheduler of ours."""
        return {}

    def forget(self, keep: frozenset[VmInstance]) -> None:
        """Nothing is held open."""

    @in_step
    def cpu_times(self) -> CpuTimes:
        """CPU time of all pCPUs."""
        total_s = self.world.scenario.pcpus * self.world.now_s
        return CpuTimes(self._ns(total_s), self._ns(self.world.busy_s()))

    def _require(self, instance: VmInstance) -> SimVm:
        if not self.is_alive(instance):
            raise VmVanished(f"process {instance.pid} is gone", errno.ESRCH)
        return self.world.vms[instance.libvirt_name]

    def _alive(self) -> dict[str, VmInstance]:
        return {vm.instance.uuid: vm.instance for vm in self.world.vms.values() if vm.alive}

    def _ns(self, seconds: float) -> int:
        return round(seconds / self._speed * 1e9)


_NONE = "nothing to do: it is not simulated"
_Row = tuple[str, str, str, FindingStatus, bool, str, str]


class SimExaminer:
    """The ``Examiner`` of a simulated host. The findings have the ids of the doctor's, see docs/reference/doctor.md."""

    def __init__(self, scenario: Scenario) -> None:
        """Of a host in that scenario."""
        self._scenario = scenario

    def look(self) -> tuple[Finding, ...]:
        """Always the same."""
        works, missing = FindingStatus.WORKS, FindingStatus.MISSING
        name, version, pcpus = self._scenario.name, self._scenario.cgroup, self._scenario.pcpus
        warned = f"a model of a host, scenario {name}: nothing that it shows was measured"
        return tuple(
            Finding(check, area, title, status, essential, f"simulated: {detail}", advice)
            for check, area, title, status, essential, detail, advice in (
                ("kernel", "Host", "Kernel", FindingStatus.WARNING, False, warned, "run an agent on a KVM host"),
                ("cgroup", "CPU weights", "CPU controller", works, True, f"cgroup v{version}, {pcpus} pCPUs", ""),
                ("cpu-weight", "CPU weights", "Weights are taken", works, True, "taken and read back", ""),
                ("cpu-weight-acts", "CPU weights", "Weights act", works, False, "they share the pCPUs", ""),
                (
                    "cpu-idle",
                    "CPU weights",
                    "Idle class for batch",
                    FindingStatus.DEGRADED,
                    False,
                    "taken, but VMs in it do not yield any sooner than with the least weight",
                    _NONE,
                ),
                ("cpu-quota", "CPU weights", "Limits", works, False, "enforced in each 100 ms", ""),
                ("affinity", "Pinning", "Pinning of threads", works, True, "vCPUs stay where they are pinned", ""),
                ("sched-ext", "Warp", "sched_ext", missing, False, "no warp", _NONE),
                *self._cache(),
                ("libvirt", "Virtualisation", "libvirt", works, True, "a model of libvirtd", ""),
            )
        )

    def _cache(self) -> Iterator[_Row]:
        works, missing, spec = FindingStatus.WORKS, FindingStatus.MISSING, self._scenario.cache
        ways = f"{spec.ways} ways in each of {spec.domains} domains" if spec else "no caches"
        for check, title, there, detail in (
            ("cache-allocation", "Cache allocation", spec is not None, ways),
            ("memory-bandwidth", "Memory bandwidth", spec is not None and spec.mba is not None, "a model of limits"),
            ("cache-monitoring", "Cache monitoring", spec is not None and spec.rmids > 0, "a model of counters"),
        ):
            if there:
                yield check, "Cache", title, works, False, detail, ""
            elif spec or check == "cache-allocation":
                yield check, "Cache", title, missing, False, "no caches" if spec is None else "none", _NONE

    def close(self) -> None:
        """A look takes no time."""
