"""Runs of a twin: the closed loop over a scenario, with what is compared with a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manager.model.histogram import Histogram
from manager.model.registration import VmClass
from manager.sim.compare import PUBLISHED, installed
from manager.sim.scenario import Scenario
from manager.sim.simulation import Simulation


@dataclass(frozen=True, slots=True)
class TwinJob:
    """One run. ``policy`` may have ``:published`` added; ``tick_s`` is the agent's interval."""

    scenario: Scenario
    policy: str
    tick_s: float
    seed: int


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a run: response times of each application in each interval, by bucket.

    ``waited``: seconds that vCPUs of critical VMs waited for a pCPU, a second. ``pcpus``: what each VM
    used, and ``batch_pcpus`` all batch VMs.
    """

    interval_s: float
    counts: Mapping[str, tuple[Mapping[int, int], ...]]
    waited: float
    pcpus: Mapping[str, float]
    batch_pcpus: float

    def between(self, application: str, from_s: float, to_s: float) -> Histogram:
        """Its response times of the intervals whose middle is between two times after the beginning."""
        first, end = (max(round(at_s / self.interval_s), 0) for at_s in (from_s, to_s))
        return Histogram().merge(*map(Histogram, self.counts[application][first:end]))


def play(job: TwinJob) -> Played:
    """Run the whole scenario. The same job always gives the same."""
    policies = installed()
    name = job.policy.removesuffix(PUBLISHED)
    tick_s: float = getattr(policies[name], "sample_s", None) or job.tick_s
    simulation = Simulation(job.scenario, policies, name, published=name != job.policy, seed=job.seed, tick_s=tick_s)
    for _ in range(Simulation.count_intervals(job.scenario)):
        before = simulation.intervals
        while simulation.intervals == before:
            simulation.step()
    world = simulation.world
    classes = {spec.name: spec.vm_class for spec in job.scenario.vms}
    waits_s = sum(
        world.cpus.delay_s(vcpu, world.now_s)
        for name, vm in world.vms.items()
        if classes[name] is VmClass.CRITICAL
        for vcpu in vm.vcpus
    )
    pcpus = {name: world.vm_cpu_s(vm) / world.now_s for name, vm in world.vms.items()}
    return Played(
        job.scenario.interval_s,
        {app: tuple(slot.counts for slot in slots) for app, slots in simulation.slots.items()},
        waits_s / world.now_s,
        pcpus,
        sum(used for name, used in pcpus.items() if classes[name] is VmClass.BATCH),
    )
