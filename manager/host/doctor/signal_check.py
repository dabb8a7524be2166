"""What is measured of VMs besides CPU time: pressure, memory, disks and network. Nothing is written."""

from __future__ import annotations

import errno
from pathlib import Path

from manager.host.cgroup import read_mounts
from manager.host.doctor.check import CheckResult, Subject, degraded, missing, unknown, works
from manager.host.doctor.virtualization import some
from manager.host.files import text_of
from manager.host.registry import BLKIO_FILES, IO_STAT_FILE, MEMORY_STAT_FILE, PRESSURE_FILES
from manager.host.resources.counter_texts import disk_lines, faults
from manager.host.resources.link_counters import read_links
from manager.host.resources.perf_events import why_none

_PSI_ON = "boot with psi=1, on a kernel with CONFIG_PSI"


def pressure(subject: Subject) -> CheckResult:
    """Of the host, and of each group of v2, which a hybrid host has beside v1's."""
    try:
        text = text_of(subject.paths.pressure / "memory")
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        text = None
    if text is None:
        return missing("this kernel measures no pressure (PSI): memory and disks are judged without it", _PSI_ON)
    point = _mount(subject, "")
    if point is None:
        return degraded(
            "of the host as a whole: no cgroup v2 is mounted, so not of each VM",
            "use cgroup v2, or mount it beside v1 (the hybrid layout)",
        )
    if _seen_below(point, PRESSURE_FILES[1]) is None:
        return degraded("of the host as a whole: groups have no memory.pressure", "see cgroup.pressure of the groups")
    return works(f"of the host and of groups below {point}: CPU, memory and I/O")


def memory(subject: Subject) -> CheckResult:
    """Faults and refaults of groups."""
    for controller in ("memory", ""):
        point = _mount(subject, controller)
        file = _seen_below(point, MEMORY_STAT_FILE) if point else None
        if file is not None:
            major, refaults = faults(file.read_bytes())
            if refaults is None:
                return degraded(f"{file}: major faults, but no refaults", "run Linux 4.15 or newer")
            if major is not None:
                return works(f"major faults and refaults, such as in {file}; resident memory of each process")
    return degraded(
        "major faults and resident memory of each process alone: groups have no memory.stat",
        "enable the memory controller for machine.slice (MemoryAccounting=yes)",
    )


def disks(subject: Subject) -> CheckResult:
    """Throughput of VMs by device, and latency of the host's disks."""
    text = subject.paths.diskstats.read_bytes() if subject.paths.diskstats.exists() else b""
    latency = "latency of the host's disks" if any(True for _ in disk_lines(text)) else "no latency of disks"
    point = None if _mount(subject, "blkio") else _mount(subject, "")
    file = _seen_below(point, IO_STAT_FILE) if point else None
    if file is not None:
        return works(f"of each VM by device, such as in {file}; {latency}")
    point = _mount(subject, "blkio")
    counted = [served for served, _ in BLKIO_FILES if point and _counts(_seen_below(point, served))]
    if counted:
        return works(f"of each VM by device, from {counted[0]}; {latency}")
    where = "groups have no io.stat" if point is None else "blkio groups count nothing since Linux 6.10 without a limit"
    return degraded(
        f"of each VM over all its disks together, from /proc/PID/io: {where}; {latency}",
        "use cgroup v2 with the io controller, or BFQ as the scheduler of the disks",
    )


def virtual_disks(subject: Subject) -> CheckResult:
    """Requests of VMs' own disks, and what these take."""
    view = subject.libvirt
    if view.error:
        return unknown("libvirt is not connected", "see the finding `libvirt`")
    with_disks = [domain for domain in view.domains if domain.disks]
    if not with_disks:
        return works("no domain with a disk is running")
    uncounted = [
        f"{domain.name} ({', '.join(missed)})"
        for domain in with_disks
        if (missed := [disk for disk in domain.disks if disk not in domain.counted])
    ]
    if uncounted:
        return degraded(
            f"libvirt has no block statistics of {some(uncounted)}",
            "see `virsh domjobinfo`: another job of libvirt may be under way; and `virsh domstats --block`",
        )
    counted = [f"{domain.name} ({', '.join(domain.disks)})" for domain in with_disks]
    return works(f"requests and latency by disk, from libvirt's block statistics: {some(counted)}")


def network(_subject: Subject) -> CheckResult:
    """Counters of interfaces."""
    try:
        links = read_links()
    except OSError as error:
        return missing(f"the kernel does not answer about interfaces: {error}", "run Linux 4.7 or newer")
    return works(f"bytes, packets and drops of {len(links)} interfaces, in one answer of the kernel")


def counters(_subject: Subject) -> CheckResult:
    """Instructions, cycles and cache misses."""
    why = why_none()
    if why:
        return missing(
            f"the kernel counts no instructions: {why}", "nothing to do: everything but cycles per instruction works"
        )
    return works("instructions, cycles and misses of the last-level cache of each VM, with count_instructions = on")


def _mount(subject: Subject, controller: str) -> Path | None:
    mount = read_mounts(subject.paths).by_controller.get(controller)
    return mount[0] if mount else None


def _seen_below(point: Path, name: str) -> Path | None:
    """Such a file of a group below the root, whose own files differ; of machine groups first."""
    folders = sorted(point.iterdir(), key=lambda folder: (not folder.name.startswith("machine"), folder.name))
    return next((folder / name for folder in folders if (folder / name).exists()), None)


def _counts(file: Path | None) -> bool:
    """Whether there is a line of any device: the last one is the sum."""
    return file is not None and len(file.read_bytes().splitlines()) > 1
