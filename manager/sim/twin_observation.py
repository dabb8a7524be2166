"""What a recording shows of a host: the part that a twin can be made of, and what each VM used and waited for in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from manager.errors import TwinRefused
from manager.model.host import CPU_SHARES_V1, Capabilities
from manager.model.records import TickRecord, VmTick
from manager.model.registration import Application, Assignment, Mode, VmClass, VmSpec
from manager.model.window import Window
from manager.replay.recording import Recording

LEAST_S = 240.0
LEAST_INTERVALS = 24
"""A recording must have as much under one policy."""
_CLOCK_S = 1e-3
_LONGEST_GAP = 3.0
"""A gap between ticks of more than this many intervals is a time of which nothing is known."""


@dataclass(frozen=True, slots=True)
class RecordedUse:
    """In the ``length_s`` before ``end_s``, a VM used and waited for pCPUs: seconds per second, of all its vCPUs."""

    end_s: float
    length_s: float
    used: float
    waited: float


@dataclass(frozen=True, slots=True)
class ObservedVm:
    """A VM; ``uses`` by time, none for times in which it did not run. ``weight`` is that of its first tick."""

    spec: VmSpec
    vcpus: int
    weight: int | None
    mode: Mode
    uses: tuple[RecordedUse, ...]

    @property
    def critical(self) -> bool:
        """Whether it serves requests under an SLA."""
        return self.spec.vm_class is VmClass.CRITICAL

    @property
    def used(self) -> float:
        """Mean of the pCPUs used while it ran."""
        return _mean(self.uses, [use.used for use in self.uses])

    @property
    def wanted(self) -> float:
        """Mean of the pCPUs used and waited for while it ran, at most one for each vCPU."""
        return min(_mean(self.uses, [use.used + use.waited for use in self.uses]), self.vcpus)


@dataclass(frozen=True, slots=True)
class HostObservation:
    """From ``start_s`` until ``end_s`` (seconds since the epoch) one policy was in force.

    ``interval_s`` between ticks; something is known of the times ``seen``, each with its end and length.
    ``other_pcpus``: what was used beside the VMs, in pCPUs; 0 where VMs may not use all.
    """

    start_s: float
    end_s: float
    interval_s: float
    policy: str
    mode: Mode
    assignment: Assignment
    capabilities: Capabilities
    vms: tuple[ObservedVm, ...]
    windows: tuple[Window, ...]
    other_pcpus: float
    notes: tuple[str, ...]
    seen: tuple[tuple[float, float], ...]

    @property
    def seen_s(self) -> float:
        """Of how much time something is known."""
        return sum(length_s for _, length_s in self.seen)

    @property
    def pcpus(self) -> int:
        """Those that VMs may use."""
        return len(self.capabilities.managed_cpus)

    @property
    def cgroup(self) -> int:
        """The version whose weights are in force."""
        return 1 if self.capabilities.weights == CPU_SHARES_V1 else 2

    def windows_of(self, application: str) -> tuple[Window, ...]:
        """Its response times, oldest first."""
        return tuple(window for window in self.windows if window.application == application)

    def tier_vms(self, application: Application) -> list[list[ObservedVm]]:
        """The VMs of each tier that run here."""
        by_name = {vm.spec.name: vm for vm in self.vms}
        return [[by_name[name] for name in tier.vms if name in by_name] for tier in application.tiers]


def least_s(slot_s: float) -> float:
    """How much of a recording must be under one policy, in seconds; ``slot_s`` between ends of intervals."""
    return max(LEAST_S, LEAST_INTERVALS * slot_s)


def observe(recording: Recording) -> HostObservation:
    """The latest part of a recording under one policy in one mode.

    Raises TwinRefused where it is too short, or VMs may use no pCPU.
    """
    if not recording.capabilities.managed_cpus:
        raise TwinRefused("no pCPU of the host may be given to VMs: see the setting managed_cpus of its agent")
    ticks, notes = _latest_stretch(recording.ticks)
    slot_s = recording.assignment.slot_s
    gaps = [after.time_s - before.time_s for before, after in pairwise(ticks)]
    interval_s = median(gaps) if gaps else slot_s
    start_s = math.floor(ticks[0].time_s / slot_s + 1e-6) * slot_s
    end_s = math.floor(ticks[-1].time_s / slot_s + 1e-6) * slot_s
    if end_s - start_s < least_s(slot_s):
        raise TwinRefused(
            f"the recording has {max(end_s - start_s, 0):.0f} s under policy {ticks[-1].policy}: record"
            f" {least_s(slot_s):.0f} s or more under one policy"
        )
    return _cut(recording, ticks, start_s, end_s, interval_s, notes)


def part(whole: HostObservation, start_s: float, end_s: float) -> HostObservation:
    """What is known of a part of its time; the borders are moved to those of slots."""
    slot_s = whole.assignment.slot_s
    start_s, end_s = (whole.start_s + round((at_s - whole.start_s) / slot_s) * slot_s for at_s in (start_s, end_s))
    last_s = end_s + slot_s / 2
    vms = tuple(
        ObservedVm(
            vm.spec,
            vm.vcpus,
            vm.weight,
            vm.mode,
            tuple(use for use in vm.uses if start_s < use.end_s <= last_s),
        )
        for vm in whole.vms
    )
    return HostObservation(
        start_s,
        end_s,
        whole.interval_s,
        whole.policy,
        whole.mode,
        whole.assignment,
        whole.capabilities,
        vms,
        _within(whole.windows, start_s, end_s),
        whole.other_pcpus,
        whole.notes,
        tuple((at_s, length_s) for at_s, length_s in whole.seen if start_s < at_s <= last_s),
    )


def _latest_stretch(ticks: Sequence[TickRecord]) -> tuple[Sequence[TickRecord], list[str]]:
    """The last ticks that have the same policy and mode; where these are not all, a note says so."""
    last = ticks[-1]
    first = len(ticks)
    while first and (ticks[first - 1].policy, ticks[first - 1].mode) == (last.policy, last.mode):
        first -= 1
    if not first:
        return ticks, []
    before = ticks[first - 1]
    left = f"{first} of {len(ticks)} ticks"
    note = f"{left} are left out: before, policy {before.policy} was in force in mode {before.mode}"
    return ticks[first:], [note]


def _cut(
    recording: Recording, ticks: Sequence[TickRecord], start_s: float, end_s: float, interval_s: float, notes: list[str]
) -> HostObservation:
    registered = {spec.name: spec for spec in recording.assignment.vms}
    vcpus = {vm.vm: vm.vcpus for vm in recording.vms}
    pcpus = len(recording.capabilities.online_cpus)
    seen: dict[str, list[tuple[RecordedUse, VmTick]]] = {}
    others: list[tuple[float, float]] = []
    known: list[tuple[float, float]] = []
    for before, tick in pairwise(ticks):
        length_s = tick.time_s - before.time_s
        if not 0 < length_s <= _LONGEST_GAP * interval_s:
            continue
        known.append((tick.time_s, length_s))
        others.append((length_s, (tick.host_cpu_share - sum(vm.cpu_share for vm in tick.vms)) * pcpus))
        for vm in tick.vms:
            use = RecordedUse(tick.time_s, length_s, vm.cpu_share * pcpus, vm.run_delay_share)
            seen.setdefault(vm.vm, []).append((use, vm))
    unknown = sorted(seen.keys() - (registered.keys() & vcpus.keys()))
    gone = [name for name in unknown if name not in registered]
    stopped = [name for name in unknown if name in registered]
    for why, names in (("no longer registered", gone), ("had stopped when it was recorded", stopped)):
        if names:
            notes.append(f"left out, {why}: {', '.join(names)}; what they used counts as other load")
    lost = [use for name in unknown for use, _ in seen[name]]
    others += [(0.0, use.used * use.length_s) for use in lost]
    vms = tuple(
        ObservedVm(
            registered[name],
            max(vcpus[name], 1),
            rows[0][1].weight,
            Mode(rows[-1][1].mode),
            tuple(use for use, _ in rows),
        )
        for name, rows in sorted(seen.items())
        if name not in unknown
    )
    last = ticks[-1]
    return HostObservation(
        start_s,
        end_s,
        interval_s,
        last.policy,
        Mode(last.mode),
        recording.assignment,
        recording.capabilities,
        vms,
        _within(recording.windows, start_s, end_s),
        max(_other(others), 0.0) if recording.capabilities.managed_cpus == recording.capabilities.online_cpus else 0.0,
        (*notes, *_not_modelled(recording)),
        tuple(known),
    )


def _within(windows: Sequence[Window], start_s: float, end_s: float) -> tuple[Window, ...]:
    return tuple(
        window for window in windows if window.start_s >= start_s - _CLOCK_S and window.end_s <= end_s + _CLOCK_S
    )


def _other(parts: Sequence[tuple[float, float]]) -> float:
    """Mean of pCPUs; a part without length is in CPU seconds."""
    total_s = sum(length_s for length_s, _ in parts)
    return sum(value * length_s if length_s else value for length_s, value in parts) / total_s if total_s else 0.0


def _not_modelled(recording: Recording) -> list[str]:
    """What was in force and is not simulated."""
    host, topology = recording.assignment.host, recording.capabilities.topology
    found: list[str] = []
    if host.warp != "off":
        found.append("warps are not modelled")
    if host.cache != "off":
        found.append("cache partitions are not modelled")
    managed = recording.capabilities.managed_cpus
    if len({cpu.core for cpu in topology.cpus if cpu.number in managed}) < len(managed & topology.numbers):
        found.append("hyperthreads count as whole pCPUs")
    if managed != recording.capabilities.online_cpus:
        found.append("other load of the pCPUs that VMs may use is not known, as the host has more of them")
    if not recording.capabilities.schedstat:
        found.append("vCPU waits are not known on this host: batch VMs want as much as they got")
    return found


def _mean(uses: Sequence[RecordedUse], values: Sequence[float]) -> float:
    total_s = sum(use.length_s for use in uses)
    return sum(use.length_s * value for use, value in zip(uses, values, strict=True)) / total_s if total_s else 0.0
