"""Ticks of hosts as lines of a chart: means over steps, for each VM, for the classes of VMs and for the host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from manager.control.budget import Steps
from manager.model.fields import WIRE, Count, EpochS, Name
from manager.model.records import TickRecord, VmTick
from manager.model.registration import Mode, VmClass

Line = list[float | None]
"""One value per step; None where there is no tick."""
_ALIGNED = "one value per step, null: no data"


@dataclass(frozen=True, slots=True)
class VmLines:
    """A VM on a host over the steps of a history: shares are means over the ticks with the VM."""

    vm: Name
    host: Name
    vm_class: Annotated[VmClass, Field(alias="class")]
    cpu_share: Annotated[Line, Field(description=f"mean fraction of the host's CPU time; {_ALIGNED}")]
    run_delay_share: Annotated[
        Line, Field(description=f"mean seconds per second that its vCPUs waited for a pCPU; {_ALIGNED}")
    ]
    weight: Annotated[list[int | None], Field(description="last of each step")]
    mode: Annotated[list[Mode | None], Field(description="last of each step")]
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class HostStep:
    """How a host's CPU time was used in a step that begins at ``start_s``; null: no ticks."""

    start_s: Annotated[EpochS, Field(alias="start")]
    ticks: Annotated[Count, Field(description="ticks that the means are of")]
    host_cpu_share: float | None
    critical_share: float | None
    batch_share: float | None
    other_share: Annotated[float | None, Field(description="what no registered VM used")]
    __pydantic_config__: ClassVar = WIRE


def host_lines(
    host: str, ticks: Iterable[TickRecord], classes: Mapping[str, VmClass], steps: Steps, late_s: float = 0.0
) -> tuple[list[HostStep], list[VmLines]]:
    """The ticks of a host, oldest first, in the steps in which they were ``late_s`` before; others are passed over.

    ``classes`` are those of the registered VMs, only of which there are lines.
    """
    counts, busy = [0] * steps.count, [0.0] * steps.count
    used = {kind: [0.0] * steps.count for kind in VmClass}
    seen: dict[str, list[list[VmTick]]] = {}
    for tick in ticks:
        step = math.floor((tick.time_s - late_s - steps.first_s) / steps.step_s)
        if not 0 <= step < steps.count:
            continue
        counts[step] += 1
        busy[step] += tick.host_cpu_share
        for vm in tick.vms:
            kind = classes.get(vm.vm)
            if kind is not None:
                used[kind][step] += vm.cpu_share
                of_vm = seen.get(vm.vm) or seen.setdefault(vm.vm, [[] for _ in range(steps.count)])
                of_vm[step].append(vm)
    columns = (steps.starts_s, counts, busy, used[VmClass.CRITICAL], used[VmClass.BATCH])
    of_host = [_host_step(*column) for column in zip(*columns, strict=True)]
    return of_host, [_vm_lines(name, host, classes[name], seen[name]) for name in sorted(seen)]


def _host_step(start_s: float, ticks: int, busy_sum: float, critical_sum: float, batch_sum: float) -> HostStep:
    busy, critical, batch = (_mean(total, ticks) for total in (busy_sum, critical_sum, batch_sum))
    other = None if busy is None else max(0.0, round(busy - (critical or 0.0) - (batch or 0.0), 5))
    return HostStep(start_s, ticks, busy, critical, batch, other)


def _vm_lines(vm: str, host: str, vm_class: VmClass, steps: Sequence[Sequence[VmTick]]) -> VmLines:
    return VmLines(
        vm,
        host,
        vm_class,
        [_mean(sum(tick.cpu_share for tick in ticks), len(ticks)) for ticks in steps],
        [_mean(sum(tick.run_delay_share for tick in ticks), len(ticks)) for ticks in steps],
        [ticks[-1].weight if ticks else None for ticks in steps],
        [ticks[-1].mode if ticks else None for ticks in steps],
    )


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 5) if count else None
