"""What an exchange costs an agent while no manager answers, beside one that is answered.

    python -m tests.bench.outage_cost [--vms 20] [--minutes 3] [--json FILE]

An agent of ``tests.bench.fleet`` with an interval of a second, by a clock that is set, and its manager, which is killed
after two minutes. In each interval the agent ticks and exchanges; CPU time is that of the thread, means of a minute.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.bench.fault_agents import PastClock, written_of
from tests.bench.figures import machine, undone_when_told_to_end, write_json
from tests.bench.fleet import register
from tests.bench.fleet_agents import AgentSpec, Common, SimulatedAgent
from tests.bench.names import host_names
from tests.bench.site import running_manager

INTERVAL_S = 1.0
TICKS = 60
ANSWERED = "answered"


@dataclass(frozen=True, slots=True)
class Minute:
    """Means of a minute, in ms of CPU time. ``waits``: how many items the outbox holds at its end."""

    what: str
    tick_ms: float
    exchange_ms: float
    waits: int


def cpu_ms(act: Callable[[], object]) -> float:
    """What something takes of this thread."""
    begun_s = time.thread_time()
    act()
    return (time.thread_time() - begun_s) * 1000


def minute(agent: SimulatedAgent, clock: PastClock, what: str, folder: Path) -> Minute:
    """Let a minute of intervals pass."""
    ticks_ms = exchanges_ms = 0.0
    for _ in range(TICKS):
        ticks_ms += cpu_ms(agent.tick)
        clock.pass_s(INTERVAL_S)
        exchanges_ms += cpu_ms(lambda: agent.agent.reporter.report(ask=True))
    return Minute(what, ticks_ms / TICKS, exchanges_ms / TICKS, written_of(folder))


def measure(vms: int, minutes: int) -> list[Minute]:
    """Two minutes with a manager, the first of which does not count, then so many without."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        agents_folder = folder / "agent"
        url = f"sqlite:///{folder}/fleet.db"
        with running_manager(folder, url, INTERVAL_S) as manager:
            [host] = host_names(1)
            register(url, [host], vms)
            clock = PastClock(time.time() - (minutes + 2.5) * TICKS * INTERVAL_S)
            spec = AgentSpec(manager.url, manager.token, host, vms, INTERVAL_S, agents_folder)
            agent = SimulatedAgent(spec, Common.drawn(host), clock=clock)
            agent.begin()
            answered = [minute(agent, clock, ANSWERED, agents_folder) for _ in range(2)]
        with closing(agent):
            away = [minute(agent, clock, f"minute {number + 1} away", agents_folder) for number in range(minutes)]
        return [answered[1], *away]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vms", type=int, default=20)
    parser.add_argument("--minutes", type=int, default=3, help="without a manager")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    with undone_when_told_to_end():
        result = measure(given.vms, given.minutes)
    table = Table("the manager", "a tick, ms", "an exchange, ms", "items wait", title=f"{given.vms} VMs")
    for row in result:
        table.add_row(row.what, f"{row.tick_ms:.2f}", f"{row.exchange_ms:.2f}", f"{row.waits}")
    print(machine())
    Console().print(table)
    write_json(given.json, {"minutes": [asdict(row) for row in result]})


if __name__ == "__main__":
    main()
