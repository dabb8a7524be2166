"""The seam between the control loop and a host: real, simulated, or a fake in tests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from manager.model.cache import CacheUse, Group, Resctrl, Schemata
from manager.model.cpus import CpuSet
from manager.model.host import (
    BatchGroup,
    Capabilities,
    CpuCounters,
    CpuTimes,
    Discovery,
    LastWaits,
    VmInstance,
    VmState,
    WaitWatch,
)
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import KnobKey
from manager.model.network import UplinkPort
from manager.model.power import ClockDomain
from manager.model.resource_use import HostCounters, VmCounters


class CachePort(Protocol):
    """The groups of resctrl, by which a cache is divided; the empty name: the default one. All raise HostError."""

    def offered(self, online: CpuSet) -> Resctrl | None:
        """What can be divided, read once a mount and set of ``online`` pCPUs; None where resctrl is not mounted."""

    def domains(self) -> Mapping[int, CpuSet]:
        """The pCPUs of each domain of the cache that is divided, as of ``offered``; none where that is not known."""

    def mount(self) -> bool:
        """Mount resctrl; False where another tool was quicker."""

    def unmount(self) -> None:
        """Unmount it, after our groups were removed. EBUSY while there are groups of others."""

    def groups(self) -> Mapping[str, Group]:
        """All groups as they are now."""

    def tasks(self, group: str) -> frozenset[int]:
        """Ids of a group's threads; none of one that is gone."""

    def monitored(self, groups: Collection[str]) -> Mapping[str, frozenset[str]]:
        """Names of the monitoring groups in each of these control groups, ours and others'; none of one without any."""

    def uses(self, groups: Collection[str]) -> Mapping[str, tuple[CacheUse, ...]]:
        """The counters of these groups of either kind, by path; none of one that is gone. No other stays open."""

    def threads(self, instance: VmInstance, *, afresh: bool = False) -> frozenset[int]:
        """Ids of a VM's threads as last listed, or ``afresh``. Raises VmVanished, too."""

    def create(self, group: str) -> None:
        """Make a group of ours of either kind. ENOSPC: there can be no more."""

    def remove(self, group: str) -> None:
        """Remove a group of ours; its threads go to the default one, or to that it was in."""

    def write(self, group: str, values: Schemata) -> Schemata:
        """Give a group values and return what it then has of them."""

    def move(self, group: str, instance: VmInstance) -> int:
        """Put all threads of a VM into a group and return how many were moved. Raises VmVanished, too.

        EBUSY: one of them is in a group of others.
        """

    def close(self) -> None:
        """Let go of all that is held open, as until the next call."""


class ResourcePort(Protocol):
    """What VMs and the host use besides CPU time. What the kernel does not count is None in it."""

    def vm(self, instance: VmInstance) -> VmCounters:
        """What a VM used so far. Raises VmVanished, HostError."""

    def host(self, taps: Collection[int], pcpus: Collection[int] = ()) -> HostCounters:
        """What the host's resources did so far, with the names that the interfaces ``taps`` (by index) have now, and
        the power of these ``pcpus``.
        """

    def forget(self, keep: Collection[VmInstance]) -> None:
        """Let go of what is held open for instances other than ``keep``."""


class MigrationPort(Protocol):
    """Moves running VMs to other hosts."""

    def migrate(self, instance: VmInstance, to: str, on_copied: Callable[[float], None]) -> None:
        """Migrate a VM to the host of that name and return once it runs there. Raises VmVanished, HostError.

        Blocks for minutes. ``on_copied`` gets the part of its memory that was copied, now and then, from 0 to 1.
        """

    def follow(self, instance: VmInstance, on_copied: Callable[[float], None]) -> None:
        """Watch a migration that is under way, and return once there is none and the VM is still on this host.

        Raises VmVanished where the VM has left it, HostError. Blocks, and calls ``on_copied``, as ``migrate`` does.
        """


class WaitAlarmPort(Protocol):
    """Samples the waits of vCPUs by itself while it is armed, and rings where one is above its bound.

    ``wait`` and ``wake`` may be called by any thread.
    """

    def arm(self, wanted: WaitWatch, now_s: float) -> bool:
        """Sample these VMs from now on, until one is above its bound or a vCPU is gone: then it rings, once.

        With every other sample it looks at services, where it can (``judges``): it rings also when one of them answered
        late, or was asked and has answered nothing. False: it cannot sample all of these VMs.
        """

    def disarm(self) -> LastWaits | None:
        """The last sample, and no more. None: there was none, or its threads may be other ones than were meant."""

    @property
    def judges(self) -> bool:
        """Whether it looks at services, too."""

    @property
    def is_true(self) -> bool:
        """Whether it samples what was meant when it was armed."""

    def wait(self, timeout_s: float) -> bool:
        """Whether it rings within so long a time. ``wake`` ends it early."""

    def wake(self) -> None:
        """End ``wait`` now, or the next one at once."""


class HostPort(Protocol):
    """A KVM host as the control loop sees it. No method blocks on libvirt."""

    @property
    def capabilities(self) -> Capabilities:
        """What the host offers."""

    @property
    def replugs(self) -> int:
        """How often pCPUs went offline or came back since it was opened, also between two looks at those online."""

    @property
    def connected(self) -> bool:
        """Whether the list of running domains is being kept up to date."""

    @property
    def discovery(self) -> Discovery:
        """How fresh that list is."""

    @property
    def boot_id(self) -> str:
        """Changes at each boot; settings of an earlier boot are gone."""

    def running(self) -> Mapping[str, VmInstance]:
        """The running domains by UUID, as last listed."""

    def addresses(self) -> Mapping[str, frozenset[str]]:
        """IP addresses of running domains by UUID, as last looked up; of some none may be known."""

    def taps(self) -> Mapping[str, frozenset[int]]:
        """The network interfaces of running domains by UUID, as indexes, as far as their packets pass this kernel."""

    def migrating(self) -> Collection[str]:
        """UUIDs of running domains that libvirt migrates to other hosts; none while the discovery is late."""

    def ended(self, instances: Collection[VmInstance]) -> Collection[VmInstance]:
        """Which of these runs of domains are over; none of those of which that cannot be known."""

    def look(self) -> None:
        """Before a round of readings: notice what was written to any VM's CPU cgroup since the last look, and read what
        can be read of all VMs at once.
        """

    def read(self, instance: VmInstance, afresh: bool = True) -> VmState:
        """Settings and counters of a VM now. Raises VmVanished, HostError.

        ``afresh`` False: settings of the CPU cgroup and times of vCPUs as at the last ``look`` will do, and pins as
        they were a few readings ago, where nothing hints at a change.
        """

    def counters(self, instances: Mapping[str, VmInstance]) -> Mapping[str, tuple[VmState, CpuCounters]]:
        """Of these VMs (by UUID), where nothing hints that anything but counters changed since they were read: what was
        read then, and their counters as at the last ``look``. All others have to be ``read``.
        """

    def waits(self, instances: Sequence[VmInstance]) -> Sequence[tuple[int, ...]]:
        """How long each vCPU of these VMs has waited for a pCPU since it started, in nanoseconds, in their order.

        A wait counts once it is over. Nothing of a VM that is gone, was not read before, or has no schedstat.
        """

    @property
    def wait_alarm(self) -> WaitAlarmPort | None:
        """None where this host samples nothing by itself."""

    def write(self, instance: VmInstance, key: KnobKey, value: KnobValue) -> KnobValue:
        """Set one knob, of a VM or the host ``itself``, and return what is read back. Raises VmVanished, HostError."""

    @property
    def itself(self) -> VmInstance:
        """Stands for the host in the journal, under HOST_UUID, as long as it runs."""

    @property
    def cache(self) -> CachePort | None:
        """Its resctrl; None: it cannot have one."""

    @property
    def resources(self) -> ResourcePort | None:
        """What is used besides CPU time; None: nothing counts it."""

    def knobs(self, instance: VmInstance, family: Family) -> Mapping[KnobKey, KnobValue]:
        """What a VM, or the host ``itself``, has of a family that is read apart from a VM's state.

        With the scheduling of a VM come the limits of the groups above it, which are the host's own, under HOST_UUID;
        of the host ``itself`` all such groups that have some, and as number 0 the root. What ended, such as with a
        thread or our scheduler, is not among them. Raises VmVanished, HostError.
        """

    def lost_interrupts(self, irqs: Collection[int]) -> Collection[int]:
        """Those of these that the host has no more, as after queues of their interface were removed."""

    def batch_group(self) -> BatchGroup:
        """The group that holds all batch VMs, as of the last readings of VMs. Raises HostError."""

    def uplinks(self) -> Mapping[int, UplinkPort]:
        """The interfaces that may be uplinks, by index, as of the last readings. Raises HostError."""

    def clocks(self) -> Mapping[int, ClockDomain]:
        """The managed pCPUs that share a clock, by the number of their cpufreq policy. Raises HostError."""

    def warp_counters(self) -> Mapping[str, int]:
        """What our sched_ext scheduler counted, by the names of docs/reference/metrics.md. Raises HostError."""

    def forget(self, keep: frozenset[VmInstance]) -> None:
        """Let go of what is held open for instances other than ``keep``."""

    def cpu_times(self) -> CpuTimes:
        """CPU time of the whole host. Raises HostError."""
