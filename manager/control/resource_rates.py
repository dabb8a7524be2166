"""Rates of what VMs and their host use besides CPU time, from two rounds of counters; and what of it is worth a record.

A counter that went back, as after a reset, gives no rate until the next round.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple, TypeVar

from manager.model.host import VmInstance
from manager.model.resource_use import (
    ALL_DISKS,
    DeviceUse,
    DiskUse,
    HostCounters,
    LinkCounters,
    LinkUse,
    Pressures,
    ResourceUse,
    Signal,
    VirtualDisksSeen,
    VirtualDiskUse,
    VmCounters,
    VmResources,
    WorkCounters,
)

NOTABLE_PRESSURE = 0.01
"""From this part of the time on, pressure on memory or I/O is worth a record."""
NOTABLE_FAULTS = 10.0
"""And from so many major faults or refaults a second."""
NOTABLE_BYTES_PER_S = 1e6
"""And from so many bytes a second of disk, network or growth."""
SLOW_MS = 5.0
"""From this mean latency on a disk is slow: what critical VMs do with it is worth a record, however little."""
NOTABLE_REQUESTS_PER_S = 50.0
NOTABLE_PACKETS_PER_S = 1000.0
NOTABLE_DROPS_PER_S = 1.0
NOTABLE_RESUME_US = 20.0
"""From this mean time to resume from idle on, it is worth a record of a critical VM."""
NOTABLE_CLOCK_PART = 0.8
MOST_RECORDED = 64
"""VMs in a record: critical ones first, then those that use most."""
_DIGITS = 3

Use = TypeVar("Use", VmResources, DiskUse, VirtualDiskUse, LinkUse, DeviceUse, ResourceUse)


class CountedVm(NamedTuple):
    """One run of a VM and what it used."""

    instance: VmInstance
    counters: VmCounters


@dataclass(frozen=True, slots=True)
class Round:
    """A round of readings: of VMs by name, with the indexes of their taps, and of the host (None: it failed).

    ``pins``: the pCPUs that vCPUs of each critical VM are pinned to, one by one.
    """

    vms: Mapping[str, CountedVm] = field(default_factory=dict)
    taps: Mapping[str, Collection[int]] = field(default_factory=dict)
    host: HostCounters | None = None
    pins: Mapping[str, Collection[int]] = field(default_factory=dict)


def resource_use(now: Round, before: Round) -> ResourceUse:
    """What was used between two rounds, VMs by name."""
    links = _links(now.host, before.host)
    vms = tuple(
        _powered(_vm_use(name, counted.counters, then.counters, _of_taps(links, now, name)), now, before)
        for name, counted in sorted(now.vms.items())
        if (then := before.vms.get(name)) is not None
        and then.instance == counted.instance
        and counted.counters.monotonic_s > then.counters.monotonic_s
    )
    missing = _missing(now)
    if now.host is None or before.host is None or now.host.monotonic_s <= before.host.monotonic_s:
        return ResourceUse(vms, missing=missing)
    elapsed_s = now.host.monotonic_s - before.host.monotonic_s
    cpu, memory, io = _pressures(now.host.pressures, before.host.pressures, elapsed_s)
    speeds = {link.index: link.speed_bytes_per_s for link in now.host.uplinks}
    uplinks = tuple(
        replace(_received(links[index]), speed_bytes_per_s=speed) for index, speed in speeds.items() if index in links
    )
    devices = _devices(now.host, before.host, elapsed_s)
    return ResourceUse(vms, devices, uplinks, cpu, memory, io, missing, now.host.memory_bytes)


def _missing(now: Round) -> tuple[Signal, ...]:
    """What none of the VMs is measured by."""
    counters = [counted.counters for counted in now.vms.values()]
    if not counters:
        return ()
    measured = {
        Signal.PRESSURE: any(each.pressures.memory_us is not None for each in counters),
        Signal.FAULTS: any(each.major_faults is not None for each in counters),
        Signal.REFAULTS: any(each.refaults is not None for each in counters),
        Signal.DISK: any(each.disks is not None for each in counters),
        Signal.DISK_LATENCY: now.host is not None and now.host.disks is not None,
        Signal.NETWORK: now.host is not None and now.host.links is not None,
    }
    return tuple(signal for signal, there in measured.items() if not there)


def _vm_use(name: str, now: VmCounters, then: VmCounters, interfaces: tuple[LinkUse, ...]) -> VmResources:
    elapsed_s = now.monotonic_s - then.monotonic_s
    cpu, memory, io = _pressures(now.pressures, then.pressures, elapsed_s)
    vhost_ns = _rate(now.vhost_ns, then.vhost_ns, elapsed_s)
    return VmResources(
        name,
        cpu,
        memory,
        io,
        _rate(now.major_faults, then.major_faults, elapsed_s),
        _rate(now.refaults, then.refaults, elapsed_s),
        now.resident_bytes,
        _growth(now.resident_bytes, then.resident_bytes, elapsed_s),
        tuple(_disks(now, then, elapsed_s)),
        interfaces,
        None if vhost_ns is None else vhost_ns / 1e9,
        *_work(now.work, then.work, elapsed_s),
        virtual_disks=tuple(_virtual_disks(*now.virtual_disks, now.monotonic_s)) if now.virtual_disks else (),
    )


def _powered(use: VmResources, now: Round, before: Round) -> VmResources:
    """With the power of the pCPUs that it is pinned to."""
    if now.host is None or not now.pins.get(use.vm):
        return use
    powers = [(now.host.pcpus[cpu], cpu) for cpu in now.pins[use.vm] if cpu in now.host.pcpus]
    if not powers:
        return use
    clocks = [power.clock_khz / power.most_khz for power, _ in powers if power.clock_khz and power.most_khz]
    then = before.host.pcpus if before.host is not None else {}
    resumes = resume_us = 0
    for power, cpu in powers:
        past = then.get(cpu)
        if power.resumes is None or past is None or past.resumes is None or past.resumes > power.resumes:
            continue
        resumes, resume_us = resumes + power.resumes - past.resumes, resume_us + power.resume_us - past.resume_us
    return replace(
        use,
        resume_us=max(resume_us, 0) / resumes if resumes else None,
        clock_part=min(math.fsum(clocks) / len(clocks), 1.0) if clocks else None,
    )


def _work(
    now: WorkCounters | None, then: WorkCounters | None, elapsed_s: float
) -> tuple[float | None, float | None, float | None]:
    """Instructions a second, cycles an instruction, and misses of the last-level cache a second."""
    if now is None or then is None or any(value < past for value, past in zip(now, then, strict=True)):
        return None, None, None
    instructions, cycles, misses = (value - past for value, past in zip(now, then, strict=True))
    return instructions / elapsed_s, cycles / instructions if instructions else None, misses / elapsed_s


def _growth(now_bytes: int | None, then_bytes: int | None, elapsed_s: float) -> float | None:
    if now_bytes is None or then_bytes is None:
        return None
    return max(now_bytes - then_bytes, 0) / elapsed_s


def _disks(now: VmCounters, then: VmCounters, elapsed_s: float) -> Iterable[DiskUse]:
    """Of the disks that were there before: another name may only mean that the kernel counts by device now."""
    if now.disks is None or then.disks is None:
        return
    for device, counters in sorted(now.disks.items()):
        past = then.disks.get(device)
        if past is None:
            continue
        read = _rate(counters.read_bytes, past.read_bytes, elapsed_s)
        written = _rate(counters.written_bytes, past.written_bytes, elapsed_s)
        if read is not None and written is not None:
            yield DiskUse(device, read, written, _rate(counters.requests, past.requests, elapsed_s))


def _virtual_disks(then: VirtualDisksSeen, now: VirtualDisksSeen, read_s: float) -> Iterable[VirtualDiskUse]:
    """Of the disks that were there at both looks, and whose counters did not begin anew.

    None where the last look is more than twice as long ago as they are apart: libvirt does not answer any more.
    """
    elapsed_s = now.monotonic_s - then.monotonic_s
    if read_s - now.monotonic_s > 2 * elapsed_s:
        return
    for name, counters in sorted(now.disks.items()):
        past = then.disks.get(name)
        if past is None or elapsed_s <= 0 or counters.requests < past.requests or counters.wait_ns < past.wait_ns:
            continue
        requests = counters.requests - past.requests
        latency_ms = (counters.wait_ns - past.wait_ns) / requests / 1e6 if requests else None
        yield VirtualDiskUse(name, requests / elapsed_s, latency_ms)


def _links(now: HostCounters | None, then: HostCounters | None) -> dict[int, LinkUse]:
    """The traffic of each interface by index, as its VM would see it: what a tap receives, the VM sent."""
    if now is None or then is None or now.links is None or then.links is None:
        return {}
    elapsed_s = now.monotonic_s - then.monotonic_s
    if elapsed_s <= 0:
        return {}
    uses: dict[int, LinkUse] = {}
    for index, counters in now.links.items():
        past = then.links.get(index)
        rates = _all_rates(counters, past, elapsed_s) if past is not None else None
        if rates is not None:
            from_vm_bytes, to_vm_bytes, from_vm, to_vm, dropped = rates
            name = now.names.get(index, f"interface {index}")
            uses[index] = LinkUse(name, to_vm_bytes, from_vm_bytes, to_vm, from_vm, dropped)
    return uses


def _all_rates(now: LinkCounters, then: LinkCounters, elapsed_s: float) -> list[float] | None:
    """None where any of them went back: another interface has this index, or the driver began anew."""
    if any(value < past for value, past in zip(now, then, strict=True)):
        return None
    return [(value - past) / elapsed_s for value, past in zip(now, then, strict=True)]


def _received(link: LinkUse) -> LinkUse:
    """As the host itself sees it."""
    return LinkUse(
        link.interface,
        link.sent_bytes_per_s,
        link.received_bytes_per_s,
        link.sent_packets_per_s,
        link.received_packets_per_s,
        link.dropped_packets_per_s,
    )


def _of_taps(links: Mapping[int, LinkUse], now: Round, name: str) -> tuple[LinkUse, ...]:
    return tuple(links[index] for index in sorted(now.taps.get(name, ())) if index in links)


def _devices(now: HostCounters, then: HostCounters, elapsed_s: float) -> tuple[DeviceUse, ...]:
    if now.disks is None or then.disks is None:
        return ()
    uses: list[DeviceUse] = []
    for device, counters in sorted(now.disks.items()):
        past = then.disks.get(device)
        if past is None or any(value < before for value, before in zip(counters, past, strict=True)):
            continue
        requests = counters.requests - past.requests
        latency_ms = (counters.wait_ms - past.wait_ms) / requests if requests else None
        busy = min((counters.busy_ms - past.busy_ms) / 1000 / elapsed_s, 1.0)
        rate = (counters.total_bytes - past.total_bytes) / elapsed_s
        kind = now.weighings.get(device), now.numbers.get(device)
        uses.append(DeviceUse(device, rate, requests / elapsed_s, busy, latency_ms, *kind))
    return tuple(uses)


def _pressures(now: Pressures, then: Pressures, elapsed_s: float) -> tuple[float | None, float | None, float | None]:
    cpu, memory, io = (_rate(value, past, elapsed_s * 1e6) for value, past in zip(now, then, strict=True))
    return _at_most_all(cpu), _at_most_all(memory), _at_most_all(io)


def _at_most_all(part: float | None) -> float | None:
    return None if part is None else min(part, 1.0)


def _rate(now: int | None, then: int | None, elapsed: float) -> float | None:
    """None where one is not known, or the counter went back."""
    if now is None or then is None or now < then:
        return None
    return (now - then) / elapsed


def is_notable(use: VmResources) -> bool:
    """Whether a VM is held up, or uses so much that it may hold up others."""
    return (
        max(use.memory_pressure or 0.0, use.io_pressure or 0.0) >= NOTABLE_PRESSURE
        or max(use.major_faults_per_s or 0.0, use.refaults_per_s or 0.0) >= NOTABLE_FAULTS
        or max(use.disk_bytes_per_s, use.link_bytes_per_s, use.growth_bytes_per_s or 0.0) >= NOTABLE_BYTES_PER_S
        or any((disk.requests_per_s or 0.0) >= NOTABLE_REQUESTS_PER_S for disk in use.disks)
        or any(link.packets_per_s >= NOTABLE_PACKETS_PER_S for link in use.interfaces)
        or use.dropped_packets_per_s >= NOTABLE_DROPS_PER_S
    )


def recorded(use: ResourceUse, critical: Collection[str] = ()) -> ResourceUse:
    """What of it is kept: notable VMs, and disks and uplinks that do something."""
    slow = {disk.device for disk in use.disks if (disk.latency_ms or 0.0) >= SLOW_MS}
    slow |= {ALL_DISKS} if slow else set()
    notable = [
        vm
        for vm in use.vms
        if is_notable(vm) or (vm.vm in critical and (_uses_any(vm, slow) or _has_slow_disk(vm) or _is_sleepy(vm)))
    ]
    notable.sort(key=lambda vm: (vm.vm not in critical, -vm.disk_bytes_per_s - vm.link_bytes_per_s, vm.vm))
    disks = tuple(
        replace(disk, number=None)
        for disk in use.disks
        if disk.bytes_per_s >= NOTABLE_BYTES_PER_S
        or disk.requests_per_s >= NOTABLE_REQUESTS_PER_S
        or disk.device in slow
    )
    uplinks = tuple(
        link
        for link in use.uplinks
        if link.bytes_per_s >= NOTABLE_BYTES_PER_S or link.dropped_packets_per_s >= NOTABLE_DROPS_PER_S
    )
    vms = tuple(sorted(notable[:MOST_RECORDED], key=lambda vm: vm.vm))
    return rounded(replace(use, vms=vms, disks=disks, uplinks=uplinks, memory_bytes=None))


def rounded(use: ResourceUse) -> ResourceUse:
    """With all its rates rounded, and without the disks and interfaces of VMs that did nothing."""
    return replace(
        _rounded(use),
        vms=tuple(map(_short_vm, use.vms)),
        disks=tuple(map(_rounded, use.disks)),
        uplinks=tuple(map(_rounded, use.uplinks)),
    )


def _uses_any(vm: VmResources, devices: Collection[str]) -> bool:
    return any(disk.device in devices and disk.bytes_per_s for disk in vm.disks)


def _has_slow_disk(vm: VmResources) -> bool:
    """Whether requests of one of its own disks take long."""
    slowest = vm.slowest_disk
    return slowest is not None and (slowest.latency_ms or 0.0) >= SLOW_MS


def _is_sleepy(vm: VmResources) -> bool:
    """Whether its pCPUs sleep deeply or run slowly, which may hold it up."""
    return (vm.resume_us or 0.0) >= NOTABLE_RESUME_US or (vm.clock_part or 1.0) <= NOTABLE_CLOCK_PART


def _short_vm(use: VmResources) -> VmResources:
    """Without disks and interfaces that did nothing."""
    disks = tuple(_rounded(disk) for disk in use.disks if disk.bytes_per_s or disk.requests_per_s)
    links = tuple(_rounded(link) for link in use.interfaces if link.packets_per_s or link.dropped_packets_per_s)
    own = tuple(_rounded(disk) for disk in use.virtual_disks if disk.requests_per_s)
    return replace(_rounded(use), disks=disks, interfaces=links, virtual_disks=own)


def _rounded(use: Use) -> Use:
    """With all its rates rounded."""
    whole: Any = use  # mypy would have each value of the mapping fit each field
    rates = {field.name: getattr(use, field.name) for field in fields(use)}
    rounded: Use = replace(whole, **{name: _short(rate) for name, rate in rates.items() if isinstance(rate, float)})
    return rounded


def _short(value: float) -> float:
    """Three significant digits: there will be many of these."""
    if value <= 0:
        return 0.0
    return round(value, _DIGITS - 1 - math.floor(math.log10(value)))
