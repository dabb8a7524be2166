"""The energy of a host between two readings of RAPL's counters, and whose its power is."""

from __future__ import annotations

from manager.model.energy import EnergyCounter, EnergyPart, EnergyUse
from manager.model.resource_use import HostCounters

MOST_DOMAIN_WATTS = 2000.0
"""No processor, and no memory of one, draws more: what seems to is a counter that began anew."""


def energy_used(now: HostCounters, before: HostCounters) -> EnergyUse | None:
    """What was used between two readings; None: not counted, or not all of it is known.

    That is so where a domain came or went, or may have begun again at 0 more than once: by the kernel's
    Documentation/power/powercap/powercap.rst nothing but the value says that it did.
    """
    elapsed_s = now.monotonic_s - before.monotonic_s
    if elapsed_s <= 0 or not now.energy or now.energy.keys() != before.energy.keys():
        return None
    joules: dict[EnergyPart, float] = {}
    for domain, counter in now.energy.items():
        used_j = _used_j(counter, before.energy[domain], elapsed_s)
        if used_j is None:
            return None
        joules[counter.part] = joules.get(counter.part, 0.0) + used_j
    return EnergyUse(joules.get(EnergyPart.PACKAGE, 0.0), joules.get(EnergyPart.DRAM), elapsed_s)


def _used_j(now: EnergyCounter, before: EnergyCounter, elapsed_s: float) -> float | None:
    most_uj = MOST_DOMAIN_WATTS * elapsed_s * 1e6
    if most_uj > now.range_uj:
        return None
    used_uj = now.energy_uj - before.energy_uj
    if used_uj < 0:
        used_uj += now.range_uj
    return used_uj / 1e6 if 0 <= used_uj <= most_uj else None


def idle_watts(power_watts: float, idle_part: float, busy_share: float) -> float:
    """Of a host's power, the part that it would draw idle.

    ``idle_part``: of the power at full CPU use, what the idle host draws, 0 .. 1; ``busy_share``: of all CPU time, what
    was used. Power that grows linearly from ``idle_part`` to 1 gives the parts; what was measured is divided by them.
    """
    of_all = idle_part + (1 - idle_part) * busy_share
    return power_watts * idle_part / of_all if of_all else 0.0


def vm_watts(power_watts: float, idle_part: float, busy_share: float, cpu_share: float) -> float:
    """Of a host's power, the part of a VM with this share of all CPU time, by CPU time and without the idle part."""
    if not busy_share:
        return 0.0
    return (power_watts - idle_watts(power_watts, idle_part, busy_share)) * min(cpu_share / busy_share, 1.0)
