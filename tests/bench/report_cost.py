"""What one report costs the manager and PostgreSQL: a live one, and one with history, each by itself.

    python -m tests.bench.report_cost [--hosts 40] [--vms 20] [--rounds 8] [--json FILE]

The agents of ``tests.bench.fleet`` tick once a second. In a round each sends five live reports and one with the history
of twelve ticks, all reports of a kind one after the other. What manager and PostgreSQL use meanwhile is CPU time of
their processes; of all such times the middle half counts, so that jobs of a minute, which run beside some, do not.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from statistics import mean

import psycopg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from manager.loop.pace import Waits
from tests.bench.figures import machine, undone_when_told_to_end, write_json
from tests.bench.fleet import postgres_cpu_s, register
from tests.bench.fleet_agents import AgentSpec, Common, SimulatedAgent
from tests.bench.names import host_names
from tests.bench.site import ManagerProcess, running_manager, usage
from tests.postgres import PostgresServer, postgres_server

INTERVAL_S = 1.0
LIVE_REPORTS = 5
TICKS = 12
"""Of a minute, with an interval of five seconds."""


@dataclass(frozen=True, slots=True)
class Site:
    """A manager, its database, and the agents that report to it."""

    manager: ManagerProcess
    server: PostgresServer
    url: str
    agents: Sequence[SimulatedAgent]

    def cost(self, act: Callable[[], int]) -> ReportCost:
        """What manager and PostgreSQL use for each of the reports that ``act`` sends, whose number it returns."""
        before = usage(self.manager.pid).cpu_s, postgres_cpu_s(self.server), self._statements()
        count = act()
        after = usage(self.manager.pid).cpu_s, postgres_cpu_s(self.server), self._statements()
        manager_s, postgres_s, statements = (now - then for now, then in zip(after, before, strict=True))
        return ReportCost(manager_s / count * 1000, postgres_s / count * 1000, statements / count)

    def _statements(self) -> float:
        query = "SELECT sum(calls) FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
            row = connection.execute(query).fetchone()
        return float(row[0] or 0) if row else 0.0


@dataclass(frozen=True, slots=True)
class ReportCost:
    """CPU milliseconds of a report, and statements."""

    manager_ms: float
    postgres_ms: float
    statements: float


def usual(costs: Sequence[ReportCost]) -> ReportCost:
    """The means of the middle half: a job of a minute that ran beside some of them counts for nothing."""
    return ReportCost(*(_midmean([getattr(cost, field.name) for cost in costs]) for field in fields(ReportCost)))


def _midmean(values: Sequence[float]) -> float:
    quarter = len(values) // 4
    return mean(sorted(values)[quarter : len(values) - quarter])


@dataclass(frozen=True, slots=True)
class Result:
    """Costs of a report of each kind, and of a host and interval of five seconds."""

    live: ReportCost
    history: ReportCost

    @property
    def of_interval(self) -> ReportCost:
        """Of a host and interval: in twelve of them are five live reports and one with history."""
        live, history = asdict(self.live), asdict(self.history)
        return ReportCost(**{name: (LIVE_REPORTS * live[name] + history[name]) / TICKS for name in live})


def play(site: Site, rounds: int) -> Result:
    """Let the agents report; the first round does not count."""
    costs: dict[bool, list[ReportCost]] = {False: [], True: []}

    def report(waits: Waits) -> int:
        for agent in site.agents:
            agent.agent.reporter.report(waits, ask=True)
        return len(site.agents)

    with Progress(transient=True) as shown:
        for number in shown.track(range(rounds + 1), description="reporting"):
            for tick in range(TICKS):
                began_s = time.monotonic()
                for agent in site.agents:
                    agent.tick()
                history = tick == TICKS - 1
                if history or tick % 2:
                    cost = site.cost(partial(report, Waits.ALL if history else Waits.NOTHING))
                    if number:
                        costs[history].append(cost)
                time.sleep(max(began_s + INTERVAL_S - time.monotonic(), 0.0))
    return Result(usual(costs[False]), usual(costs[True]))


def run(hosts: int, vms: int, rounds: int) -> Result:
    """Start everything, measure, stop everything."""
    names = host_names(hosts)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eqp-reports-")))
        server = stack.enter_context(postgres_server(durable=True, preload="pg_stat_statements"))
        url = server.create("reports")
        manager = stack.enter_context(running_manager(folder, url, INTERVAL_S))
        register(url, names, vms)
        agents, common = [], Common.drawn("reports")
        for name in names:
            given = (manager.url, manager.token, name, vms, INTERVAL_S, folder / name)
            agent = SimulatedAgent(AgentSpec(*given), common)
            stack.callback(agent.close)
            agents.append(agent)
            agent.agent.reporter.sync()
        return play(Site(manager, server, url, agents), rounds)


def show(result: Result) -> None:
    """Print a table."""
    table = Table("CPU of", "manager, ms", "PostgreSQL, ms", "statements", title="reports")
    rows = {"a live report": result.live, "a report with history": result.history, "a host and interval": None}
    for name, cost in rows.items():
        shown = cost or result.of_interval
        table.add_row(name, f"{shown.manager_ms:.2f}", f"{shown.postgres_ms:.2f}", f"{shown.statements:.1f}")
    Console(width=120).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=40)
    parser.add_argument("--vms", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    with undone_when_told_to_end():
        result = run(given.hosts, given.vms, given.rounds)
    print(machine())
    show(result)
    write_json(given.json, {"result": asdict(result), "interval": asdict(result.of_interval)})


if __name__ == "__main__":
    main()
