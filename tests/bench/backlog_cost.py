"""What an hour's history costs to deliver once a manager is back: the agent, the manager and PostgreSQL.

    python -m tests.bench.backlog_cost [--hosts 12] [--vms 20] [--minutes 60] [--json FILE]

The agents of ``tests.bench.fleet`` with an interval of five seconds. Each gets a history, made by its own code with a
clock that is set back, and then reports all of it, one host after the other. CPU time is that of the reporting thread
and of the others' processes, for an item: a tick, a window or a decision.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from tests.bench.fault_agents import History, give_history
from tests.bench.figures import machine, undone_when_told_to_end, write_json
from tests.bench.fleet import postgres_cpu_s, register
from tests.bench.fleet_agents import AgentSpec, Common, SimulatedAgent
from tests.bench.names import host_names
from tests.bench.site import running_manager, usage
from tests.postgres import postgres_server

INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class Delivered:
    """How many items were, and CPU seconds for all of them. ``took_s``: by the clock."""

    items: int
    took_s: float
    agent_s: float
    manager_s: float
    postgres_s: float


def run(hosts: int, vms: int, minutes: float) -> Delivered:
    """Start everything, make histories, deliver them, stop everything."""
    names, common = host_names(hosts), Common.drawn("backlog")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eqp-backlog-")))
        server = stack.enter_context(postgres_server(durable=True))
        url = server.create("fleet")
        manager = stack.enter_context(running_manager(folder, url, INTERVAL_S))
        register(url, names, vms)
        agents, items = [], 0
        with Progress(transient=True) as shown:
            for name in shown.track(names, description="making histories"):
                spec = AgentSpec(manager.url, manager.token, name, vms, INTERVAL_S, folder / name)
                agent = SimulatedAgent(spec, common)
                stack.callback(agent.close)
                agent.begin()
                items += give_history(agent, spec, common, History(minutes), time.time())
                agents.append(agent)
        before = time.monotonic(), time.thread_time(), usage(manager.pid).cpu_s, postgres_cpu_s(server)
        for agent in agents:
            agent.agent.reporter.report(ask=True)
        after = time.monotonic(), time.thread_time(), usage(manager.pid).cpu_s, postgres_cpu_s(server)
        return Delivered(items, *(now - then for now, then in zip(after, before, strict=True)))


def show(result: Delivered, hosts: int) -> None:
    """Print a table."""
    table = Table("CPU of", "an item, us", "a host, s", title=f"{result.items} items of {hosts} hosts")
    for name, seconds in (("agent", result.agent_s), ("manager", result.manager_s), ("PostgreSQL", result.postgres_s)):
        table.add_row(name, f"{seconds / result.items * 1e6:.0f}", f"{seconds / hosts:.2f}")
    Console(width=120).print(table)
    print(f"all were delivered within {result.took_s:.1f} s")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=12)
    parser.add_argument("--vms", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=60.0, help="of history")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    with undone_when_told_to_end():
        result = run(given.hosts, given.vms, given.minutes)
    print(machine())
    show(result, given.hosts)
    write_json(given.json, {"result": asdict(result)})


if __name__ == "__main__":
    main()
