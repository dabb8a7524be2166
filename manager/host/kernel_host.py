"""The real host: settings through the kernel, running domains through libvirt."""

from __future__ import annotations

import contextlib
import os
import select
import weakref
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from manager import bpf
from manager.errors import HostError
from manager.host import process
from manager.host.batch_group import BatchGroups
from manager.host.cgroup import CgroupMounts, cpu_controller, find_vm_cgroup, has_idle_class, read_mounts
from manager.host.chosen_waits import ChosenWaits
from manager.host.disk_ceilings import DiskCeilings
from manager.host.disk_knobs import DiskKnobs
from manager.host.disk_weights import DiskWeights
from manager.host.files import cpu_model, refusal, refused
from manager.host.handle import VmHandle
from manager.host.hypervisor import LATE_S, Domains, HypervisorWatch
from manager.host.knob_files import Interrupts, KnobFiles, VmTarget
from manager.host.memory_limits import MemoryLimits
from manager.host.network_knobs import NetworkKnobs
from manager.host.network_shares import NetworkShares
from manager.host.power_knobs import PowerKnobs
from manager.host.registry import USER_HZ_NS, CgroupCpu, HostPaths
from manager.host.replugs import Replugs
from manager.host.resctrl.resctrl_cache import ResctrlCache
from manager.host.resctrl.tree import ResctrlTree
from manager.host.resources.held_file import HeldFile
from manager.host.resources.kernel_resources import KernelResources
from manager.host.same_as_before import SameAsBefore, counters_of
from manager.host.sched_ext import deciding_scheduler
from manager.host.status_files import MigrationWatch
from manager.host.tap_limits import TapLimits
from manager.host.thread_scheduling import Schedulings
from manager.host.thread_times import ThreadTimes
from manager.host.topology_reader import cache_domains, discover
from manager.host.wait_alarm import WaitAlarm
from manager.host.warp_mechanisms import WarpMechanisms
from manager.host.write_watch import WriteWatch
from manager.model.cpus import CpuSet, parse_cpus
from manager.model.host import (
    BatchGroup,
    Capabilities,
    CpuCounters,
    CpuTimes,
    Discovery,
    PcpuTimes,
    VmInstance,
    VmState,
)
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.network import UplinkPort
from manager.model.power import ClockDomain

_NO_DOMAINS = Domains({})
_NO_DISCOVERY = Discovery(0.0, LATE_S)
_ONLINE_BYTES = 4096
_STAT_BYTES = 128  # of a line of /proc/stat about a pCPU, at most


class _LastAsked:
    """Of which VMs the host was asked last, and what that comes to, until another one is held open or let go.

    ``alive``: those whose end nothing tells; ``read``: where their counters are; ``kept``: nothing else is held open.
    """

    __slots__ = ("alive", "kept", "read")

    def __init__(self) -> None:
        self.alive: tuple[Collection[VmInstance], frozenset[VmInstance]] | None = None
        self.read: tuple[Mapping[str, VmInstance], object, Sequence[tuple[str, SameAsBefore]]] | None = None
        self.kept: frozenset[VmInstance] | None = None


class KernelHost:
    """``HostPort`` on procfs, sysfs, cgroupfs and libvirt. ``watch`` None serves undoing without libvirt.

    Belongs to the control loop's thread. ``files`` are those of the families that are read apart from the state of a
    VM: all others are a ``VmHandle``'s, which holds them open.
    """

    def __init__(
        self,
        paths: HostPaths,
        watch: HypervisorWatch | None,
        managed_cpus: CpuSet = frozenset(),
        times: ThreadTimes | None = None,
    ) -> None:
        """Probe the host. ``managed_cpus`` empty means all online ones. ``times`` None: threads are read from files.

        Raises HostError when procfs or sysfs cannot be read, or ``managed_cpus`` names CPUs that are not online.
        """
        self._paths = paths
        self._watch = watch
        try:
            self.boot_id = paths.boot_id.read_text().strip()
            self._mounts: CgroupMounts = read_mounts(paths)
            self._kernel = paths.kernel_release.read_text().strip()
            self._cpu_model = cpu_model(paths)
            online = parse_cpus(paths.online_cpus.read_text())
        except (OSError, ValueError) as error:
            raise HostError(f"this host cannot be read: {error}") from error
        if not managed_cpus <= online:
            missing = sorted(managed_cpus - online)
            raise HostError(
                f"setting managed_cpus names pCPUs that are not online: {missing}; online are {sorted(online)}"
            )
        self._online, self._online_text = online, b""
        self._pcpus: tuple[CpuSet, int] = online, 0
        """The online ones, and how often any went or came: the affinities of threads may be other ones afterwards."""
        self._generation: tuple[int, object] = 0, self._pcpus
        self._online_file, self._sched_ext_state = map(self._held_file, (paths.online_cpus, paths.sched_ext_state))
        self._replugs = Replugs()
        self._stat: int | None = None
        self._schedstat = (paths.process(1) / "schedstat").exists()
        self._managed = managed_cpus
        self._cpu: CgroupCpu | None = cpu_controller(self._mounts)
        self._idle_class = False
        self._mechanisms = WarpMechanisms(paths, self._mounts, self._cpu)
        self._schedulings = Schedulings(self._mounts, self._cpu)
        self._batch_groups = BatchGroups(paths, self._mounts, self._cpu)
        self._memory = MemoryLimits(self._mounts)
        self._disks = DiskKnobs(DiskWeights(self._mounts), DiskCeilings(paths, self._mounts))
        self._shares = NetworkShares(paths, self._addresses_of)
        self._network = NetworkKnobs(self._shares, TapLimits(self._taps_of))
        self._power = PowerKnobs(paths, lambda: (self._managed or self._online) & self._online)
        self.needs_batch_group: bool | None = None
        """Whether wake-ups are late beside several batch VMs: what the doctor found, None before."""
        self.files: Mapping[Family, KnobFiles] = {
            Family.INTERRUPT: Interrupts(paths, lambda: self._topology.queues),
            Family.WARP: self._mechanisms,
            Family.SCHEDULER: self._mechanisms,
            Family.SCHEDULING: self._schedulings,
            Family.BATCH_GROUP: self._batch_groups,
            Family.MEMORY: self._memory,
            Family.DISK: self._disks,
            Family.NETWORK: self._network,
            Family.POWER: self._power,
        }
        self._topology = discover(paths)
        self.cache = ResctrlCache(ResctrlTree(paths), self._threads, lambda level: cache_domains(paths, level))
        self.resources = KernelResources(
            paths, self._mounts, lambda uuid: watch.domains.disks.get(uuid) if watch else None
        )
        self.itself = VmInstance(HOST_UUID, HOST_UUID, 1, process.start_ticks(paths, 1) or 0)
        self._handles: dict[VmInstance, tuple[VmHandle, tuple[int, object]]] = {}
        self._asked = _LastAsked()
        self._exits = select.epoll()
        self._watched: dict[int, VmInstance] = {}  # by the descriptor among ``_exits``
        self._writes = WriteWatch()
        self._times = times
        self._waits = ChosenWaits(times) if times is not None else None
        self.wait_alarm = WaitAlarm(times, self._waits, self._handles) if times is not None and self._waits else None
        self._migrations = MigrationWatch(paths)
        self._offered: tuple[tuple[CpuSet, str, str, tuple[str, ...], bool | None], Capabilities] | None = None

    @property
    def connected(self) -> bool:
        return self._watch is not None and self._watch.domains.connected

    @property
    def discovery(self) -> Discovery:
        """Without libvirt nothing is late."""
        return self._watch.discovery if self._watch else _NO_DISCOVERY

    @property
    def replugs(self) -> int:
        return self._replugs.count

    @property
    def capabilities(self) -> Capabilities:
        """What was probed at start, with what may change since: online pCPUs, libvirt's version, sched_ext."""
        self._follow_online()
        domains = self._watch.domains if self._watch else _NO_DOMAINS
        now = (
            self._online,
            deciding_scheduler(self._paths, self._sched_ext_state),
            domains.libvirt_version,
            self._discovery_warnings(domains),
            self.needs_batch_group,
        )
        idle_class = self._idle_class
        if self._offered is None or self._offered[0] != now or self._has_idle_class() != idle_class:
            self._offered = now, self._capabilities(*now)  # asked for several times a tick
        return self._offered[1]

    def _discovery_warnings(self, domains: Domains) -> tuple[str, ...]:
        discovery = self.discovery
        late = (f"libvirt has not listed the running domains for more than {discovery.limit_s:g} s",)
        hanging = (f"libvirt does not answer about domain {name}: it is set apart" for name in discovery.hanging)
        return (*(late if discovery.late else ()), *hanging, *_contests(domains))

    def _capabilities(
        self, online: CpuSet, scheduler: str, libvirt: str, discovery: tuple[str, ...], needs_batch_group: bool | None
    ) -> Capabilities:
        warnings = list(discovery)
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
            idle_class=self._has_idle_class(),
            topology=self._topology,
            warps=self._mechanisms.offers,
            scheduler=scheduler,
            scheduler_is_ours=ours,
            limits_real_time=self._schedulings.limits,
            needs_batch_group=needs_batch_group,
            cpu_model=self._cpu_model,
        )

    def _has_idle_class(self) -> bool:
        """Looked for until it is there: with systemd no group has the CPU controller before the first VM starts."""
        if not self._idle_class and self._cpu is not None:
            self._idle_class = has_idle_class(self._mounts, self._cpu)
        return self._idle_class

    def running(self) -> Mapping[str, VmInstance]:
        return self._watch.domains.instances if self._watch else {}

    def addresses(self) -> Mapping[str, frozenset[str]]:
        return self._watch.domains.addresses if self._watch else {}

    def taps(self) -> Mapping[str, frozenset[int]]:
        return self._watch.domains.taps if self._watch else {}

    def _taps_of(self, uuid: str) -> Collection[int]:
        """What libvirt said or, as long as it has not, or is not asked, what the VM's process holds."""
        known = self.taps().get(uuid)
        if known is not None:
            return known
        pids = [instance.pid for instance in self._handles if instance.uuid == uuid]
        return process.taps(self._paths, pids[-1]) if pids else ()

    def _addresses_of(self, uuid: str) -> frozenset[bytes]:
        return self._watch.domains.hardware.get(uuid, frozenset()) if self._watch else frozenset()

    def uplinks(self) -> Mapping[int, UplinkPort]:
        return self._shares.uplinks()

    def clocks(self) -> Mapping[int, ClockDomain]:
        return self._power.domains()

    def migrating(self) -> Collection[str]:
        """By the status files of the domains, which nobody keeps true while libvirtd is away."""
        return () if self.discovery.late else self._migrations.migrating(self.running().values())

    def ended(self, instances: Collection[VmInstance]) -> Collection[VmInstance]:
        """One call covers all that are held open."""
        asked = self._asked.alive
        if asked is None or asked[0] is not instances:
            self._asked.alive = asked = instances, frozenset(instances).difference(self._watched.values())
        doubtful = asked[1]
        doubtful |= {self._watched[descriptor] for descriptor, _ in self._exits.poll(0)}.intersection(instances)
        return {instance for instance in doubtful if self._has_ended(instance)}

    def _has_ended(self, instance: VmInstance) -> bool:
        held = self._handles.get(instance)
        try:
            return not (held[0].exit.is_alive() if held else process.is_alive(self._paths, instance))
        except HostError:
            return False

    def look(self) -> None:
        self._generation_now()
        self._network.look()
        self._writes.look()
        if self._times is not None:
            self._times.look()

    def read(self, instance: VmInstance, afresh: bool = True) -> VmState:
        held = None if afresh else self._handles.get(instance)
        if held is None or held[1] is not self._generation:
            return self._handle(instance).read(afresh)
        return held[0].read(afresh)

    def counters(self, instances: Mapping[str, VmInstance]) -> Mapping[str, tuple[VmState, CpuCounters]]:
        return counters_of(self._same_of(instances), self._writes, self._times) if self._times is not None else {}

    def _same_of(self, instances: Mapping[str, VmInstance]) -> Sequence[tuple[str, SameAsBefore]]:
        """Of those whose threads were looked at since VMs or pCPUs came or went: mostly those of the last tick."""
        asked = self._asked.read
        if asked is None or asked[0] is not instances or asked[1] is not self._generation:
            held = ((uuid, self._handles.get(instance)) for uuid, instance in instances.items())
            same = [(uuid, one[0].same) for uuid, one in held if one is not None and one[1] is self._generation]
            self._asked.read = asked = instances, self._generation, same
        return asked[2]

    def waits(self, instances: Sequence[VmInstance]) -> Sequence[tuple[int, ...]]:
        """Without a look at anything else, because the guard asks every few milliseconds."""
        if self._waits is not None and (waits := self._waits.read(instances, self._handles)):
            return waits
        held = map(self._handles.get, instances)
        return [handle[0].waits() if handle else () for handle in held]

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        files = self.files.get(key.knob.spec.family)
        if files is None:
            if key.knob is Knob.BATCH_GROUP:
                return self._move(instance, key, value)
            return self._handle(instance).write(key, value)
        return files.write(key, value, self._target(instance if key.uuid != HOST_UUID else self.itself))

    def _move(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        try:
            held = self._handle(instance).write(key, value)
        finally:  # its files are other ones now, also where only some of its threads were moved
            if instance in self._handles:
                self._drop(instance)
        return self._handle(instance).read().batch_group or held

    def knobs(self, instance: VmInstance, family: Family) -> Mapping[KnobKey, KnobValue]:
        return self.files[family].read(self._target(instance))

    def lost_interrupts(self, irqs: Collection[int]) -> Collection[int]:
        return [irq for irq in irqs if not self._paths.irq(irq).exists()]

    def warp_counters(self) -> Mapping[str, int]:
        return self._mechanisms.sched_ext.counters()

    def _target(self, instance: VmInstance) -> VmTarget | None:
        """None for the host itself."""
        return None if instance.uuid == HOST_UUID else self._living(instance).target

    def _living(self, instance: VmInstance) -> VmHandle:
        handle = self._handle(instance)
        handle.require_alive()  # thread ids are recycled
        return handle

    def _threads(self, instance: VmInstance, afresh: bool) -> frozenset[int]:
        handle = self._living(instance)
        if afresh:
            handle.find_threads()
        return handle.threads

    def forget(self, keep: frozenset[VmInstance]) -> None:
        if keep is not self._asked.kept and not keep >= self._handles.keys():
            for instance in [held for held in self._handles if held not in keep]:
                self._batch_groups.ended(self._handles[instance][0].target.folder)
                self._drop(instance)
        self._asked.kept = keep
        self._batch_groups.tidy()
        self._tidy_network()

    def _tidy_network(self) -> None:
        """While libvirt is away, or has not said what addresses each domain has, nobody knows who ended."""
        domains = self._watch.domains if self._watch else _NO_DOMAINS
        if self._shares.has_classes and domains.connected and domains.hardware.keys() >= domains.instances.keys():
            with contextlib.suppress(HostError):  # it is tried again at the next round
                self._shares.tidy(frozenset[bytes]().union(*domains.hardware.values()))

    def _drop(self, instance: VmInstance) -> None:
        handle, _ = self._handles.pop(instance)
        self._asked = _LastAsked()
        self._memory.forget(instance.uuid)
        self._disks.forget(instance.uuid)
        if handle.exit.descriptor >= 0:
            self._exits.unregister(handle.exit.descriptor)
            del self._watched[handle.exit.descriptor]
        handle.close()

    def batch_group(self) -> BatchGroup:
        """The VMs that are read are no strangers; nor are those that libvirt still starts, and has not listed."""
        others = [instance.pid for instance in self.running().values() if instance not in self._handles]
        return self._batch_groups.seen(others)

    def cpu_times(self) -> CpuTimes:
        """The first lines of /proc/stat, one for all pCPUs and one for each; that file is held open."""
        try:
            if self._stat is None:
                self._stat = os.open(self._paths.stat, os.O_RDONLY | os.O_CLOEXEC)
                weakref.finalize(self, os.close, self._stat)
            lines = os.pread(self._stat, _STAT_BYTES * (max(self._online) + 2), 0).split(b"\n")
            total_ns, busy_ns, _ = _cpu_times(lines[0].split())
            pcpus: dict[int, PcpuTimes] = {}
            for line in lines[1:-1]:  # the last one may not be whole
                if not line.startswith(b"cpu"):
                    break
                fields = line.split()
                pcpus[int(fields[0][3:])] = _cpu_times(fields)
        except (OSError, ValueError, IndexError) as error:
            raise HostError(f"{self._paths.stat} cannot be read: {error}") from error
        return CpuTimes(total_ns, busy_ns, pcpus)

    def _handle(self, instance: VmInstance) -> VmHandle:
        generation = self._generation_now()
        held = self._handles.get(instance)
        if held is None:
            handle = self._open(instance)
        else:
            handle, seen = held
            if seen is generation:
                return handle
            handle.find_threads(afresh=seen[1] is not generation[1])
        self._handles[instance] = (handle, generation)
        self._asked = _LastAsked()
        return handle

    def _generation_now(self) -> tuple[int, object]:
        """The list of domains and the pCPUs, by which threads were looked at: the same object while they are."""
        listed = self._watch.domains.generation if self._watch else 0
        if self._generation[0] != listed or self._generation[1] is not self._pcpus:
            self._generation = listed, self._pcpus
        return self._generation

    def _open(self, instance: VmInstance) -> VmHandle:
        with refused(f"cgroup of process {instance.pid}"):
            cgroup = find_vm_cgroup(self._paths, self._mounts, self._cpu, instance.pid)
        handle = VmHandle(self._paths, instance, cgroup, self._writes, self._times)
        try:
            if handle.exit.descriptor >= 0:
                self._exits.register(handle.exit.descriptor, select.EPOLLIN)
                self._watched[handle.exit.descriptor] = instance
        except OSError as error:
            handle.close()
            raise refusal(f"watching process {instance.pid}", error) from error
        return handle

    def _held_file(self, path: Path) -> HeldFile:
        """Closed when nobody uses this host any more."""
        file = HeldFile(path)
        weakref.finalize(self, file.close)
        return file

    def _follow_online(self) -> None:
        """Asked for several times a tick, so the text is compared before it is parsed."""
        text = self._online_file.read(_ONLINE_BYTES)
        if not text:  # it was readable at start, and some pCPU is online: this one
            return
        try:
            online = parse_cpus(text.decode()) if text != self._online_text else self._online
        except ValueError:
            return
        if online != self._online:
            self._online, self._topology = online, discover(self._paths)
        self._online_text = text
        if self._pcpus != (online, self.replugs):
            self._pcpus = online, self.replugs
            self._generation_now()


def _cpu_times(fields: list[bytes]) -> PcpuTimes:
    """Of a line; guest time is part of user time (proc_stat(5)). Raises ValueError, IndexError."""
    times = list(map(int, fields[1:9]))
    total = sum(times)
    busy, interrupts = total - times[3] - times[4], times[5] + times[6]
    return PcpuTimes(total * USER_HZ_NS, busy * USER_HZ_NS, interrupts * USER_HZ_NS)


def _contests(domains: Domains) -> tuple[str, ...]:
    """Which VM shows addresses of another one."""

    def name(uuid: str) -> str:
        instance = domains.instances.get(uuid)
        return instance.libvirt_name if instance else uuid

    def outcome(owner: str | None) -> str:
        return f" of {name(owner)}, which keeps it" if owner else ", as does another VM: neither is believed"

    return tuple(
        f"{name(contest.claimant)} claims the IP address {contest.address}{outcome(contest.owner)}"
        for contest in domains.contested
    )
