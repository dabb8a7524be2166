"""Limits of CPU time, as CFS bandwidth control enforces them (Documentation/scheduler/sched-bwc.rst).

A group has a budget for each period. Once that is used up, its runnable vCPUs are taken from their pCPUs, to which
others have the whole claim meanwhile, and come back when the next period begins. What was used beyond the budget,
because the simulation looks ``_FINEST_S`` too late at most, is taken from the next one, as the kernel does: over many
periods a group that always wants more gets just its quota. Left out: the slices in which the kernel hands a budget to
pCPUs, and its burst.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from manager.sim.cpu_sharing import SchedulingGroup, SimCpus

_FINEST_S = 1e-4
_USED_UP_S = 1e-12


@dataclass(slots=True, eq=False)
class _Limit:
    """A group's budget. ``counted_s`` is the CPU time that was taken from it; only the last check counts."""

    group: SchedulingGroup
    quota_s: float
    left_s: float
    counted_s: float
    began_s: float
    periods: int = 0
    checks: int = 0


class CpuQuotas:
    """The limits of all groups of some processors; groups without one cost nothing."""

    def __init__(
        self, cpus: SimCpus, call_at: Callable[[float, Callable[[float], None]], None], period_s: float
    ) -> None:
        """``call_at`` has a function called at a time, which it is given."""
        self._period_s = period_s
        self._cpus = cpus
        self._call_at = call_at
        self._limits: dict[SchedulingGroup, _Limit] = {}

    def set(self, group: SchedulingGroup, pcpus: float | None, now_s: float) -> None:
        """Limit a group to so many pCPUs' time, with a budget and period that begin now; None: no more."""
        self._limits.pop(group, None)
        if group.throttled:
            self._cpus.unthrottle(group, now_s)
        if pcpus is None or pcpus >= len(group.vcpus):
            return
        quota_s = pcpus * self._period_s
        limit = _Limit(group, quota_s, quota_s, self._used_s(group, now_s), now_s)
        self._limits[group] = limit
        self._begin_period(limit, now_s)

    def _used_s(self, group: SchedulingGroup, now_s: float) -> float:
        return sum(self._cpus.cpu_s(vcpu, now_s) for vcpu in group.vcpus)

    def _begin_period(self, limit: _Limit, now_s: float) -> None:
        if self._limits.get(limit.group) is not limit:
            return
        if limit.periods:
            self._account(limit, now_s)
            limit.left_s = min(limit.quota_s, limit.left_s + limit.quota_s)
        limit.periods += 1
        self._call_at(self._end_s(limit), lambda at_s: self._begin_period(limit, at_s))
        self._enforce(limit, now_s)

    def _check(self, limit: _Limit, number: int, now_s: float) -> None:
        if self._limits.get(limit.group) is limit and limit.checks == number:
            self._account(limit, now_s)
            self._enforce(limit, now_s)

    def _account(self, limit: _Limit, now_s: float) -> None:
        used_s = self._used_s(limit.group, now_s)
        limit.left_s -= used_s - limit.counted_s
        limit.counted_s = used_s

    def _enforce(self, limit: _Limit, now_s: float) -> None:
        """Take the group off or let it run, and look again when it may have used up its budget at the earliest."""
        group = limit.group
        if (limit.left_s <= _USED_UP_S) != group.throttled:
            (self._cpus.unthrottle if group.throttled else self._cpus.throttle)(group, now_s)
        if group.throttled:
            return
        limit.checks = number = limit.checks + 1
        next_s = now_s + max(limit.left_s / len(group.vcpus), _FINEST_S)
        if next_s < self._end_s(limit):
            self._call_at(next_s, lambda at_s: self._check(limit, number, at_s))

    def _end_s(self, limit: _Limit) -> float:
        return limit.began_s + limit.periods * self._period_s
