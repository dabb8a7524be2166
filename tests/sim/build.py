"""Small worlds for tests."""

from __future__ import annotations

import math
from random import Random

from manager.model.registration import Sla
from manager.sim.cpu_sharing import SchedulingGroup, SimCpus, Vcpu
from manager.sim.scenario import AppSpec, Constant, Scenario, Scheduler, Segment, ServiceTime, Shape, TierSpec

AT_ONCE = Scheduler(slice_ms=0, tick_ms=0)
"""Who wakes shares the pCPU at once."""


class Workers(SchedulingGroup):
    """A VM whose vCPUs do what they are given and then sleep."""

    def next_work(self, vcpu: Vcpu, now_s: float) -> float:
        return 0.0


class Machine:
    """Processors without a world around them."""

    def __init__(self, pcpus: int, scheduler: Scheduler = AT_ONCE) -> None:
        self.when: list[float] = [math.inf] * pcpus
        self.cpus = SimCpus(pcpus, scheduler, Random(1), self.when)
        self.now_s = 0.0
        self.groups: list[Workers] = []

    def group(self, weight: int, vcpus: int = 1) -> Workers:
        group = Workers(weight, vcpus, self.cpus.pcpus)
        self.groups.append(group)
        return group

    def hog(self, weight: int, vcpus: int = 1, cpus: set[int] | None = None) -> Workers:
        """A VM all of whose vCPUs always want to run."""
        group = self.group(weight, vcpus)
        for vcpu in group.vcpus:
            if cpus is not None:
                self.cpus.set_allowed(vcpu, cpus, self.now_s)
            self.cpus.wake(vcpu, math.inf, self.now_s)
        return group

    def run(self, seconds: float) -> None:
        end_s = self.now_s + seconds
        while (next_s := min(self.when)) <= end_s:
            self.now_s = next_s
            self.cpus.fire(self.when.index(next_s), next_s)
        self.now_s = end_s

    def cpu_s(self, group: SchedulingGroup) -> float:
        return math.fsum(self.cpus.cpu_s(vcpu, self.now_s) for vcpu in group.vcpus)


def app(
    name: str = "shop",
    *load: Segment,
    mean_ms: float = 10.0,
    shape: Shape = Shape.EXPONENTIAL,
    vms: int = 1,
    vcpus: int = 1,
    sla_ms: float = 100.0,
    **fields: object,
) -> AppSpec:
    tier = TierSpec("web", ServiceTime(mean_ms, shape), vms, vcpus)
    return AppSpec(name, Sla(sla_ms), (tier,), load or (Constant(50.0),), **fields)  # type: ignore[arg-type]


def scenario(*applications: AppSpec, pcpus: int = 2, **fields: object) -> Scenario:
    return Scenario("test", pcpus, applications or (app(),), **fields)  # type: ignore[arg-type]
