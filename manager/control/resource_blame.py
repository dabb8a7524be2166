"""Whether memory, a disk or the network holds up an application that violates its SLA, and which other VM is behind it.

From the means over the rounds of readings before the violation and during it: docs/concepts/evidence.md says the same
in words. Memory comes first, because pages that are read again load the disks; then disks, then the network.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from manager.control.power_blame import power_evidence, power_measures
from manager.control.resource_means import mean_resources
from manager.control.violation_case import LEAST_TICKS, MAIN_PART, RISEN, Case, HostTicks, Measure, Verdict
from manager.model.numbers import digits
from manager.model.records import TickRecord
from manager.model.resource_use import ALL_DISKS, DeviceUse, ResourceUse, Signal, VmResources
from manager.model.units import percent
from manager.model.verdict import VerdictKind

MEMORY_PRESSURE = 0.05
"""From this part of the time on, waiting for memory is material; of the host, it is short of memory."""
FAULTS_PER_S = 100.0
"""And so are so many major faults and refaults a second."""
IO_PRESSURE = 0.1
"""From this part of the time on, waiting for disks is material."""
SLOW_MS = 5.0
"""And so is this mean latency of a disk, where it has risen."""
DROPS_PER_S = 10.0
"""Packets that an interface loses are material from so many a second on,"""
DROPPED_PART = 0.001
"""if they are this part of its packets."""
SATURATED = 0.9
"""An uplink is saturated when this part of its speed is used in one direction."""
LEAST_BYTES_PER_S = 1e6
"""A VM that moves less, or grows by less, is not named."""
_NOT_MEASURED = "memory, disks and network were not measured during the violation"


@dataclass(frozen=True, slots=True)
class _Seen:
    """A host's means; ``then`` None: too few rounds before the violation."""

    case: Case
    host: str
    now: ResourceUse
    then: ResourceUse | None

    def others(self) -> list[VmResources]:
        """VMs that are not the application's."""
        return [vm for vm in self.now.vms if vm.vm not in self.case.vms]

    def own(self) -> list[VmResources]:
        return [vm for vm in self.now.vms if vm.vm in self.case.vms]

    def before(self, vm: str) -> VmResources:
        """What it did then: without numbers where that was little, or is not known."""
        return (self.then.of(vm) if self.then is not None else None) or VmResources(vm)

    def named(self, vm: str) -> str:
        kind = (self.case.classes or {}).get(vm)
        return f"{kind} VM {vm}" if kind else f"VM {vm}"


def blame_resources(case: Case) -> Verdict | None:
    """The verdict if memory, a disk, the network or power settings hold up a VM of the application; None if nothing
    shows that.
    """
    seen = [found for host in case.hosts if (found := _look(case, host)) is not None]
    for judge in (_memory, _disk, _network, _power):
        for each in seen:
            verdict = judge(each)
            if verdict is not None:
                return verdict
    return None


def looked_at(case: Case) -> str:
    """What was looked at where ``blame_resources`` has no verdict, and what could not be."""
    seen = [found for host in case.hosts if (found := _look(case, host)) is not None]
    if not seen:
        return _NOT_MEASURED
    missing = sorted({f"{signal} on {each.host}" for each in seen for signal in each.now.missing})
    unseen = f"; not measured: {', '.join(missing)}" if missing else ""
    return f"memory, disks and network do not hold up its VMs, as far as the host measures them{unseen}"


def _look(case: Case, host: HostTicks) -> _Seen | None:
    now, then = _rounds(host.during), _rounds(host.before)
    if len(now) < LEAST_TICKS:
        return None
    mean = mean_resources([(use, 1) for use in now])
    before = mean_resources([(use, 1) for use in then]) if len(then) >= LEAST_TICKS else None
    return None if mean is None else _Seen(case, host.host, mean, before)


def _rounds(ticks: Sequence[TickRecord]) -> list[ResourceUse]:
    return [tick.resources for tick in ticks if tick.resources is not None]


def _memory(seen: _Seen) -> Verdict | None:
    """A VM waits for memory, or reads again what was taken from it."""
    worst = max(seen.own(), key=lambda vm: (vm.memory_pressure or 0.0, _faults(vm), vm.vm), default=None)
    if worst is None or ((worst.memory_pressure or 0.0) < MEMORY_PRESSURE and _faults(worst) < FAULTS_PER_S):
        return None
    before = seen.before(worst.vm)
    measures = [
        _measure(seen, worst.vm, "memory_pressure", worst.memory_pressure, before.memory_pressure),
        _measure(seen, worst.vm, "major_faults_per_s", worst.major_faults_per_s, before.major_faults_per_s),
        _measure(seen, worst.vm, "refaults_per_s", worst.refaults_per_s, before.refaults_per_s),
    ]
    pressed = _pressed("memory", worst.memory_pressure)
    evidence = [
        f"{worst.vm} on {seen.host} {pressed}{digits(worst.major_faults_per_s or 0)} major faults/s and"
        f" {digits(worst.refaults_per_s or 0)} refaults/s: pages were taken from it and are read again"
        f"{_then(seen, _faults(before), 'faults and refaults/s')}"
    ]
    pressure = seen.now.memory_pressure
    if pressure is None and Signal.PRESSURE not in seen.now.missing:
        pressure = 0.0
    if pressure is not None and pressure < MEMORY_PRESSURE:
        evidence.append(
            f"memory pressure of the whole host is {percent(pressure)}: the VM's own limit is too low for what it needs"
        )
        return _verdict(VerdictKind.MEMORY, seen, evidence, measures)
    if pressure is not None:
        evidence.append(f"memory pressure of the whole host is {percent(pressure)}: it is short of memory")
    for text, amounts in (
        ("grew by {} MB/s at the same time", {vm.vm: (vm.growth_bytes_per_s or 0.0) / 1e6 for vm in seen.others()}),
        ("has {} major faults and refaults/s", {vm.vm: _faults(vm) for vm in seen.others()}),
    ):
        least = LEAST_BYTES_PER_S / 1e6 if "grew" in text else FAULTS_PER_S
        suspect = _main(amounts, math.fsum(amounts.values()), least)
        if suspect is not None:
            evidence.append(f"{seen.named(suspect)} {text.format(digits(amounts[suspect]))}, most of all others")
            now = seen.now.of(suspect)
            then = seen.before(suspect)
            growth = now.growth_bytes_per_s if now else None
            measures.append(_measure(seen, suspect, "growth_bytes_per_s", growth, then.growth_bytes_per_s))
            return _verdict(VerdictKind.MEMORY, seen, evidence, measures, suspect)
    evidence.append("no other registered VM grows or is short of memory more than the rest: look at the host's own use")
    return _verdict(VerdictKind.MEMORY, seen, evidence, measures)


def _disk(seen: _Seen) -> Verdict | None:
    """A VM waits for disks, or uses one that has become slow."""
    own = sorted(seen.own(), key=lambda vm: (-(vm.io_pressure or 0.0), -vm.disk_bytes_per_s, vm.vm))
    for vm in own:
        device = _slowest(seen, vm)
        if device is not None or (vm.io_pressure or 0.0) >= IO_PRESSURE:
            return _of_disk(seen, vm, device or _busiest(seen, vm))
        if _has_slow_disk(seen, vm):
            return _of_disk(seen, vm, None)
    return None


def _has_slow_disk(seen: _Seen, vm: VmResources) -> bool:
    """Whether one of its own disks is slow and has become so, though none of the host's is: as by a throttle."""
    slowest = vm.slowest_disk
    if slowest is None or (slowest.latency_ms or 0.0) < SLOW_MS:
        return False
    then_ms = _own_latency_before(seen, vm.vm, slowest.disk)
    return then_ms is None or (slowest.latency_ms or 0.0) >= RISEN * then_ms


def _own_latency_before(seen: _Seen, vm: str, disk: str) -> float | None:
    """Milliseconds of a VM's own disk; None where nobody knows."""
    if seen.then is None:
        return None
    return next((own.latency_ms or 0.0 for own in seen.before(vm).virtual_disks if own.disk == disk), 0.0)


def _slowest(seen: _Seen, vm: VmResources) -> DeviceUse | None:
    """The disk it uses that is slow, and has become so, as far as its past is known."""
    return max(
        (device for device in _devices_of(seen, vm) if _is_slow(seen, device)),
        key=lambda device: (device.latency_ms or 0.0, device.device),
        default=None,
    )


def _is_slow(seen: _Seen, device: DeviceUse) -> bool:
    if (device.latency_ms or 0.0) < SLOW_MS:
        return False
    then_ms = _latency_before(seen, device.device)
    return then_ms is None or (device.latency_ms or 0.0) >= RISEN * then_ms


def _latency_before(seen: _Seen, device: str) -> float | None:
    """Milliseconds; None where nobody knows: a disk that was not recorded had little to do and was not slow."""
    if seen.then is None:
        return None
    return next((disk.latency_ms or 0.0 for disk in seen.then.disks if disk.device == device), 0.0)


def _busiest(seen: _Seen, vm: VmResources) -> DeviceUse | None:
    return max(_devices_of(seen, vm), key=lambda device: (device.busy, device.device), default=None)


def _devices_of(seen: _Seen, vm: VmResources) -> list[DeviceUse]:
    """The host's disks that a VM uses; all, where it is not known which."""
    used = {disk.device for disk in vm.disks}
    return [device for device in seen.now.disks if device.device in used or ALL_DISKS in used or not used]


def _of_disk(seen: _Seen, vm: VmResources, device: DeviceUse | None) -> Verdict:
    before = seen.before(vm.vm)
    measures = [_measure(seen, vm.vm, "io_pressure", vm.io_pressure, before.io_pressure)]
    evidence: list[str] = []
    if (vm.io_pressure or 0.0) > 0:
        then = _then(seen, 100 * (before.io_pressure or 0.0), "%")
        evidence.append(f"{vm.vm} on {seen.host}: I/O pressure {percent(vm.io_pressure or 0.0)}{then}")
    slowest = vm.slowest_disk
    if slowest is not None and (slowest.latency_ms or 0.0) >= SLOW_MS:
        then_ms = _own_latency_before(seen, vm.vm, slowest.disk)
        told_before = "" if not then_ms else f" (before: {digits(then_ms)} ms)"
        measures.append(_measure(seen, f"{vm.vm} {slowest.disk}", "disk_latency_ms", slowest.latency_ms, then_ms))
        took = f"takes {digits(slowest.latency_ms or 0.0)} ms{told_before}"
        evidence.append(f"a request of {vm.vm} to its disk {slowest.disk} {took}")
    if device is None:
        evidence.append(f"{vm.vm} waits for a disk that the host does not have: look at the storage")
        return _verdict(VerdictKind.DISK, seen, evidence, measures)
    then_ms = _latency_before(seen, device.device)
    measures.append(_measure(seen, device.device, "disk_latency_ms", device.latency_ms, then_ms))
    told_before = "" if not then_ms else f" (before: {digits(then_ms)} ms)"
    evidence.append(
        f"a request of disk {device.device} of {seen.host}, which {vm.vm} uses, takes {digits(device.latency_ms or 0)}"
        f" ms{told_before}; it is busy {percent(device.busy)} of the time"
    )
    parts = {each.vm: part_of_disk(each, device) for each in seen.now.vms}
    own = math.fsum(parts.get(name, 0.0) for name in seen.case.vms)
    others = {each.vm: parts[each.vm] for each in seen.others()}
    suspect = max(others, key=lambda name: (others[name], name), default=None)
    if suspect is not None and others[suspect] >= MAIN_PART and others[suspect] > own:
        use = seen.now.of(suspect)
        rate = use.disk_bytes_per_s if use else 0.0
        then_rate = seen.before(suspect).disk_bytes_per_s
        measures.append(_measure(seen, suspect, "disk_bytes_per_s", rate, then_rate))
        evidence.append(
            f"{seen.named(suspect)} does {percent(others[suspect])} of what the disk does, {digits(rate / 1e6)} MB/s"
            f"{_then(seen, then_rate / 1e6, 'MB/s')}"
        )
        return _verdict(VerdictKind.DISK, seen, evidence, measures, suspect)
    if own >= MAIN_PART:
        evidence.append(f"the application's own VMs do {percent(own)} of what the disk does")
    else:
        evidence.append("no single registered VM does most of what the disk does")
    return _verdict(VerdictKind.DISK, seen, evidence, measures)


def part_of_disk(vm: VmResources, device: DeviceUse) -> float:
    """What part of the disk's work is a VM's, in bytes or requests, whichever is more: small requests hurt as well.

    Of a VM whose disks are not told apart, all it does is taken to be on this one.
    """
    found = [disk for disk in vm.disks if disk.device in {device.device, ALL_DISKS}]
    moved = math.fsum(disk.bytes_per_s for disk in found)
    requests = math.fsum(disk.requests_per_s or 0.0 for disk in found)
    return max(_part(moved, device.bytes_per_s), _part(requests, device.requests_per_s))


def _part(of: float, whole: float) -> float:
    return min(of / whole, 1.0) if whole > 0 else 0.0


def _network(seen: _Seen) -> Verdict | None:
    """A VM loses packets, or an uplink of its host is saturated or loses some, while it has traffic."""
    evidence: list[str] = []
    measures: list[Measure] = []
    for vm in sorted(seen.own(), key=lambda vm: (-vm.dropped_packets_per_s, vm.vm)):
        packets = math.fsum(link.packets_per_s for link in vm.interfaces)
        if _loses(vm.dropped_packets_per_s, packets):
            before = seen.before(vm.vm)
            then = before.dropped_packets_per_s
            measures.append(_measure(seen, vm.vm, "dropped_packets_per_s", vm.dropped_packets_per_s, then))
            evidence.append(
                f"{vm.vm} on {seen.host} loses {digits(vm.dropped_packets_per_s)} of {digits(packets)} packets/s"
                f"{_then(seen, then, 'lost/s')}"
            )
            break
    for link in seen.now.uplinks:
        most = max(link.received_bytes_per_s, link.sent_bytes_per_s)
        if link.speed_bytes_per_s and most >= SATURATED * link.speed_bytes_per_s:
            part = percent(most / link.speed_bytes_per_s)
            evidence.append(f"uplink {link.interface} of {seen.host} is used to {part} of its speed")
        elif _loses(link.dropped_packets_per_s, link.packets_per_s):
            evidence.append(
                f"uplink {link.interface} of {seen.host} loses {digits(link.dropped_packets_per_s)} of"
                f" {digits(link.packets_per_s)} packets/s"
            )
    if not evidence:
        return None
    rates = {vm.vm: vm.link_bytes_per_s for vm in seen.now.vms}
    whole = math.fsum(rates.values())
    own = math.fsum(rates.get(name, 0.0) for name in seen.case.vms)
    suspect = _main({vm.vm: rates[vm.vm] for vm in seen.others()}, whole, LEAST_BYTES_PER_S)
    if suspect is None or rates[suspect] <= own:
        evidence.append(
            "no other registered VM has most of the traffic: look at its own rate, its vCPUs and the network"
        )
        return _verdict(VerdictKind.NETWORK, seen, evidence, measures)
    before = seen.before(suspect)
    then = before.link_bytes_per_s
    measures.append(_measure(seen, suspect, "network_bytes_per_s", rates[suspect], then))
    evidence.append(
        f"{seen.named(suspect)} has {percent(rates[suspect] / whole)} of the traffic of VMs,"
        f" {digits(rates[suspect] / 1e6)} MB/s{_then(seen, then / 1e6, 'MB/s')}"
    )
    return _verdict(VerdictKind.NETWORK, seen, evidence, measures, suspect)


def _power(seen: _Seen) -> Verdict | None:
    """Its pCPUs resume slowly from idle, or run slowly; last, as both are so also where nobody minds."""
    for vm in seen.own():
        evidence = tuple(power_evidence(vm, seen.host, seen.case.target_ms))
        if evidence:
            then = seen.then.of(vm.vm) if seen.then is not None else None
            return _verdict(VerdictKind.POWER, seen, evidence, power_measures(vm, then))
    return None


def _loses(dropped_per_s: float, packets_per_s: float) -> bool:
    return dropped_per_s >= DROPS_PER_S and dropped_per_s >= DROPPED_PART * (packets_per_s + dropped_per_s)


def _faults(vm: VmResources) -> float:
    return (vm.major_faults_per_s or 0.0) + (vm.refaults_per_s or 0.0)


def _main(amounts: Mapping[str, float], whole: float, least: float) -> str | None:
    """Who has most of a whole, if that is at least so much."""
    top = max(amounts, key=lambda vm: (amounts[vm], vm), default=None)
    return top if top is not None and amounts[top] >= max(least, MAIN_PART * whole) else None


def _pressed(resource: str, part: float | None) -> str:
    return f"waits for {resource} {percent(part)} of the time (PSI), with " if part is not None else "has "


def _then(seen: _Seen, value: float, unit: str) -> str:
    """What it was before; what was little then is not recorded."""
    if seen.then is None:
        return ""
    return f" (before: {f'{digits(value)} {unit}' if value else 'little'})"


def _measure(seen: _Seen, subject: str, metric: str, during: float | None, before: float | None) -> Measure:
    then = None if seen.then is None else (before or 0.0)
    return Measure(subject, metric, then, during if during is not None else 0.0)  # type: ignore[arg-type]


def _verdict(
    kind: VerdictKind, seen: _Seen, evidence: Iterable[str], measures: Iterable[Measure], vm: str | None = None
) -> Verdict:
    return Verdict(kind, tuple(evidence), vm, seen.host, tuple(measures))
