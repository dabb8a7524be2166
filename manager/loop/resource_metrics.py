"""Prometheus metrics of what VMs and their host use besides CPU time: docs/reference/metrics.md."""

from __future__ import annotations

from collections.abc import Iterator

from manager.model.resource_use import LinkUse, ResourceUse, VmResources

FAMILIES = {
    "vm_pressure_ratio": ("Part of the time in which a thread of it waited for the resource (PSI)", ["vm", "resource"]),
    "vm_major_faults_per_second": ("Page faults that had to read", ["vm"]),
    "vm_refaults_per_second": ("Pages read again after they were reclaimed", ["vm"]),
    "vm_resident_bytes": ("Memory it occupies", ["vm"]),
    "vm_disk_bytes_per_second": ("Bytes read and written", ["vm", "device", "direction"]),
    "vm_disk_requests_per_second": ("Requests of disks", ["vm", "device"]),
    "vm_virtual_disk_requests_per_second": ("Requests of its guest", ["vm", "disk"]),
    "vm_virtual_disk_latency_seconds": ("Mean time that one of these took", ["vm", "disk"]),
    "vm_network_bytes_per_second": ("Bytes of its interfaces", ["vm", "interface", "direction"]),
    "vm_network_packets_per_second": ("Packets of its interfaces", ["vm", "interface", "direction"]),
    "vm_network_dropped_packets_per_second": ("Packets of its interfaces that were lost", ["vm", "interface"]),
    "vm_vhost_pcpus": ("CPU time of its vhost threads", ["vm"]),
    "vm_instructions_per_second": ("Instructions that its threads ran", ["vm"]),
    "vm_cycles_per_instruction": ("Cycles that one of them took", ["vm"]),
    "vm_cache_misses_per_second": ("Misses of the last-level cache", ["vm"]),
    "vm_resume_seconds": ("Time that the pCPUs it is pinned to take to resume from idle, mean of each time", ["vm"]),
    "vm_clock_ratio": ("Clock of the pCPUs that it is pinned to, as a part of the highest", ["vm"]),
    "host_pressure_ratio": ("Part of the time in which a thread waited for the resource (PSI)", ["resource"]),
    "host_disk_latency_seconds": ("Mean time a request took", ["device"]),
    "host_disk_busy_ratio": ("Part of the time with requests under way", ["device"]),
    "host_disk_bytes_per_second": ("Bytes read and written", ["device"]),
    "host_network_bytes_per_second": ("Bytes of its own interfaces", ["interface", "direction"]),
    "host_network_dropped_packets_per_second": ("Packets of its own interfaces that were lost", ["interface"]),
}

Sample = tuple[str, tuple[str, ...], float | None]


def resource_samples(use: ResourceUse) -> Iterator[Sample]:
    """Name of a family, values of its labels, and the value; None: there is none."""
    for vm in use.vms:
        yield from _of_vm(vm)
    for resource, part in (("cpu", use.cpu_pressure), ("memory", use.memory_pressure), ("io", use.io_pressure)):
        yield "host_pressure_ratio", (resource,), part
    for disk in use.disks:
        latency_s = None if disk.latency_ms is None else disk.latency_ms / 1000
        yield "host_disk_latency_seconds", (disk.device,), latency_s
        yield "host_disk_busy_ratio", (disk.device,), disk.busy
        yield "host_disk_bytes_per_second", (disk.device,), disk.bytes_per_s
    for link in use.uplinks:
        yield from _of_link("host", (), link)


def _of_vm(use: VmResources) -> Iterator[Sample]:
    for resource, part in (("cpu", use.cpu_pressure), ("memory", use.memory_pressure), ("io", use.io_pressure)):
        yield "vm_pressure_ratio", (use.vm, resource), part
    yield "vm_major_faults_per_second", (use.vm,), use.major_faults_per_s
    yield "vm_refaults_per_second", (use.vm,), use.refaults_per_s
    yield "vm_resident_bytes", (use.vm,), use.resident_bytes
    yield "vm_vhost_pcpus", (use.vm,), use.vhost_pcpus
    yield "vm_instructions_per_second", (use.vm,), use.instructions_per_s
    yield "vm_cycles_per_instruction", (use.vm,), use.cycles_per_instruction
    yield "vm_cache_misses_per_second", (use.vm,), use.cache_misses_per_s
    yield "vm_resume_seconds", (use.vm,), None if use.resume_us is None else use.resume_us / 1e6
    yield "vm_clock_ratio", (use.vm,), use.clock_part
    for disk in use.disks:
        yield "vm_disk_bytes_per_second", (use.vm, disk.device, "read"), disk.read_bytes_per_s
        yield "vm_disk_bytes_per_second", (use.vm, disk.device, "write"), disk.written_bytes_per_s
        yield "vm_disk_requests_per_second", (use.vm, disk.device), disk.requests_per_s
    for own in use.virtual_disks:
        yield "vm_virtual_disk_requests_per_second", (use.vm, own.disk), own.requests_per_s
        latency_s = None if own.latency_ms is None else own.latency_ms / 1000
        yield "vm_virtual_disk_latency_seconds", (use.vm, own.disk), latency_s
    for link in use.interfaces:
        yield from _of_link("vm", (use.vm,), link)
        packets = (("received", link.received_packets_per_s), ("sent", link.sent_packets_per_s))
        for direction, rate in packets:
            yield "vm_network_packets_per_second", (use.vm, link.interface, direction), rate


def _of_link(whose: str, labels: tuple[str, ...], link: LinkUse) -> Iterator[Sample]:
    of = (*labels, link.interface)
    yield f"{whose}_network_bytes_per_second", (*of, "received"), link.received_bytes_per_s
    yield f"{whose}_network_bytes_per_second", (*of, "sent"), link.sent_bytes_per_s
    yield f"{whose}_network_dropped_packets_per_second", of, link.dropped_packets_per_s
