"""Whether the power settings of pCPUs hold up a VM: they take long to resume from idle, or run at a low clock."""

from __future__ import annotations

from collections.abc import Iterator

from manager.control.violation_case import Measure
from manager.model.numbers import digits
from manager.model.resource_use import VmResources
from manager.model.units import percent

RESUME_PART = 0.1
"""A mean time to resume from idle of this part of the SLA's target is material,"""
SLOW_CLOCK = 0.7
"""and a clock of this part of the highest, or less."""


def power_evidence(vm: VmResources, host: str, target_ms: float | None) -> Iterator[str]:
    """Sentences with numbers; none: its pCPUs are awake and fast enough, or that is not measured."""
    resume_us = vm.resume_us
    if resume_us is not None and target_ms is not None and resume_us >= RESUME_PART * target_ms * 1000:
        yield (
            f"the pCPUs that {vm.vm} on {host} is pinned to take {digits(resume_us)} us on average to resume from idle,"
            f" of a target of {target_ms:g} ms: set resume_latency_us"
        )
    if vm.clock_part is not None and vm.clock_part <= SLOW_CLOCK:
        yield (
            f"the pCPUs that {vm.vm} on {host} is pinned to run at {percent(vm.clock_part)} of their highest clock:"
            " set performance_governor"
        )


def power_measures(now: VmResources, then: VmResources | None) -> list[Measure]:
    """What was measured of it; ``then`` None: nothing from before."""
    measures: list[Measure] = []
    if now.resume_us is not None:
        measures.append(Measure(now.vm, "resume_us", then.resume_us if then else None, now.resume_us))
    if now.clock_part is not None:
        measures.append(Measure(now.vm, "clock_part", then.clock_part if then else None, now.clock_part))
    return measures
