"""How fast pCPUs wake up and clock: what the kernel offers for it, as knobs hold it."""

from __future__ import annotations

from dataclasses import dataclass

from manager.model.cpus import CpuSet

ANY_LATENCY, NO_LATENCY = -1, 0
"""A pCPU may take as long to resume as its idle states do, or must not take any time: it polls."""
MOST_LATENCY_US = 10_000
ANOTHER_GOVERNOR, PERFORMANCE = 0, 1
GOVERNORS = ("", "performance", "powersave", "schedutil", "ondemand", "conservative", "userspace")
"""By number. Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst; the first stands for any other."""


@dataclass(frozen=True, slots=True)
class ClockDomain:
    """pCPUs that share a clock, and so a governor. ``performance``: that governor is among those offered."""

    cpus: CpuSet
    performance: bool
