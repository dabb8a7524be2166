"""The real host: settings through the kernel, running domains through libvirt."""

from __future__ import annotations

import select
from collections.abc import Collection, Mapping

from manager import bpf
from manager.errors import HostError, VmVanished
from manager.host import process
from manager.host.cgroup import CgroupMounts, cpu_controller, find_vm_cgroup, has_idle_class, read_mounts
from manager.host.handle import VmHandle
from manager.host.hypervisor import LATE_S, Domains, HypervisorWatch
from manager.host.interrupts import Interrupts
from manager.host.knob_files import KnobFiles, VmTarget
from manager.host.registry import USER_HZ_NS, CgroupCpu, HostPaths
from manager.host.resctrl.resctrl_cache import ResctrlCache
from manager.host.resctrl.tree import KernelTree
from manager.host.sched_ext import deciding_scheduler
from manager.host.thread_scheduling import Schedulings
from manager.host.topology_reader import cache_domains, discover
from manager.host.warp.mechanisms import Mechanisms
from manager.model.cpus import CpuSet, parse_cpus
from manager.model.host import Capabilities, CpuTimes, Discovery, VmInstance, VmState
from manager.model.knobs import HOST_UUID, Family, KnobKey, KnobValue

_NO_DOMAINS = Domains({})
_NO_DISCOVERY = Discovery(0.0, LATE_S)


class KernelHost:
    """``HostPort`` on procfs, sysfs, cgroupfs and libvirt. ``watch`` None serves undoing without libvirt.

    Belongs to the control loop's thread. ``files`` are those of the families that are read apart from the state of a
    VM: all others are a ``VmHandle``'s, which holds them open.
    """

    def __init__(self, paths: HostPaths, watch: HypervisorWatch | None, managed_cpus: CpuSet = frozenset()) -> None:
        """Probe the host. ``managed_cpus`` empty means all online ones.

        Raises HostError when procfs or sysfs cannot be read, or ``managed_cpus`` names CPUs that are not online.
        """
        self._paths = paths
        self._watch = watch
        try:
            self._boot_id = paths.boot_id.read_text().strip()
            self._mounts: CgroupMounts = read_mounts(paths)
            self._kernel = paths.kernel_release.read_text().strip()
            online = parse_cpus(paths.online_cpus.read_text())
        except (OSError, ValueError) as error:
            raise HostError(f"this host cannot be read: {error}") from error
        if not managed_cpus <= online:
            missing = sorted(managed_cpus - online)
            raise HostError(
                f"setting managed_cpus names pCPUs that are not online: {missing}; online are {sorted(online)}"
            )
        self._online = online
        self._online_file, self._online_text, self._online_now_are = str(paths.online_cpus), b"", online
        self._schedstat = (paths.process(1) / "schedstat").exists()
        self._managed = managed_cpus
        self._cpu: CgroupCpu | None = cpu_controller(self._mounts)
        self._idle_class = self._cpu is not None and has_idle_class(self._mounts, self._cpu)
        self._mechanisms = Mechanisms(paths, self._mounts, self._cpu)
        self._schedulings = Schedulings(self._mounts, self._cpu)
        self.files: Mapping[Family, KnobFiles] = {
            Family.INTERRUPT: Interrupts(paths, lambda: self._topology.queues),
            Family.WARP: self._mechanisms,
            Family.SCHEDULER: self._mechanisms,
            Family.SCHEDULING: self._schedulings,
        }
        self._topology = discover(paths)
        self._cache = ResctrlCache(KernelTree(paths), self._threads, lambda level: cache_domains(paths, level))
        self._itself = VmInstance(HOST_UUID, HOST_UUID, 1, process.start_ticks(paths, 1) or 0)
        self._handles: dict[VmInstance, tuple[VmHandle, int]] = {}
        self._exits = select.epoll()
        self._offered: tuple[tuple[CpuSet, str, str, tuple[str, ...]], Capabilities] | None = None

    @property
    def boot_id(self) -> str:
        """The kernel's boot id."""
        return self._boot_id

    @property
    def connected(self) -> bool:
        """Whether libvirt is connected."""
        return self._watch is not None and self._watch.domains.connected

    @property
    def discovery(self) -> Discovery:
        """How fresh the list of running domains is; without libvirt nothing is late."""
        return self._watch.discovery if self._watch else _NO_DISCOVERY

    @property
    def capabilities(self) -> Capabilities:
        """What was probed at start, with what may change since: online pCPUs, libvirt's version, sched_ext."""
        online = self._online_now()
        if online != self._online:
            self._online, self._topology = online, discover(self._paths)
        domains = self._watch.domains if self._watch else _NO_DOMAINS
        now = online, deciding_scheduler(self._paths), domains.libvirt_version, self._told(domains)
        if self._offered is None or self._offered[0] != now:  # asked for several times a tick
            self._offered = now, self._capabilities(*now)
        return self._offered[1]

    def _told(self, domains: Domains) -> tuple[str, ...]:
        """What is wrong with the list of domains."""
        discovery = self.discovery
        late = (f"libvirt has not listed the running domains for more than {discovery.limit_s:g} s",)
        hanging = (f"libvirt does not answer about domain {name}: it is set apart" for name in discovery.hanging)
        return (*(late if discovery.late else ()), *hanging, *_contests(domains))

    def _capabilities(self, online: CpuSet, scheduler: str, libvirt: str, told: tuple[str, ...]) -> Capabilities:
        warnings = list(told)
        if self._cpu is None:
            warnings.append("no cpu controller in any cgroup hierarchy: weights cannot be set")
        ours = scheduler.startswith(bpf.NAME)
        if ours:
            warnings.append("our sched_ext scheduler decides: limits of CPU time (max_pcpus) do not act")
        elif scheduler:
            warnings.append(f"the sched_ext scheduler {scheduler!r} is loaded: it may ignore CPU weights")
        if not self._schedstat:
            warnings.append("no schedstat: run-queue delay of vCPUs is not known")
        return Capabilities(
            kernel=self._kernel,
            libvirt=libvirt,
            cgroup_version=self._cpu.version if self._cpu else 0,
            weights=self._cpu.scale if self._cpu else None,
            online_cpus=online,
            managed_cpus=(self._managed or online) & online,
            schedstat=self._schedstat,
            warnings=tuple(warnings),
            idle_class=self._idle_class,
            topology=self._topology,
            warps=self._mechanisms.offers,
            scheduler=scheduler,
            scheduler_is_ours=ours,
            limits_real_time=self._schedulings.limits,
        )

    def running(self) -> Mapping[str, VmInstance]:
        """The running domains by UUID, as last listed."""
        return self._watch.domains.instances if self._watch else {}

    def addresses(self) -> Mapping[str, frozenset[str]]:
        """IP addresses of running domains by UUID, as last looked up."""
        return self._watch.domains.addresses if self._watch else {}

    def ended(self, instances: Collection[VmInstance]) -> Collection[VmInstance]:
        """Which of these QEMU processes have ended; none of those of which that cannot be known.

        One call covers all that are held open.
        """
        readable = {descriptor for descriptor, _ in self._exits.poll(0)}
        return {instance for instance in instances if self._has_ended(instance, readable)}

    def _has_ended(self, instance: VmInstance, readable: Collection[int]) -> bool:
        held = self._handles.get(instance)
        try:
            if held is None:
                return not process.is_alive(self._paths, instance)
            descriptor = held[0].exit_descriptor
            return (descriptor < 0 or descriptor in readable) and not held[0].is_alive()
        except HostError:
            return False

    def read(self, instance: VmInstance) -> VmState:
        """Settings and counters of a VM now. Raises VmVanished, HostError."""
        return self._handle(instance).read()

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob and return what is then read back. Raises VmVanished, HostError."""
        files = self.files.get(key.knob.spec.family)
        if files is None:
            return self._handle(instance).write(key, value)
        return files.write(key, value, self._target(instance if key.uuid != HOST_UUID else self._itself))

    def knobs(self, instance: VmInstance, family: Family) -> Mapping[KnobKey, KnobValue]:
        """What a VM, or the host itself, has of a family that is read apart. Raises VmVanished, HostError."""
        return self.files[family].read(self._target(instance))

    def warp_counters(self) -> Mapping[str, int]:
        """What our sched_ext scheduler counted since it was loaded. Raises HostError."""
        return self._mechanisms.counters()

    def _target(self, instance: VmInstance) -> VmTarget | None:
        """None for the host itself."""
        if instance.uuid == HOST_UUID:
            return None
        handle = self._living(instance)
        return VmTarget(instance.uuid, handle.cpu_folder, handle.vcpu_threads)

    def _living(self, instance: VmInstance) -> VmHandle:
        handle = self._handle(instance)
        if not handle.is_alive():  # thread ids are recycled
            raise VmVanished(f"process {instance.pid} is gone")
        return handle

    @property
    def cache(self) -> ResctrlCache:
        """resctrl, which need be neither mounted nor in the kernel."""
        return self._cache

    def _threads(self, instance: VmInstance, afresh: bool) -> frozenset[int]:
        handle = self._living(instance)
        if afresh:
            handle.find_threads()
        return handle.threads

    @property
    def itself(self) -> VmInstance:
        """The first process of this boot stands for the host."""
        return self._itself

    def forget(self, keep: frozenset[VmInstance]) -> None:
        """Close what is held open for instances other than ``keep``."""
        if keep >= self._handles.keys():
            return
        for instance in [held for held in self._handles if held not in keep]:
            handle, _ = self._handles.pop(instance)
            if handle.exit_descriptor >= 0:
                self._exits.unregister(handle.exit_descriptor)
            handle.close()

    def cpu_times(self) -> CpuTimes:
        """The first line of /proc/stat; guest time is part of user time (proc_stat(5))."""
        try:
            first_line = process.read_small(str(self._paths.stat)).partition(b"\n")[0]
            fields = [int(field) for field in first_line.split()[1:9]]
            idle = fields[3] + fields[4]
        except (OSError, ValueError, IndexError) as error:
            raise HostError(f"{self._paths.stat} cannot be read: {error}") from error
        return CpuTimes(sum(fields) * USER_HZ_NS, (sum(fields) - idle) * USER_HZ_NS)

    def _handle(self, instance: VmInstance) -> VmHandle:
        generation = self._watch.domains.generation if self._watch else 0
        held = self._handles.get(instance)
        if held is None:
            handle = self._open(instance)
        else:
            handle, seen = held
            if seen == generation:
                return handle
            handle.find_threads()
        self._handles[instance] = (handle, generation)
        return handle

    def _open(self, instance: VmInstance) -> VmHandle:
        try:
            cgroup = find_vm_cgroup(self._paths, self._mounts, self._cpu, instance.pid)
        except OSError as error:
            raise process.refusal(f"cgroup of process {instance.pid}", error) from error
        handle = VmHandle(self._paths, instance, cgroup)
        try:
            if handle.exit_descriptor >= 0:
                self._exits.register(handle.exit_descriptor, select.EPOLLIN)
        except OSError as error:
            handle.close()
            raise process.refusal(f"watching process {instance.pid}", error) from error
        return handle

    def _online_now(self) -> CpuSet:
        """The online pCPUs; asked for several times a tick, so the text is compared before it is understood."""
        try:
            text = process.read_small(self._online_file)
            if text != self._online_text:
                self._online_now_are, self._online_text = parse_cpus(text.decode()), text
        except (OSError, ValueError):  # it was readable at start
            return self._online
        return self._online_now_are


def _contests(domains: Domains) -> tuple[str, ...]:
    """Which VM shows addresses of another one."""

    def name(uuid: str) -> str:
        instance = domains.instances.get(uuid)
        return instance.libvirt_name if instance else uuid

    return tuple(
        f"{name(one.claimant)} claims the IP address {one.address}, as does another VM: neither is believed"
        if one.owner is None
        else f"{name(one.claimant)} claims the IP address {one.address} of {name(one.owner)}, which keeps it"
        for one in domains.contested
    )
