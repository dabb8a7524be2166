"""Ticks of hosts as lines of a chart: means over steps, for each VM, for the classes of VMs and for the host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from manager.model.records import TickRecord
from manager.model.registration import VmClass

Line = list[float | None]
"""A value a step; None where no tick tells."""


@dataclass(frozen=True, slots=True)
class VmLines:
    """A VM; ``weight`` and ``mode`` are the last of each step, shares means over those ticks that tell of the VM."""

    vm: str
    cpu_share: Line
    run_delay_share: Line
    weight: list[int | None]
    mode: list[str | None]


@dataclass(frozen=True, slots=True)
class HostLines:
    """A host; ``other_share`` is what no registered VM used."""

    ticks: list[int]
    host_cpu_share: Line
    critical_share: Line
    batch_share: Line
    other_share: Line
    vms: tuple[VmLines, ...]


@dataclass(slots=True)
class _Sums:
    """Of one VM in one step."""

    ticks: int = 0
    cpu_share: float = 0.0
    run_delay_share: float = 0.0
    weight: int | None = None
    mode: str = ""


@dataclass(slots=True)
class _HostSums:
    ticks: int = 0
    busy: float = 0.0
    by_class: dict[VmClass, float] = field(default_factory=lambda: dict.fromkeys(VmClass, 0.0))


def host_lines(
    ticks: Iterable[TickRecord], classes: Mapping[str, VmClass], first_s: float, step_s: float, steps: int
) -> HostLines:
    """The ticks of a host, oldest first, in ``steps`` steps from ``first_s`` on; others are passed over.

    ``classes`` are those of the registered VMs, only of which there are lines.
    """
    hosts = [_HostSums() for _ in range(steps)]
    vms: dict[str, dict[int, _Sums]] = {name: {} for name in sorted(classes)}
    for tick in ticks:
        place = math.floor((tick.time_s - first_s) / step_s)
        if not 0 <= place < steps:
            continue
        host = hosts[place]
        host.ticks += 1
        host.busy += tick.host_cpu_share
        for vm in tick.vms:
            name = vm.vm
            kind = classes.get(name)
            if kind is None:
                continue
            share = vm.cpu_share
            host.by_class[kind] += share
            sums = vms[name].get(place)
            if sums is None:
                sums = vms[name][place] = _Sums()
            sums.ticks += 1
            sums.cpu_share += share
            sums.run_delay_share += vm.run_delay_share
            sums.weight = vm.weight
            sums.mode = vm.mode
    means = {kind: [_mean(host.by_class[kind], host.ticks) for host in hosts] for kind in VmClass}
    busy = [_mean(host.busy, host.ticks) for host in hosts]
    other = [
        None if all_of is None else max(0.0, round(all_of - (critical or 0.0) - (batch or 0.0), 5))
        for all_of, critical, batch in zip(busy, means[VmClass.CRITICAL], means[VmClass.BATCH], strict=True)
    ]
    return HostLines(
        [host.ticks for host in hosts],
        busy,
        means[VmClass.CRITICAL],
        means[VmClass.BATCH],
        other,
        tuple(_vm_lines(name, sums, steps) for name, sums in vms.items() if sums),
    )


def _vm_lines(name: str, sums: Mapping[int, _Sums], steps: int) -> VmLines:
    parts = [sums.get(place) for place in range(steps)]
    return VmLines(
        name,
        [_mean(part.cpu_share, part.ticks) if part else None for part in parts],
        [_mean(part.run_delay_share, part.ticks) if part else None for part in parts],
        [part.weight if part else None for part in parts],
        [part.mode if part else None for part in parts],
    )


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 5) if count else None
