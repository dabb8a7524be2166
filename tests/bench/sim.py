"""How much faster than real time the simulator is, control loop included, on one core.

    python -m tests.bench.sim [--json] [--runs 3] [SCENARIO ...]

Bar: 1,000 x for the two-application scenario `spike`. Each scenario runs under `priority`, and under `fair` where that
is installed. CPU time is measured, and the fastest of the runs counts, since others use the machine too.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass

from rich.console import Console
from rich.table import Table

from manager.sim.compare import installed
from manager.sim.scenario_files import load_scenario, shipped
from manager.sim.simulation import Simulation

BAR = 1000.0


@dataclass(frozen=True)
class Line:
    """One line of the table. ``without_loop`` is the speed of the same scenario without ticks."""

    scenario: str
    policy: str
    simulated_s: float
    took_s: float
    speed: float
    without_loop: float
    requests_per_s: float
    tick_ms: float


def measure(name: str, policy: str, runs: int) -> Line:
    """The fastest of some runs."""
    scenario = load_scenario(name)
    took_s = world_s = float("inf")
    answered = 0
    for _ in range(runs):
        simulation = Simulation(scenario, installed(), policy)
        began_s = time.process_time()
        result = simulation.run()
        took_s = min(took_s, time.process_time() - began_s)
        answered = sum(app.answered for app in result.applications)
        alone = Simulation(scenario, installed(), policy)
        alone.step()  # the weights of the policy, which decide how much there is to do
        began_s = time.process_time()
        alone.world.run_until(scenario.duration_s)
        world_s = min(world_s, time.process_time() - began_s)
    ticks = Simulation.count_intervals(scenario)
    return Line(
        name,
        policy,
        scenario.duration_s,
        took_s,
        scenario.duration_s / took_s,
        scenario.duration_s / world_s,
        answered / took_s,
        max(0.0, took_s - world_s) / ticks * 1000,
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", default=["spike"], help=f"of {', '.join(shipped())}, or all")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    names = list(shipped()) if options.scenarios == ["all"] else options.scenarios
    policies = [name for name in ("priority", "fair") if name in installed()]
    lines = [measure(name, policy, options.runs) for name in names for policy in policies]
    if options.json:
        machine = f"Python {platform.python_version()}, {platform.machine()}"
        print(json.dumps({"machine": machine, "bar": BAR, "results": [asdict(line) for line in lines]}, indent=2))
        return
    table = Table("scenario", "policy", "speed", "without ticks", "requests/s", "a tick", "bar", title="Simulator")
    for line in lines:
        bar = ("met" if line.speed >= BAR else "VIOLATED") if line.scenario == "spike" else ""
        table.add_row(
            line.scenario,
            line.policy,
            f"{line.speed:,.0f} x",
            f"{line.without_loop:,.0f} x",
            f"{line.requests_per_s:,.0f}",
            f"{line.tick_ms:.2f} ms",
            bar,
        )
    Console().print(table)


if __name__ == "__main__":
    main()
