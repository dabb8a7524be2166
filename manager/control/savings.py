"""What sharing a host saves: beside two hosts that would do the same apart, by total cost of ownership and energy.

The model is that of Leverich and Kozyrakis, "Reconciling High Server Utilization and Sub-millisecond
Quality-of-Service" (EuroSys 2014), table 2, after Patel and Shah (HP Laboratories, 2005): TCO = server + power over its
life; power grows linearly with CPU use; power's cost is burdened with that of what delivers and cools it. Its constants
are the defaults. Batch work is measured by CPU time, where the study counted instructions: what the two take from each
other in the caches is not in it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from manager.model.costs import HostCosts

HOURS_PER_YEAR = 24 * 365
MEASURED_PART = 0.5
"""Energy that was measured for this part of a host's hours counts for all of them; else the model's does."""


class EnergySource(StrEnum):
    """Where a figure of energy comes from. ``mixed``: of some hosts from RAPL, of the others from the model."""

    RAPL = "rapl"
    MODEL = "model"
    MIXED = "mixed"


ENERGY_WORDS: Mapping[EnergySource, str] = {
    EnergySource.RAPL: "measured (RAPL)",
    EnergySource.MODEL: "model",
    EnergySource.MIXED: "measured (RAPL) or model",
}
"""The same as people read it."""


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


def model_of(costs: HostCosts) -> CostModel:
    """The model with the costs of a host."""
    return CostModel(
        server_usd=costs.server_usd,
        years=costs.years,
        usd_per_kwh=costs.usd_per_kwh,
        peak_kw=costs.peak_watts / 1000,
        idle_part=costs.idle_part,
        k1=costs.delivery_factor,
        l1=costs.cooling_factor,
        k2=costs.cooling_capital_factor,
    )


@dataclass(frozen=True, slots=True)
class HostUse:
    """Mean shares of a host's CPU time, 0 .. 1, over ``hours`` that were measured. ``other``: of no registered VM.

    ``rapl_kwh`` is the energy that RAPL counted in ``rapl_hours`` of them.
    """

    host: str
    critical: float
    batch: float
    other: float
    hours: float
    rapl_kwh: float = 0.0
    rapl_hours: float = 0.0

    @property
    def measured_kwh(self) -> float | None:
        """Energy in all the hours, by the mean power that was measured; None: in too few of them."""
        if not self.rapl_hours or self.rapl_hours < MEASURED_PART * self.hours:
            return None
        return self.rapl_kwh * self.hours / self.rapl_hours

    @property
    def total(self) -> float:
        """Of all CPU time, what was used."""
        return min(self.critical + self.batch + self.other, 1.0)


def use_of_history(host: str, history: Mapping[str, Any]) -> HostUse:
    """Means over what was measured, of a host's history as the interface answers it."""
    steps = [step for step in history["steps"] if step["host_cpu_share"] is not None]

    def mean(name: str) -> float:
        return sum(step[name] or 0.0 for step in steps) / len(steps) if steps else 0.0

    step_h = history["step_s"] / 3600
    watts = [step["power_watts"] for step in steps if step.get("power_watts") is not None]
    return HostUse(
        host,
        mean("critical_share"),
        mean("batch_share"),
        mean("other_share"),
        len(steps) * step_h,
        sum(watts) * step_h / 1000,
        len(watts) * step_h,
    )


_FEW_STEPS = 2


def use_between(
    host: str, read: Callable[[datetime, datetime], Mapping[str, Any]], since: datetime, until: datetime
) -> HostUse:
    """Means over what was measured between two times, of which ``read`` gives the history as the interface answers it.

    Where that is in very few of its steps, as of a new host, these are read again in finer ones: a step counts as a
    whole, of whatever part of it something is known.
    """
    history = read(since, until)
    steps = history["steps"]
    known = [place for place, step in enumerate(steps) if step["host_cpu_share"] is not None]
    span = known[-1] + 1 - known[0] if known else 0
    if not 0 < span <= _FEW_STEPS or len(steps) <= 2 * span:
        return use_of_history(host, history)
    first, last = (datetime.fromisoformat(steps[place]["start"]) for place in (known[0], known[-1]))
    return use_between(host, read, max(first, since), min(last + timedelta(seconds=history["step_s"]), until))


@dataclass(frozen=True, slots=True)
class Savings:
    """Of a host, or of several: ``servers`` did what ``servers`` and ``saved_servers`` would do apart.

    ``gain``: throughput per TCO-$ over that of separate servers, less 1. Costs are per year of use. Energy is that of
    the measured hours; ``batch_kwh`` is what batch VMs added to it. Where it was measured (``energy_source``), that and
    ``saved_kwh`` are the model's in proportion: nobody measured the servers apart.
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
    energy_source: EnergySource
    hours: float


@dataclass(frozen=True, slots=True)
class CostedUse:
    """How a host was used, and the model with its own costs."""

    use: HostUse
    model: CostModel

    @property
    def shared_usd_per_year(self) -> float:
        """Cost of the host as it is used."""
        return self.model.tco_usd(self.use.total) / self.model.years

    @property
    def apart_usd_per_year(self) -> float:
        """Of a server like it without batch VMs, and of the part of a full one that does the work of these."""
        critical_usd = self.model.tco_usd(self.use.total - self.use.batch)
        return (critical_usd + self.use.batch * self.model.tco_usd(1.0)) / self.model.years


def saved_by(hosts: Sequence[CostedUse]) -> Savings | None:
    """What these hosts save together, each by its own costs; None: nothing was measured.

    Apart, each host would serve its critical VMs alone, and full servers like it would do the work of its batch VMs.
    """
    measured = [host for host in hosts if host.use.hours > 0]
    if not measured:
        return None
    servers, batch = len(measured), sum(host.use.batch for host in measured)
    together_usd = sum(host.shared_usd_per_year for host in measured)
    apart_usd = sum(host.apart_usd_per_year for host in measured)
    energies = [_energy(host.use, host.model) for host in measured]
    sources = {energy.source for energy in energies}
    return Savings(
        servers=servers,
        saved_servers=batch,
        utilisation=sum(host.use.total for host in measured) / servers,
        critical=sum(host.use.critical for host in measured) / servers,
        gain=apart_usd / together_usd - 1 if together_usd else 0.0,
        together_usd_per_year=together_usd,
        apart_usd_per_year=apart_usd,
        energy_kwh=sum(energy.used_kwh for energy in energies),
        batch_kwh=sum(energy.batch_kwh for energy in energies),
        saved_kwh=sum(energy.saved_kwh for energy in energies),
        energy_source=sources.pop() if len(sources) == 1 else EnergySource.MIXED,
        hours=sum(host.use.hours for host in measured) / servers,
    )


@dataclass(frozen=True, slots=True)
class _Energy:
    """Of a host in its measured hours: used, of it by batch VMs, and saved by sharing."""

    used_kwh: float
    batch_kwh: float
    saved_kwh: float
    source: EnergySource


def _energy(use: HostUse, model: CostModel) -> _Energy:
    used_kw, alone_kw = model.power_kw(use.total), model.power_kw(use.total - use.batch)
    added_kw, saved_kw = used_kw - alone_kw, alone_kw + use.batch * model.power_kw(1.0) - used_kw
    if use.measured_kwh is None:
        return _Energy(used_kw * use.hours, added_kw * use.hours, saved_kw * use.hours, EnergySource.MODEL)
    kwh_per_kw = use.measured_kwh / used_kw if used_kw else 0.0
    return _Energy(use.measured_kwh, added_kw * kwh_per_kw, saved_kw * kwh_per_kw, EnergySource.RAPL)
