"""Scenarios played by the simulator, with response times of all intervals together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from manager.model.histogram import Histogram
from manager.sim.compare import installed
from manager.sim.results import RunResult
from manager.sim.scenario import Scenario
from manager.sim.simulation import Simulation


@dataclass(frozen=True, slots=True)
class SimulatedRun:
    """A scenario under a policy. ``intervals``: the response times of each application, by interval."""

    result: RunResult
    intervals: Mapping[str, tuple[Histogram, ...]]
    interval_s: float

    def times(self, application: str, from_s: float = 0.0, to_s: float = float("inf")) -> Histogram:
        """Response times of the intervals that begin from ``from_s`` on and before ``to_s``."""
        chosen = [
            histogram
            for number, histogram in enumerate(self.intervals[application])
            if from_s <= number * self.interval_s < to_s
        ]
        return Histogram().merge(*chosen)

    def percentile_ms(
        self, application: str, percentile: float = 95, from_s: float = 0.0, to_s: float = float("inf")
    ) -> float:
        """In milliseconds; not a number where nothing was answered."""
        time_us = self.times(application, from_s, to_s).percentile_us(percentile)
        return float("nan") if time_us is None else time_us / 1000

    @property
    def batch_progress(self) -> float:
        """CPU time of batch VMs against running alone, 0 .. 1; 0 without any."""
        return self.result.batch_progress or 0.0


def simulate(scenario: Scenario, policy: str) -> SimulatedRun:
    """Play a scenario under an installed policy, with ticks as often as that wants them."""
    policies = installed()
    tick_s: float | None = getattr(policies[policy], "sample_s", None)
    simulation = Simulation(scenario, policies, policy, tick_s=tick_s)
    result = simulation.run()
    intervals = {name: tuple(Histogram(slot.counts) for slot in slots) for name, slots in simulation.slots.items()}
    return SimulatedRun(result, intervals, scenario.interval_s)
