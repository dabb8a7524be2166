"""Ticks of hosts as lines of a chart: means over steps, for each VM, for the classes of VMs and for the host."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from manager.control.budget import Steps
from manager.control.power_shares import vm_watts
from manager.model.costs import STUDY_COSTS
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
    power_watts: Annotated[
        Line,
        Field(description=f"its part of the host's power by CPU time, without the idle part; {_ALIGNED}, or no power"),
    ]
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
    power_watts: Annotated[
        float | None, Field(description="of processors and their memory, by RAPL; null: not measured")
    ] = None
    __pydantic_config__: ClassVar = WIRE


def host_lines(
    host: str,
    ticks: Iterable[TickRecord],
    classes: Mapping[str, VmClass],
    steps: Steps,
    late_s: float = 0.0,
    idle_part: float = STUDY_COSTS.idle_part,
) -> tuple[list[HostStep], list[VmLines]]:
    """The ticks of a host, oldest first, in the steps in which they were ``late_s`` before; others are passed over.

    ``classes`` are those of the registered VMs, only of which there are lines; ``idle_part`` is that of the host's
    costs.
    """
    counts, busy = [0] * steps.count, [0.0] * steps.count
    powers: list[list[float]] = [[] for _ in range(steps.count)]
    used = {kind: [0.0] * steps.count for kind in VmClass}
    seen: dict[str, list[list[VmTick]]] = {}
    for tick in ticks:
        step = math.floor((tick.time_s - late_s - steps.first_s) / steps.step_s)
        if not 0 <= step < steps.count:
            continue
        counts[step] += 1
        busy[step] += tick.host_cpu_share
        if tick.power_watts is not None:
            powers[step].append(tick.power_watts)
        for vm in tick.vms:
            kind = classes.get(vm.vm)
            if kind is not None:
                used[kind][step] += vm.cpu_share
                of_vm = seen.get(vm.vm) or seen.setdefault(vm.vm, [[] for _ in range(steps.count)])
                of_vm[step].append(vm)
    columns = (steps.starts_s, counts, busy, used[VmClass.CRITICAL], used[VmClass.BATCH], powers)
    of_host = [_host_step(*column) for column in zip(*columns, strict=True)]
    return of_host, [_vm_lines(name, classes[name], seen[name], host, of_host, idle_part) for name in sorted(seen)]


def _host_step(
    start_s: float, ticks: int, busy_sum: float, critical_sum: float, batch_sum: float, watts: Sequence[float]
) -> HostStep:
    busy, critical, batch = (_mean(total, ticks) for total in (busy_sum, critical_sum, batch_sum))
    other = None if busy is None else max(0.0, round(busy - (critical or 0.0) - (batch or 0.0), 5))
    return HostStep(start_s, ticks, busy, critical, batch, other, _mean(sum(watts), len(watts)))


def _vm_lines(
    vm: str,
    vm_class: VmClass,
    steps: Sequence[Sequence[VmTick]],
    host: str,
    of_host: Sequence[HostStep],
    idle_part: float,
) -> VmLines:
    shares = [_mean(sum(tick.cpu_share for tick in ticks), len(ticks)) for ticks in steps]
    return VmLines(
        vm,
        host,
        vm_class,
        shares,
        [_mean(sum(tick.run_delay_share for tick in ticks), len(ticks)) for ticks in steps],
        [ticks[-1].weight if ticks else None for ticks in steps],
        [ticks[-1].mode if ticks else None for ticks in steps],
        [_vm_watts(step, share, idle_part) for step, share in zip(of_host, shares, strict=True)],
    )


def _vm_watts(step: HostStep, cpu_share: float | None, idle_part: float) -> float | None:
    if step.power_watts is None or step.host_cpu_share is None or cpu_share is None:
        return None
    return round(vm_watts(step.power_watts, idle_part, step.host_cpu_share, cpu_share), 2)


def _mean(total: float, count: int) -> float | None:
    return round(total / count, 5) if count else None
