"""What VMs and their host use besides CPU time: pressure, memory, disks and network, as counted and as rates.

Pressure (PSI) is the time in which at least one thread waited for the resource (``some`` of
Documentation/accounting/psi.rst): as a rate, a fraction of the interval.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

from pydantic import Field

from manager.model.energy import EnergyCounter
from manager.model.fields import WIRE, Count, Name, Text, adapter_of

ALL_DISKS = ""
"""Stands for the device where the kernel counts the disks of a VM together."""


class Signal(StrEnum):
    """What a host may measure of its VMs. ``disk``: bytes; ``disk_latency``: of the host's own disks."""

    PRESSURE = "pressure"
    FAULTS = "faults"
    REFAULTS = "refaults"
    DISK = "disk"
    DISK_LATENCY = "disk_latency"
    NETWORK = "network"


class Weighing(StrEnum):
    """What makes weights of groups act on a disk: its scheduler, or io.cost."""

    BFQ = "bfq"
    COST = "io.cost"


class Pressures(NamedTuple):
    """Microseconds of pressure so far; None: not counted."""

    cpu_us: int | None = None
    memory_us: int | None = None
    io_us: int | None = None


class DiskCounters(NamedTuple):
    """What a VM read and wrote so far. ``requests`` None: only bytes are counted."""

    read_bytes: int
    written_bytes: int
    requests: int | None


class VirtualDiskCounters(NamedTuple):
    """What a VM asked of one of its own disks so far: reads, writes and flushes, and the sum of what these took."""

    requests: int
    wait_ns: int


class VirtualDisksSeen(NamedTuple):
    """The disks of a VM by name, such as ``vda``, as they were at ``monotonic_s``."""

    monotonic_s: float
    disks: Mapping[str, VirtualDiskCounters]


class WorkCounters(NamedTuple):
    """What the vCPUs and other threads of a VM did so far, as the pCPUs' own counters (PMU) have it."""

    instructions: int
    cycles: int
    cache_misses: int


class VmCounters(NamedTuple):
    """What a VM used since it started, at ``monotonic_s``. None: not counted on this host.

    ``refaults`` are pages that were read again after they had been reclaimed, ``vhost_ns`` the CPU time of the threads
    that carry its packets (None: it has none); ``disks`` is by the name of the host's device, or ALL_DISKS.
    ``virtual_disks`` are the last two looks at its own, the older one first: libvirt is asked more seldom.
    """

    monotonic_s: float
    pressures: Pressures = Pressures()
    major_faults: int | None = None
    refaults: int | None = None
    resident_bytes: int | None = None
    disks: Mapping[str, DiskCounters] | None = None
    vhost_ns: int | None = None
    work: WorkCounters | None = None
    virtual_disks: tuple[VirtualDisksSeen, VirtualDisksSeen] | None = None


class LinkCounters(NamedTuple):
    """What passed a network interface, as the host sees it: what a tap receives, its VM sent."""

    received_bytes: int
    sent_bytes: int
    received_packets: int
    sent_packets: int
    dropped_packets: int


class DeviceCounters(NamedTuple):
    """What a disk of the host did: ``wait_ms`` is the sum over its requests, ``busy_ms`` the time it had any."""

    total_bytes: int
    requests: int
    wait_ms: int
    busy_ms: int


class PcpuPower(NamedTuple):
    """How often a pCPU resumed from idle so far (None: not counted), what its states are said to take for that in all,
    and its clock now and at most. None: not known.
    """

    resumes: int | None
    resume_us: int
    clock_khz: int | None
    most_khz: int | None


class Uplink(NamedTuple):
    """A network interface of the host's own. ``speed_bytes_per_s`` None: it does not say."""

    index: int  # type: ignore[assignment]  # as in KnobKey
    speed_bytes_per_s: float | None


class HostCounters(NamedTuple):
    """What the host's resources did since it started, at ``monotonic_s``. None: not counted.

    ``disks`` are by name, ``links`` by index of the interface, with their names now. ``memory_bytes`` is all there is,
    ``weighings`` by name of the disks on which weights act, ``numbers`` those of disks by name (makedev(3)); ``pcpus``
    by number, of those that were asked for; ``energy`` by RAPL's domain, none where it cannot be read.
    """

    monotonic_s: float
    pressures: Pressures = Pressures()
    disks: Mapping[str, DeviceCounters] | None = None
    links: Mapping[int, LinkCounters] | None = None
    names: Mapping[int, str] = MappingProxyType({})
    uplinks: tuple[Uplink, ...] = ()
    memory_bytes: int | None = None
    weighings: Mapping[str, Weighing] = MappingProxyType({})
    numbers: Mapping[str, int] = MappingProxyType({})
    pcpus: Mapping[int, PcpuPower] = MappingProxyType({})
    energy: Mapping[str, EnergyCounter] = MappingProxyType({})


Rate = Annotated[float, Field(ge=0, le=1e15)]
Part = Annotated[float, Field(ge=0, le=1, description="of the time")]
Known = Field(exclude_if=lambda value: value is None)
Some = Field(exclude_if=lambda values: not values, max_length=256)


@dataclass(frozen=True, slots=True)
class DiskUse:
    """What a VM reads and writes of a disk of its host."""

    device: Annotated[Text, Field(description="of the host; empty: all of them, the kernel does not tell them apart")]
    read_bytes_per_s: Rate
    written_bytes_per_s: Rate
    requests_per_s: Annotated[Rate | None, Known, Field(description="absent: not counted")] = None
    __pydantic_config__: ClassVar = WIRE

    @property
    def bytes_per_s(self) -> float:
        """Both ways."""
        return self.read_bytes_per_s + self.written_bytes_per_s


@dataclass(frozen=True, slots=True)
class VirtualDiskUse:
    """A disk of a VM, as its guest uses it."""

    disk: Annotated[Text, Field(description="its target in the domain's XML, such as vda")]
    requests_per_s: Rate
    latency_ms: Annotated[Rate | None, Known, Field(description="mean of its requests; absent: there was none")] = None
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class LinkUse:
    """The traffic of a VM's interface, as the VM sees it, or of one of the host's own."""

    interface: Annotated[Text, Field(description="its name on the host")]
    received_bytes_per_s: Rate
    sent_bytes_per_s: Rate
    received_packets_per_s: Rate
    sent_packets_per_s: Rate
    dropped_packets_per_s: Rate
    speed_bytes_per_s: Annotated[Rate | None, Known, Field(description="absent: not known, or a VM's")] = None
    __pydantic_config__: ClassVar = WIRE

    @property
    def bytes_per_s(self) -> float:
        """Both ways."""
        return self.received_bytes_per_s + self.sent_bytes_per_s

    @property
    def packets_per_s(self) -> float:
        """Both ways."""
        return self.received_packets_per_s + self.sent_packets_per_s


@dataclass(frozen=True, slots=True)
class VmResources:
    """What a VM uses besides CPU time, and how it is held up. Absent: not measured on this host, or not yet."""

    vm: Name
    cpu_pressure: Annotated[Part | None, Known] = None
    memory_pressure: Annotated[Part | None, Known] = None
    io_pressure: Annotated[Part | None, Known] = None
    major_faults_per_s: Annotated[Rate | None, Known] = None
    refaults_per_s: Annotated[Rate | None, Known, Field(description="pages read again after they were reclaimed")] = (
        None
    )
    resident_bytes: Annotated[Count | None, Known] = None
    growth_bytes_per_s: Annotated[Rate | None, Known, Field(description="of its resident memory; 0: it shrank")] = None
    disks: Annotated[tuple[DiskUse, ...], Some] = ()
    interfaces: Annotated[tuple[LinkUse, ...], Some] = ()
    vhost_pcpus: Annotated[
        Annotated[float, Field(ge=0, le=8192)] | None, Known, Field(description="CPU time of its vhost threads")
    ] = None
    instructions_per_s: Annotated[Rate | None, Known] = None
    cycles_per_instruction: Annotated[Rate | None, Known, Field(description="absent: it ran none")] = None
    cache_misses_per_s: Annotated[Rate | None, Known, Field(description="of the last-level cache")] = None
    resume_us: Annotated[
        Rate | None, Known, Field(description="what its pCPUs are said to take to resume from idle, mean of each time")
    ] = None
    clock_part: Annotated[
        Part | None, Known, Field(description="clock of its pCPUs at the end of the round, as a part of the highest")
    ] = None
    virtual_disks: Annotated[tuple[VirtualDiskUse, ...], Some] = ()
    __pydantic_config__: ClassVar = WIRE

    @property
    def slowest_disk(self) -> VirtualDiskUse | None:
        """The disk of its own whose requests take longest; None: none had any."""
        timed = [disk for disk in self.virtual_disks if disk.latency_ms is not None]
        return max(timed, key=lambda disk: disk.latency_ms or 0.0, default=None)

    @property
    def disk_bytes_per_s(self) -> float:
        """Of all its disks, both ways."""
        return sum(disk.bytes_per_s for disk in self.disks)

    @property
    def link_bytes_per_s(self) -> float:
        """Of all its interfaces, both ways."""
        return sum(link.bytes_per_s for link in self.interfaces)

    @property
    def dropped_packets_per_s(self) -> float:
        """Of all its interfaces."""
        return sum(link.dropped_packets_per_s for link in self.interfaces)


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A disk of the host."""

    device: Text
    bytes_per_s: Rate
    requests_per_s: Rate
    busy: Annotated[Part, Field(description="part of the time with at least one request under way")]
    latency_ms: Annotated[Rate | None, Known, Field(description="mean of its requests; absent: there was none")] = None
    weighing: Annotated[
        Weighing | None, Known, Field(description="what makes weights of VMs act on it; absent: nothing does")
    ] = None
    number: Annotated[Count | None, Known, Field(description="the kernel's, makedev(3); absent from records")] = None
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class ResourceUse:
    """One round of readings, as rates since the round before.

    In records the VMs, disks and uplinks are left out that have little to do. ``missing``: what no VM is measured by.
    """

    vms: Annotated[tuple[VmResources, ...], Some] = ()
    disks: Annotated[tuple[DeviceUse, ...], Some] = ()
    uplinks: Annotated[tuple[LinkUse, ...], Some] = ()
    cpu_pressure: Annotated[Part | None, Known] = None
    memory_pressure: Annotated[Part | None, Known] = None
    io_pressure: Annotated[Part | None, Known] = None
    missing: Annotated[tuple[Signal, ...], Some, Field(description="what is not measured there")] = ()
    memory_bytes: Annotated[Count | None, Known, Field(description="of the whole host; absent from records")] = None
    __pydantic_config__: ClassVar = WIRE

    def of(self, vm: str) -> VmResources | None:
        """What a VM uses; None: not measured, or in a record, little."""
        return next((use for use in self.vms if use.vm == vm), None)


def resources_of(fields: Mapping[str, Any] | None) -> ResourceUse | None:
    """From the fields that were kept of it."""
    return None if fields is None else adapter_of(ResourceUse).validate_python(fields)
