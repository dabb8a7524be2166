"""What sharing a host saves: beside two hosts that would do the same apart, by total cost of ownership and energy.

The model is that of Leverich and Kozyrakis, "Reconciling High Server Utilization and Sub-millisecond
Quality-of-Service" (EuroSys 2014), table 2, after Patel and Shah (HP Laboratories, 2005): TCO = server + power over its
life; power grows linearly with CPU use; power's cost is burdened with that of what delivers and cools it. Its constants
are the defaults. Batch work is measured by CPU time, where the study counted instructions: what the two take from each
other in the caches is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HOURS_PER_YEAR = 24 * 365


@dataclass(frozen=True, slots=True)
class CostModel:
    """``idle_part``: of the peak power, what an idle server draws. ``k1``, ``l1``, ``k2``: burden factors of power
    delivery, of cooling, and of the capital for that.
    """

    server_usd: float = 2000.0
    years: float = 3.0
    usd_per_kwh: float = 0.08
    peak_kw: float = 0.3
    idle_part: float = 0.5
    k1: float = 1.33
    l1: float = 0.8
    k2: float = 0.25

    def power_kw(self, cpu_share: float) -> float:
        """Of a server whose CPUs are used so much, 0 .. 1."""
        return self.peak_kw * (self.idle_part + (1 - self.idle_part) * cpu_share)

    @property
    def burden(self) -> float:
        """Of each dollar for electricity, what is paid in all."""
        return 1 + self.k1 + self.l1 + self.k2 * self.l1

    def tco_usd(self, cpu_share: float) -> float:
        """Of such a server over its life."""
        energy_kwh = self.power_kw(cpu_share) * HOURS_PER_YEAR * self.years
        return self.server_usd + self.burden * self.usd_per_kwh * energy_kwh


COST_RANGES: Mapping[str, tuple[float, float]] = {
    "server_usd": (0, 1e7),
    "years": (0.1, 20),
    "usd_per_kwh": (0, 100),
    "peak_watts": (1, 1e5),
    "idle_percent": (0, 100),
}
"""Least and largest value of each cost, as people give them."""
_STUDY = CostModel()
STUDY_COSTS: Mapping[str, float] = {
    "server_usd": _STUDY.server_usd,
    "years": _STUDY.years,
    "usd_per_kwh": _STUDY.usd_per_kwh,
    "peak_watts": 1000 * _STUDY.peak_kw,
    "idle_percent": 100 * _STUDY.idle_part,
}


def model_of(costs: Mapping[str, float]) -> CostModel:
    """The model with these costs, all of ``COST_RANGES``."""
    return CostModel(
        server_usd=costs["server_usd"],
        years=costs["years"],
        usd_per_kwh=costs["usd_per_kwh"],
        peak_kw=costs["peak_watts"] / 1000,
        idle_part=costs["idle_percent"] / 100,
    )


@dataclass(frozen=True, slots=True)
class HostUse:
    """Mean shares of a host's CPU time, 0 .. 1, over ``hours`` that were measured. ``other``: of no registered VM."""

    host: str
    critical: float
    batch: float
    other: float
    hours: float

    @property
    def total(self) -> float:
        """Of all CPU time, what was used."""
        return min(self.critical + self.batch + self.other, 1.0)


def use_of_history(host: str, history: Mapping[str, Any]) -> HostUse:
    """Means over what was measured, of a host's history as the interface answers it."""
    steps = [step for step in history["steps"] if step["host_cpu_share"] is not None]

    def mean(name: str) -> float:
        return sum(step[name] or 0.0 for step in steps) / len(steps) if steps else 0.0

    hours = len(steps) * history["step_s"] / 3600
    return HostUse(host, mean("critical_share"), mean("batch_share"), mean("other_share"), hours)


@dataclass(frozen=True, slots=True)
class Savings:
    """Of a host, or of several: ``servers`` did what ``servers`` and ``saved_servers`` would do apart.

    ``gain``: throughput per TCO-$ over that of separate servers, less 1. Costs are per year of use. Energy is that of
    the measured hours, by the model; ``batch_kwh`` is what batch VMs added to it.
    """

    servers: int
    saved_servers: float
    utilisation: float
    critical: float
    gain: float
    together_usd_per_year: float
    apart_usd_per_year: float
    energy_kwh: float
    batch_kwh: float
    saved_kwh: float
    hours: float


def saved_by(uses: Sequence[HostUse], model: CostModel) -> Savings | None:
    """What these hosts save together; None: nothing was measured.

    Apart, each host would serve its critical VMs alone, and full servers would do the work of all batch VMs.
    """
    measured = [use for use in uses if use.hours > 0]
    if not measured:
        return None
    servers, batch = len(measured), sum(use.batch for use in measured)
    together_usd = sum(model.tco_usd(use.total) for use in measured)
    apart_usd = sum(model.tco_usd(use.total - use.batch) for use in measured) + batch * model.tco_usd(1.0)
    energy_kwh = sum(model.power_kw(use.total) * use.hours for use in measured)
    alone_kwh = sum(model.power_kw(use.total - use.batch) * use.hours for use in measured)
    elsewhere_kwh = sum(use.batch * model.power_kw(1.0) * use.hours for use in measured)
    return Savings(
        servers=servers,
        saved_servers=batch,
        utilisation=sum(use.total for use in measured) / servers,
        critical=sum(use.critical for use in measured) / servers,
        gain=apart_usd / together_usd - 1,
        together_usd_per_year=together_usd / model.years,
        apart_usd_per_year=apart_usd / model.years,
        energy_kwh=energy_kwh,
        batch_kwh=energy_kwh - alone_kwh,
        saved_kwh=alone_kwh + elsewhere_kwh - energy_kwh,
        hours=sum(use.hours for use in measured) / servers,
    )
