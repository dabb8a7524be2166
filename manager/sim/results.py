"""What came of a simulation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from manager.model.histogram import Histogram
from manager.model.registration import Sla
from manager.sim.scenario import BatchSpec
from manager.sim.services import AppSlot


@dataclass(frozen=True, slots=True)
class AppInterval:
    """An application in one interval.

    ``percentile_ms`` is the SLA's percentile: of requests answered and timed out, or, where there are none, the age of
    the oldest that waits; None where nothing was to be answered.
    """

    percentile_ms: float | None
    rate_rps: float
    excess: float


def app_interval(slot: AppSlot, sla: Sla, interval_s: float) -> AppInterval:
    """Judge a slot: ``excess`` is RT / RT_SLA - 1 where that is above 0."""
    time_us = Histogram(slot.counts).percentile_us(sla.percentile)
    percentile_ms = None if time_us is None else time_us / 1000
    if percentile_ms is None and slot.waiting_s * 1000 > sla.response_time_ms:
        percentile_ms = slot.waiting_s * 1000
    excess = 0.0 if percentile_ms is None else max(0.0, percentile_ms / sla.response_time_ms - 1)
    return AppInterval(percentile_ms, slot.answered / interval_s, excess)


@dataclass(frozen=True, slots=True)
class AppResult:
    """An application over the whole run; lists have a value for each interval.

    ``violated_share``: intervals in which the SLA was violated, of all; ``mean_excess`` is over those.
    """

    name: str
    sla_ms: float
    percentile: float
    violated_share: float
    worst_excess: float
    mean_excess: float
    answered: int
    timed_out: int
    failed: int
    percentile_ms: tuple[float | None, ...]
    rate_rps: tuple[float, ...]
    vms: tuple[str, ...] = ()


def app_result(name: str, sla: Sla, slots: Sequence[AppSlot], interval_s: float) -> AppResult:
    """Sum up the slots of an application."""
    intervals = [app_interval(slot, sla, interval_s) for slot in slots]
    violated = [interval.excess for interval in intervals if interval.excess > 0]
    return AppResult(
        name=name,
        sla_ms=sla.response_time_ms,
        percentile=sla.percentile,
        violated_share=len(violated) / len(intervals) if intervals else 0.0,
        worst_excess=max(violated, default=0.0),
        mean_excess=sum(violated) / len(violated) if violated else 0.0,
        answered=sum(slot.answered for slot in slots),
        timed_out=sum(slot.timed_out for slot in slots),
        failed=sum(slot.failed for slot in slots),
        percentile_ms=tuple(interval.percentile_ms for interval in intervals),
        rate_rps=tuple(interval.rate_rps for interval in intervals),
    )


@dataclass(frozen=True, slots=True)
class VmResult:
    """A VM over the whole run. ``weights`` is the weight in force in each interval.

    ``cpu_share`` is a fraction of the whole host; ``progress``, of batch VMs, the CPU time against running with the
    batch VMs alone, None of one that is always idle; ``weight_changes_per_hour`` counts from when the policy had time
    to settle. ``slower``: how many times as long its work took for what it had of cache and memory.
    """

    name: str
    critical: bool
    cpu_share: float
    progress: float | None
    weight_changes_per_hour: float
    weights: tuple[int, ...]
    slower: float = 1.0


@dataclass(frozen=True, slots=True)
class GroupResult:
    """A group of resctrl, with what was in force in each interval: ``ways``, the fewest of all domains, and
    ``bandwidth``, in the host's unit; 0 where there was no such group, or no limits. ``changes_per_hour``: as weights.
    """

    name: str
    ways: tuple[int, ...]
    bandwidth: tuple[int, ...]
    changes_per_hour: float


def alone_cores(batch: Sequence[BatchSpec], pcpus: int) -> dict[str, float]:
    """pCPUs that a VM of each group would use with nothing but these VMs on the host; 0 of one that is always idle."""
    wanted = {group.name: group.duty * group.vcpus for group in batch}
    total = sum(wanted[group.name] * group.vms for group in batch)
    part = min(1.0, pcpus / total) if total else 1.0
    return {name: cores * part for name, cores in wanted.items()}


@dataclass(frozen=True, slots=True)
class RunResult:
    """What a scenario came to under a policy. Simulated, always.

    ``host_cpu_share`` has a value for each interval, ``batch_progress`` is None without batch VMs. ``notes`` are what
    the control loop had to complain of, ``groups`` those of resctrl where there is a cache. ``changes_per_hour`` counts
    settings of any kind, weights among them.
    """

    scenario: str
    policy: str
    seed: int
    interval_s: float
    duration_s: float
    applications: tuple[AppResult, ...]
    vms: tuple[VmResult, ...]
    batch_progress: float | None
    batch_share: float
    weight_changes_per_hour: float
    host_cpu_share: tuple[float, ...]
    notes: tuple[str, ...] = ()
    groups: tuple[GroupResult, ...] = ()
    changes_per_hour: float = 0.0

    @property
    def violated_share(self) -> float:
        """Mean of the applications' shares."""
        return sum(app.violated_share for app in self.applications) / max(len(self.applications), 1)

    @property
    def worst_excess(self) -> float:
        """The largest of all applications and intervals."""
        return max((app.worst_excess for app in self.applications), default=0.0)

    @property
    def mean_excess(self) -> float:
        """Over all intervals of all applications in which an SLA was violated."""
        return mean_excess(self.applications)


def mean_excess(apps: Iterable[AppResult]) -> float:
    """Over all intervals in which the SLA of one of these applications was violated."""
    violated = [(app.violated_share * len(app.percentile_ms), app.mean_excess) for app in apps]
    total = sum(count for count, _ in violated)
    return sum(count * excess for count, excess in violated) / total if total else 0.0
