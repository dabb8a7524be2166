"""Runs of a twin: the closed loop over a scenario, with what is compared with a recording."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manager.model.histogram import Histogram
from manager.model.registration import VmClass
from manager.sim.compare import PUBLISHED, installed
from manager.sim.scenario import Scenario
from manager.sim.simulation import Simulation
from manager.sim.thinning import as_passed, lateness_us, thinned


@dataclass(frozen=True, slots=True)
class TwinJob:
    """One run. ``policy`` may have ``:published`` added; ``tick_s`` is the agent's interval.

    ``thinning``: one of so many requests is simulated; see ``manager.sim.thinning``.
    """

    scenario: Scenario
    policy: str
    tick_s: float
    seed: int
    thinning: float = 1.0


@dataclass(frozen=True, slots=True)
class Played:
    """What came of a run: response times of each application in each interval, by bucket, as on the host.

    ``waited``: seconds that vCPUs of critical VMs waited for a pCPU, a second. ``pcpus``: what each VM
    used, and ``batch_pcpus`` all batch VMs. ``late``: the intervals of each application that were late as a whole in a
    thinned run, whose response times may have been shorter by up to ``thinning``.
    """

    interval_s: float
    counts: Mapping[str, tuple[Mapping[int, int], ...]]
    waited: float
    pcpus: Mapping[str, float]
    batch_pcpus: float
    thinning: float
    late: Mapping[str, tuple[bool, ...]]

    def between(self, application: str, from_s: float, to_s: float) -> Histogram:
        """Its response times of the intervals whose middle is between two times after the beginning."""
        return Histogram().merge(*map(Histogram, self.counts[application][self._intervals(from_s, to_s)]))

    def late_share(self, application: str, from_s: float, to_s: float) -> float:
        """Share of these intervals in which it was late as a whole."""
        late = self.late[application][self._intervals(from_s, to_s)]
        return sum(late) / len(late) if late else 0.0

    def _intervals(self, from_s: float, to_s: float) -> slice:
        first, end = (max(round(at_s / self.interval_s), 0) for at_s in (from_s, to_s))
        return slice(first, end)


def play(job: TwinJob) -> Played:
    """Run the whole scenario. The same job always gives the same."""
    policies = installed()
    name = job.policy.removesuffix(PUBLISHED)
    tick_s: float = getattr(policies[name], "sample_s", None) or job.tick_s
    scenario = thinned(job.scenario, job.thinning)
    simulation = Simulation(scenario, policies, name, published=name != job.policy, seed=job.seed, tick_s=tick_s)
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
    counts = {app: [slot.counts for slot in slots] for app, slots in simulation.slots.items()}
    pcpus = {name: world.vm_cpu_s(vm) / world.now_s for name, vm in world.vms.items()}
    return Played(
        job.scenario.interval_s,
        {app: as_passed(slots, job.thinning, scenario.interval_s) for app, slots in counts.items()},
        waits_s / world.now_s,
        pcpus,
        sum(used for name, used in pcpus.items() if classes[name] is VmClass.BATCH),
        job.thinning,
        {
            app: tuple(job.thinning > 1 and late_us > 0 for late_us in lateness_us(slots, scenario.interval_s))
            for app, slots in counts.items()
        },
    )
