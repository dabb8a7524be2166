"""How often a pCPU resumed from idle and how long that takes, and its clock, from sysfs."""

from __future__ import annotations

from pathlib import Path

from manager.host.files import names_in, number_of
from manager.host.registry import HostPaths
from manager.model.resource_use import PcpuPower


def read_power(paths: HostPaths, cpu: int) -> PcpuPower | None:
    """None where the kernel chooses neither idle states nor frequencies. Raises OSError, ValueError.

    ``usage`` and ``latency`` of each state of Documentation/admin-guide/pm/cpuidle.rst: what a state is said to take,
    not what it took. The clock is that of scaling_cur_freq, which of an idle pCPU may be what it last was.
    """
    folder = paths.cpu(cpu)
    states = [_state(folder / "cpuidle" / name) for name in names_in(folder / "cpuidle")]
    clock_khz = number_of(folder / "cpufreq/scaling_cur_freq")
    most_khz = number_of(folder / "cpufreq/cpuinfo_max_freq")
    if not states and (clock_khz is None or not most_khz):
        return None
    resumes = sum(usage for usage, _ in states) if states else None
    return PcpuPower(resumes, sum(usage * latency_us for usage, latency_us in states), clock_khz, most_khz)


def _state(folder: Path) -> tuple[int, int]:
    return number_of(folder / "usage") or 0, number_of(folder / "latency") or 0
