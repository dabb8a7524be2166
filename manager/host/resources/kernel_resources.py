"""``ResourcePort`` on procfs, cgroupfs and rtnetlink."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterator

from manager.errors import VmVanished
from manager.host.cgroup import CgroupMounts
from manager.host.disk_weights import cost_text
from manager.host.files import cpus_of
from manager.host.registry import HostPaths
from manager.host.resources.host_counters import HostCounterFiles
from manager.host.resources.pcpu_power import read_power
from manager.host.resources.perf_events import FILES_PER_PCPU, why_none
from manager.host.resources.vm_counters import VmCounterFiles
from manager.model.host import VmInstance
from manager.model.resource_use import HostCounters, PcpuPower, VirtualDisksSeen, VmCounters

MOST_EVENTS = 4096
"""Descriptors of performance counters, of all VMs together: each takes some for every pCPU."""


class KernelResources:
    """Holds the files of each VM open that was read. Not thread-safe: it belongs to the control loop."""

    def __init__(
        self,
        paths: HostPaths,
        mounts: CgroupMounts,
        virtual_disks: Callable[[str], tuple[VirtualDisksSeen, VirtualDisksSeen] | None] = lambda _uuid: None,
    ) -> None:
        """Nothing is opened yet. ``virtual_disks``: the last two looks at the disks of a domain."""
        self._virtual_disks = virtual_disks
        self._paths = paths
        self._mounts = mounts
        self._host = HostCounterFiles(paths, cost=lambda: cost_text(mounts))
        self._vms: dict[VmInstance, VmCounterFiles] = {}
        self._has_pmu: bool | None = None
        self.counts_work = False
        """Whether to count instructions: each switch between threads of two VMs then saves and loads counters."""
        weakref.finalize(self, _close, self._host, self._vms)

    def vm(self, instance: VmInstance) -> VmCounters:
        held = self._vms.get(instance)
        if held is None:
            held = VmCounterFiles(self._paths, self._mounts, instance, self._host.names_of_devices)
            self._vms[instance] = held
            if self.counts_work:
                self._count_work(held)
        try:
            return held.read()._replace(virtual_disks=self._virtual_disks(instance.uuid))
        except VmVanished:
            self._vms.pop(instance).close()
            raise

    def _count_work(self, files: VmCounterFiles) -> None:
        """Where there is a PMU, and as long as the counters of all VMs take no more than MOST_EVENTS descriptors."""
        if self._has_pmu is None:
            self._has_pmu = not why_none()
        if self._has_pmu:
            with contextlib.suppress(OSError, ValueError):
                pcpus = cpus_of(self._paths.online_cpus)
                if len(self._vms) * len(pcpus) * FILES_PER_PCPU <= MOST_EVENTS:
                    files.count_work(pcpus)

    def host(self, taps: Collection[int], pcpus: Collection[int] = ()) -> HostCounters:
        return self._host.read(taps)._replace(pcpus=dict(self._powers(pcpus)))

    def _powers(self, pcpus: Collection[int]) -> Iterator[tuple[int, PcpuPower]]:
        """None of one that went offline."""
        for cpu in sorted(pcpus):
            with contextlib.suppress(OSError, ValueError):
                power = read_power(self._paths, cpu)
                if power is not None:
                    yield cpu, power

    def forget(self, keep: Collection[VmInstance]) -> None:
        for instance in [held for held in self._vms if held not in keep]:
            self._vms.pop(instance).close()


def _close(host: HostCounterFiles, vms: dict[VmInstance, VmCounterFiles]) -> None:
    host.close()
    for files in vms.values():
        files.close()
