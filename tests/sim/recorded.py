"""A recording of a simulated run, with nothing rounded."""

from __future__ import annotations

from manager.loop.tick import TickResult
from manager.model.records import TickRecord, VmTick
from manager.replay.recording import RecordedVm, Recording
from manager.sim.compare import installed
from manager.sim.scenario import Scenario
from manager.sim.simulation import EPOCH_S, Simulation


class Watched(Simulation):
    """A simulation that keeps its ticks, also the one at the begin."""

    results: tuple[TickResult, ...] = ()

    def tick(self) -> TickResult | None:
        result = super().tick()
        if result is not None:
            self.results += (result,)
        return result


def run_watched(scenario: Scenario, policy: str) -> Watched:
    """A whole run."""
    simulation = Watched(scenario, installed(), policy)
    simulation.run()
    return simulation


def taken(simulation: Watched) -> Recording:
    """What a manager would know of a run."""
    results = simulation.results
    first = results[0].snapshot
    return Recording(
        EPOCH_S,
        results[-1].at_s + 1,
        simulation.assignment,
        first.capabilities,
        tuple(RecordedVm(vm.name, vm.vcpus, vm.weight) for vm in first.vms),
        tuple(tick(one) for one in results),
        simulation.telemetry.closed(),
        tuple(record for one in results for record in one.records),
    )


def recorded(scenario: Scenario, policy: str) -> Recording:
    """What a manager would know of a run under ``policy``."""
    return taken(run_watched(scenario, policy))


def tick(result: TickResult) -> TickRecord:
    vms = (VmTick(one.name, one.cpu_share, one.run_delay_share, one.weight, one.mode) for one in result.snapshot.vms)
    return TickRecord(
        result.at_s, result.snapshot.host.policy, result.snapshot.host.mode, result.busy or 0.0, tuple(vms)
    )
