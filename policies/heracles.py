"""`heracles`: critical VMs share pCPUs; batch VMs have others, as many as the slack of response times allows.

Lo, Cheng, Govindaraju, Ranganathan, Kozyrakis, "Heracles: improving resource efficiency at scale", ISCA 2015,
section 4. What is left out and why is in docs/concepts/policies.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from manager.control.feedback_law import rate_over
from manager.model.cpus import CpuSet, format_cpus
from manager.model.decision import ApplicationView, CpusGoal, Decision, Memory, Snapshot
from manager.model.registration import Sla
from manager.model.units import percent
from policies.cores import (
    batch_vms,
    cpus_goal,
    least_quotas,
    managed,
    ordered_cpus,
    owner_of,
    owners,
    recent_percentile_ms,
    weight_goals,
)

TOP_S = 15.0
"""So often slack and load are looked at."""
CORES_S = 2.0
"""So often batch VMs may get a pCPU more."""
COOL_DOWN_S = 300.0
"""For so long batch VMs stay off after a violation."""
HIGH_LOAD, LOW_LOAD = 0.85, 0.80
"""Shares of the peak load above which batch VMs are off, and below which they are on."""
GROWTH_SLACK = 0.10
"""With less, batch VMs do not grow."""
SMALL_SLACK = 0.05
"""With less, they keep ``LEFT_CORES``."""
LEFT_CORES = 2
_EARLY_S = 1e-3
"""A loop that is due within this is due: times are computed in floating point."""


@dataclass(frozen=True, slots=True)
class Load:
    """What the top controller goes by: the least slack and the largest load of all applications, where known."""

    slack: float | None = None
    load: float | None = None


@dataclass(frozen=True, slots=True)
class HeraclesMemory:
    """The memory of this policy; times are steady seconds.

    ``cores`` are the pCPUs of batch VMs while they are ``on``; ``growth``: they may get more. ``cool_until_s`` is when
    they may be on again, ``top_s`` and ``cores_s`` when each loop ran last. ``peaks_rps`` are the largest rates seen.
    """

    cores: int = 1
    on: bool = True
    growth: bool = False
    slack: float | None = None
    cool_until_s: float | None = None
    top_s: float | None = None
    cores_s: float | None = None
    peaks_rps: Mapping[str, float] = field(default_factory=dict)
    reason: str = "begins with one pCPU"


@dataclass(frozen=True, slots=True)
class Heracles:
    """Batch VMs grow while response times allow it, and go off at once when they do not."""

    name: str = "heracles"
    summary: str = "Baseline (Heracles, 2015): batch VMs get pCPUs while slack and load of critical ones allow it."
    sample_s: float = 1.0

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        """The pCPUs of every managed VM, its weight, and the quota of batch VMs that are off."""
        kept = memory if isinstance(memory, HeraclesMemory) else HeraclesMemory()
        now_s, published = snapshot.steady_s, snapshot.host.law.published
        rates_rps = _rates_rps(snapshot)
        kept = replace(kept, peaks_rps=_peaks_rps(kept.peaks_rps, rates_rps))
        if _due(kept.top_s, TOP_S, now_s):
            load = Load(_slack(snapshot, TOP_S), _load(snapshot, rates_rps, kept.peaks_rps))
            decide = top_as_printed if published else top
            kept = replace(decide(kept, load, now_s), slack=load.slack, top_s=now_s)
        if _due(kept.cores_s, CORES_S, now_s):
            slack = kept.slack if published else _slack(snapshot, CORES_S)
            kept = replace(grow(kept, slack, _most_cores(snapshot)), cores_s=now_s)
        return _decision(self.name, snapshot, kept)


def _due(last_s: float | None, every_s: float, now_s: float) -> bool:
    return last_s is None or now_s - last_s >= every_s - _EARLY_S


def top(kept: HeraclesMemory, seen: Load, now_s: float) -> HeraclesMemory:
    """The top controller as the paper describes it: slack limits growth whenever batch VMs are not put off."""
    after = _off(kept, seen, now_s)
    if after is not None:
        return after
    kept = _on(kept, now_s) if seen.load is None or seen.load < LOW_LOAD else kept
    if seen.slack is None:
        return replace(kept, growth=False)
    return _guarded(replace(kept, growth=True), seen.slack)


def top_as_printed(kept: HeraclesMemory, seen: Load, now_s: float) -> HeraclesMemory:
    """The same as the paper prints it: one chain, so that slack limits growth only between the two loads."""
    after = _off(kept, seen, now_s)
    if after is not None:
        return after
    if seen.load is None or seen.load < LOW_LOAD:
        return replace(_on(kept, now_s), growth=True)
    return kept if seen.slack is None else _guarded(kept, seen.slack)


def _off(kept: HeraclesMemory, seen: Load, now_s: float) -> HeraclesMemory | None:
    """Batch VMs off where the SLA is violated or the load is high; None where neither is."""
    if seen.slack is not None and seen.slack < 0:
        text = f"off for {COOL_DOWN_S:g} s: slack {percent(seen.slack)}"
        return replace(kept, on=False, growth=False, cool_until_s=now_s + COOL_DOWN_S, reason=text)
    if seen.load is not None and seen.load > HIGH_LOAD:
        return replace(kept, on=False, growth=False, reason=f"off: load {percent(seen.load)} of its peak")
    return None


def _on(kept: HeraclesMemory, now_s: float) -> HeraclesMemory:
    """Batch VMs on, with one pCPU if they were off, unless that is too soon."""
    if kept.on or (kept.cool_until_s is not None and now_s < kept.cool_until_s - _EARLY_S):
        return kept
    return replace(kept, on=True, cores=1, cool_until_s=None, reason="on again with one pCPU")


def _guarded(kept: HeraclesMemory, slack: float) -> HeraclesMemory:
    """No growth with little slack, and with less few pCPUs."""
    if slack >= GROWTH_SLACK:
        return kept
    kept = replace(kept, growth=False)
    if slack >= SMALL_SLACK or kept.cores <= LEFT_CORES or not kept.on:  # off they have none to keep
        return kept
    return replace(kept, cores=LEFT_CORES, reason=f"keeps {LEFT_CORES} pCPUs: slack {percent(slack)}")


def grow(kept: HeraclesMemory, slack: float | None, most: int) -> HeraclesMemory:
    """The controller of cores, where neither memory bandwidth nor cache is seen: one pCPU more, up to ``most``.

    The paper's text looks for violations each time, so ``slack`` is of the time since the last one; as printed it is
    that of the top controller.
    """
    if not kept.on or not kept.growth or slack is None or slack <= GROWTH_SLACK or kept.cores >= most:
        return kept
    return replace(kept, cores=kept.cores + 1, reason=f"grew: slack {percent(slack)}")


def _most_cores(snapshot: Snapshot) -> int:
    """Critical VMs keep one pCPU."""
    return len(ordered_cpus(snapshot)) - 1


def _agreed(snapshot: Snapshot) -> Iterator[tuple[ApplicationView, Sla]]:
    """The applications with an SLA whose VMs are here."""
    here = owners(snapshot)
    for view in snapshot.applications:
        if view.application.sla is not None and view.application.name in here:
            yield view, view.application.sla


def _slack(snapshot: Snapshot, length_s: float) -> float | None:
    """The least of all applications whose response times of the last ``length_s`` seconds are known."""
    measured = [(recent_percentile_ms(view, sla, snapshot, length_s), sla) for view, sla in _agreed(snapshot)]
    return min((1 - ms / sla.response_time_ms for ms, sla in measured if ms is not None), default=None)


def _rates_rps(snapshot: Snapshot) -> Mapping[str, float]:
    """Requests per second of each application over the last 15 s, where known."""
    rates: dict[str, float] = {}
    for view, _ in _agreed(snapshot):
        slots = [slot for slot in view.slots if slot.end_s <= snapshot.now_s + _EARLY_S]
        rate_rps = rate_over(slots, snapshot.now_s, TOP_S)
        if rate_rps is not None:
            rates[view.application.name] = rate_rps
    return rates


def _peaks_rps(before: Mapping[str, float], rates_rps: Mapping[str, float]) -> Mapping[str, float]:
    return {**before, **{name: max(rate, before.get(name, 0.0)) for name, rate in rates_rps.items()}}


def _load(snapshot: Snapshot, rates_rps: Mapping[str, float], peaks_rps: Mapping[str, float]) -> float | None:
    """The largest share of its peak that an application is at: of its agreed rate, else of the largest seen."""
    loads = []
    for view, sla in _agreed(snapshot):
        name = view.application.name
        peak_rps = sla.max_rate_rps or peaks_rps.get(name, 0.0)
        if name in rates_rps:
            loads.append(rates_rps[name] / peak_rps if peak_rps else 0.0)
    return max(loads, default=None)


@dataclass(frozen=True, slots=True)
class Fence:
    """The pCPUs of critical and of batch VMs; ``apart``: they have none in common."""

    critical: CpuSet
    batch: CpuSet

    @property
    def apart(self) -> bool:
        """Whether batch VMs have pCPUs of their own."""
        return not self.critical & self.batch


def fence(order: tuple[int, ...], kept: HeraclesMemory, *, critical: bool, batch: bool) -> Fence:
    """Who runs where among the usable pCPUs in ``order``.

    Batch VMs that are off, or on a host with one pCPU, float over all; so does either class where it is alone.
    """
    everything = frozenset(order)
    if not kept.on or len(order) < 2 or not (critical and batch):
        return Fence(everything, everything)
    cores = max(1, min(kept.cores, len(order) - 1))
    return Fence(frozenset(order[:-cores]), frozenset(order[-cores:]))


def _decision(name: str, snapshot: Snapshot, kept: HeraclesMemory) -> Decision:
    batch, critical = batch_vms(snapshot), owners(snapshot)
    divided = fence(ordered_cpus(snapshot), kept, critical=bool(critical), batch=bool(batch))
    off = bool(critical) and not kept.on
    scale = snapshot.capabilities.weights
    weights = weight_goals(snapshot, scale.critical, scale.batch, f"{name}: critical VMs first") if scale else ()
    quotas = least_quotas(snapshot, f"{name}: batch {kept.reason}") if off else ()
    return Decision(weights, kept, cpus=tuple(_cpu_goals(name, snapshot, divided, kept)), quotas=quotas, pinning=False)


def _cpu_goals(name: str, snapshot: Snapshot, divided: Fence, kept: HeraclesMemory) -> Iterator[CpusGoal]:
    for vm in managed(snapshot):
        cpus = divided.critical if vm.critical else divided.batch
        what = f"critical VM of {owner_of(vm) or 'no application'}" if vm.critical else f"batch {kept.reason}"
        goal = cpus_goal(vm, cpus, f"{name}: pCPUs {format_cpus(cpus)}: {what}")
        if goal:
            yield goal


POLICY = Heracles()
