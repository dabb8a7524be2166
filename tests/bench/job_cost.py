"""What each job of the manager costs it and PostgreSQL per host and interval, while a fleet is new and later.

    python -m tests.bench.job_cost [--hosts 24] [--vms 20] [--minutes 130] [--json FILE]

The manager runs in this process by a clock that the benchmark sets, on a real PostgreSQL. In each minute every host
reports the history of twelve ticks, with 200 response times of four applications in each; then all jobs run that are
due in it, asked for as the manager does. What counts is CPU time of this thread and of all processes of PostgreSQL
while a job runs: of the first half hour, and of the last.
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import psycopg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from manager import __version__
from manager.api.app import create_app
from manager.api.context import ManagerContext
from manager.api.manager_jobs import make_jobs
from manager.control.uptime import Boot
from manager.model.fields import json_of
from manager.model.histogram import Histogram
from manager.model.host import CPU_WEIGHT_V2
from manager.model.records import TickRecord, VmTick
from manager.model.registration import Mode
from manager.model.window import Window
from manager.protocol.report import ReportIn, VmStatus, reported_window
from manager.settings import load_settings
from manager.store.database import Database, open_database
from manager.store.jobs import Job, JobResult, Jobs
from manager.store.tokens import Role, create_token
from policies.installed import load_policies
from tests.bench.figures import machine, write_json
from tests.bench.fleet import postgres_cpu_s, register
from tests.bench.fleet_agents import REQUESTS, TIERS, vm_names
from tests.bench.names import host_names
from tests.fakes.host import FakeHost, domain_uuid
from tests.postgres import PostgresServer, postgres_server

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
INTERVAL_S = 5
MINUTE_S = 60
TICKS = MINUTE_S // INTERVAL_S
COUNTED = 30
"""Minutes at the beginning and at the end that count: the job ``interference`` looks at all applications in them."""
NEW, LATER = "a fleet's first half hour", "later"
_PATTERNS = 64


@dataclass(slots=True)
class Spent:
    """What a job used so far: seconds of CPU time, and statements."""

    manager_s: float = 0.0
    postgres_s: float = 0.0
    statements: int = 0


@dataclass(frozen=True, slots=True)
class JobCost:
    """CPU milliseconds, and statements, for each host and interval."""

    manager_ms: float
    postgres_ms: float
    statements: float


@dataclass(slots=True)
class Clock:
    """Seconds since the epoch, which the benchmark sets."""

    now_s: float = START.timestamp()

    def __call__(self) -> float:
        return self.now_s

    def boot(self) -> Boot:
        """A machine that started when the benchmark did."""
        return Boot("benchmark", self.now_s - START.timestamp())


@dataclass(slots=True)
class Fleet:
    """Hosts that report, and the manager in this process."""

    database: Database
    clock: Clock
    client: httpx.Client
    names: Sequence[str]
    vms: int
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    histograms: Sequence[Histogram] = ()

    def __post_init__(self) -> None:
        log_normal = self.chance.lognormvariate
        self.histograms = [
            Histogram.of(log_normal(math.log(10_000), 0.5) for _ in range(REQUESTS)) for _ in range(_PATTERNS)
        ]

    def report(self, *, first: bool) -> None:
        """Every host reports the minute that ends now."""
        for name in self.names:
            body = self._body(name, first=first)
            headers = {"Content-Type": "application/json"}
            self.client.post(f"/hosts/{name}/report", content=json_of(body), headers=headers).raise_for_status()

    def _body(self, host: str, *, first: bool) -> ReportIn:
        begin_s = self.clock.now_s - MINUTE_S
        ends_s = [begin_s + INTERVAL_S * (number + 1) for number in range(TICKS)]
        body = ReportIn(agent_version=__version__, ticks=[self._tick(host, end_s) for end_s in ends_s])
        body.windows = [
            reported_window(self._window(f"{host}-app-{number}", end_s), packed=True)
            for number in range(TIERS)
            for end_s in ends_s
        ]
        if first:
            body.capabilities = FakeHost(cpus=64, scale=CPU_WEIGHT_V2).capabilities
            body.vms = [
                VmStatus(
                    vm=vm,
                    libvirt_name=vm,
                    libvirt_uuid=domain_uuid(vm),
                    pid=4711,
                    vcpus=2,
                    cpu_share=0.0,
                    run_delay_share=0.0,
                )
                for vm in vm_names(host, self.vms)
            ]
        return body

    def _tick(self, host: str, at_s: float) -> TickRecord:
        uniform = self.chance.uniform
        vms = (
            VmTick(vm, round(uniform(0.002, 0.023), 5), round(uniform(0, 0.1), 5), 100, Mode.ENFORCE)
            for vm in vm_names(host, self.vms)
        )
        return TickRecord(at_s, "fair", Mode.ENFORCE, round(uniform(0.2, 0.6), 5), tuple(vms))

    def _window(self, application: str, end_s: float) -> Window:
        return Window(application, end_s - INTERVAL_S, end_s, self.chance.choice(self.histograms), REQUESTS)


@dataclass(slots=True)
class Meter:
    """What jobs use, by the time of the fleet and by name. ``connection``: to count statements."""

    server: PostgresServer
    connection: psycopg.Connection[Any]
    spent: Mapping[str, dict[str, Spent]] = field(default_factory=lambda: {NEW: {}, LATER: {}})

    def ask(self, jobs: Jobs, job: Job, when: str | None) -> None:
        """Ask for a job; ``when`` None: what it uses does not count. Raises RuntimeError for one that is not done."""
        statements = self._statements()
        postgres_s, manager_s = postgres_cpu_s(self.server), time.thread_time()
        result = jobs.ask(job)
        manager_s = time.thread_time() - manager_s
        postgres_s = postgres_cpu_s(self.server) - postgres_s
        if result is not JobResult.DONE:
            raise RuntimeError(f"{job.name}: {result}")
        if when is not None:
            spent = self.spent[when].setdefault(job.name, Spent())
            spent.manager_s += manager_s
            spent.postgres_s += postgres_s
            spent.statements += self._statements() - statements

    def costs(self, intervals: int) -> dict[str, dict[str, JobCost]]:
        """By the time of the fleet and by job, for each of so many intervals of a host."""
        return {
            when: {
                name: JobCost(
                    spent.manager_s / intervals * 1000,
                    spent.postgres_s / intervals * 1000,
                    spent.statements / intervals,
                )
                for name, spent in sorted(by_job.items())
            }
            for when, by_job in self.spent.items()
        }

    def _statements(self) -> int:
        query = "SELECT sum(calls) FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"
        row = self.connection.execute(query).fetchone()
        return int(row[0] or 0) if row else 0


def run(hosts: int, vms: int, minutes: int) -> dict[str, dict[str, JobCost]]:
    """Start everything, let so many minutes pass, and stop everything."""
    names = host_names(hosts)
    with ExitStack() as stack:
        server = stack.enter_context(postgres_server(durable=True, preload="pg_stat_statements"))
        url = server.create("jobs")
        database = stack.enter_context(closing(open_database(url)))
        database.upgrade()
        clock = Clock()
        context = ManagerContext(
            database, load_policies(), stale_s=30, min_samples=20, slot_s=INTERVAL_S, clock=clock, boot=clock.boot
        )
        with database.registering() as session:
            _, secret = create_token(session, "benchmark", Role.ADMIN, None, START)
        transport = httpx.WSGITransport(app=create_app(context))
        headers = {"Authorization": f"Bearer {secret}"}
        client = stack.enter_context(
            httpx.Client(transport=transport, base_url="http://manager/api/v1", headers=headers)
        )
        register(url, names, vms)
        connection = stack.enter_context(psycopg.connect(url, autocommit=True))
        connection.execute("CREATE EXTENSION pg_stat_statements")
        meter = Meter(server, connection)
        fleet = Fleet(database, clock, client, names, vms)
        pass_minutes(fleet, make_jobs(load_settings(None, {}, {}), context), meter, minutes)
    return meter.costs(hosts * COUNTED * TICKS)


def pass_minutes(fleet: Fleet, every_job: Sequence[Job], meter: Meter, minutes: int) -> None:
    """Let minutes pass, with reports and jobs."""
    clock = fleet.clock
    jobs = Jobs(fleet.database, every_job, clock, steady=clock)
    due_s = dict.fromkeys((job.name for job in every_job), clock.now_s)
    with Progress(transient=True) as shown:
        for minute in shown.track(range(minutes), description="minutes"):
            when = NEW if minute < COUNTED else LATER if minute >= minutes - COUNTED else None
            for number in range(TICKS):
                clock.now_s += INTERVAL_S
                if number == TICKS - 1:
                    fleet.report(first=minute == 0)
                for job in every_job:
                    if clock.now_s >= due_s[job.name] + job.period_s:
                        due_s[job.name] = clock.now_s
                        meter.ask(jobs, job, when)


def show(costs: Mapping[str, Mapping[str, JobCost]]) -> None:
    """Print a table of each time."""
    for when, by_job in costs.items():
        table = Table("job", "manager, ms", "PostgreSQL, ms", "statements", title=f"a host and interval: {when}")
        total = JobCost(
            *(sum(parts) for parts in zip(*(asdict(cost).values() for cost in by_job.values()), strict=True))
        )
        for name, cost in {**by_job, "all": total}.items():
            table.add_row(name, f"{cost.manager_ms:.3f}", f"{cost.postgres_ms:.3f}", f"{cost.statements:.2f}")
        Console(width=120).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=24)
    parser.add_argument("--vms", type=int, default=20)
    parser.add_argument("--minutes", type=int, default=130)
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    costs = run(given.hosts, given.vms, given.minutes)
    print(machine())
    show(costs)
    write_json(
        given.json, {when: {name: asdict(cost) for name, cost in found.items()} for when, found in costs.items()}
    )


if __name__ == "__main__":
    main()
