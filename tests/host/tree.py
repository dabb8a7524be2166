"""The files of a small machine, which tests change before it is discovered."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from manager.host.registry import HostPaths
from manager.host.topology_reader import discover
from manager.model.topology import Pcpu, Topology
from tests.host import topologies

CPU = "sys/devices/system/cpu"
PCI = "sys/devices/pci0000:00"


class Tree:
    """A machine of two sockets with a node each, two cores of two threads each, an L2 a core and an L3 a socket."""

    LINES = """
        CPU/online: 0-7
        CPU/isolated: 6-7
        CPU/cpu[0-3]/topology/physical_package_id: 0
        CPU/cpu[4-7]/topology/physical_package_id: 1
        CPU/cpu[0-1]/{topology/core_cpus_list,cache/index2/shared_cpu_list}: 0-1
        CPU/cpu[2-3]/{topology/core_cpus_list,cache/index2/shared_cpu_list}: 2-3
        CPU/cpu[4-5]/{topology/core_cpus_list,cache/index2/shared_cpu_list}: 4-5
        CPU/cpu[6-7]/{topology/core_cpus_list,cache/index2/shared_cpu_list}: 6-7
        CPU/cpu[0-3]/cache/index3/shared_cpu_list: 0-3
        CPU/cpu[4-7]/cache/index3/shared_cpu_list: 4-7
        CPU/cpu[0-7]/cache/index2/level: 2
        CPU/cpu[0-7]/cache/index3/level: 3
        CPU/cpu[0-7]/cache/index[2-3]/type: Unified
        sys/devices/system/node/node0/cpulist: 0-3
        sys/devices/system/node/node1/cpulist: 4-7
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.add(self.LINES)

    def add(self, lines: str) -> None:
        """Make files; those that are there are written anew."""
        text = "\n".join(
            line.strip() for line in lines.replace("CPU/", f"{CPU}/").replace("PCI/", f"{PCI}/").split("\n")
        )
        topologies.unpack_text(text, self.folder)

    def remove(self, pattern: str) -> None:
        for path in topologies.expand(pattern.replace("CPU/", f"{CPU}/")):
            (self.folder / path).unlink()

    def interface(self, name: str, device: str, irqs: Iterable[int] = ()) -> None:
        """A network interface on a PCI function with these vectors, with affinities as a single-target controller's."""
        self.add(f"sys/class/net/{name} -> ../../devices/pci0000:00/{device}/net/{name}")
        self.add(f"PCI/{device}/net/{name}/device -> ../../../{device.rpartition('/')[2]}")
        for irq in irqs:
            self.add(f"PCI/{device.partition('/')[0]}/msi_irqs/{irq}: msix\nproc/irq/{irq}/smp_affinity_list: 0-7")
            self.add(f"proc/irq/{irq}/effective_affinity_list: {irq % 8}")

    def discover(self) -> Topology:
        return discover(HostPaths(self.folder))

    def cpu(self, number: int) -> Pcpu:
        return next(cpu for cpu in self.discover().cpus if cpu.number == number)
