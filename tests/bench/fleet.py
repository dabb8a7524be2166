"""What a fleet costs its manager: 300 agents on simulated hosts, over HTTP, with a real PostgreSQL.

    python -m tests.bench.fleet [--hosts 300] [--vms 20] [--interval-s 5] [--seconds 120] [--ramp-s S] [--warm-up-s 20]
        [--reads-per-s 2] [--registrations-per-s 0] [--no-browser] [--workers N] [--small-fleet 20] [--statements]
        [--json FILE]

The agents are the product's own, with a journal, an outbox and a connection each, on hosts in memory whose VMs use CPU
time and answer requests at random; they live in processes of their own, as the manager and PostgreSQL (which syncs its
log to disk) do. They begin one after the other within ``--ramp-s``, and all are left alone for ``--warm-up-s`` before
anything counts. Beside them somebody reads lists, and opens the fleet page in a real Chromium (``--no-browser``: not
that), in a new context each time, so that nothing is cached; ``--reads-per-s 0``: nobody does either, for the cost of
reports alone. With ``--registrations-per-s`` VMs come and go. All share this machine, which is printed with the
numbers; agents, which have others in a fleet, give way to the rest. From these a fleet of 10,000 hosts is calculated:
an estimate, that cost grows with the number of reports. ``--statements`` lists what PostgreSQL does for a report.

A report is late when it is acknowledged more than an interval and ``--grace-s`` after the tick that it follows was due.
Files of the agents are in memory: those of a real fleet are on as many disks.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, astuple, dataclass
from datetime import UTC, datetime
from itertools import cycle
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import psycopg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sqlalchemy.orm import Session

from manager.model.registration import Application, HostSpec, Sla, Tier, VmClass, VmSpec
from manager.store.applications import put_application
from manager.store.database import open_database
from manager.store.hosts import put_host
from manager.store.vms import put_vm
from tests.bench.figures import Spread, host_cpu_s, machine, undone_when_told_to_end, verdict, write_json
from tests.bench.fleet_agents import TIERS, Driven, Orders, drive, memory_folder, vm_names
from tests.bench.names import host_names
from tests.bench.paints import page_loads
from tests.bench.registrar import visitors
from tests.bench.site import ManagerProcess, Usage, running_manager, usage
from tests.postgres import PostgresServer, postgres_server

DRIVERS = 2
LARGE_FLEET = 10_000
CORE_SHARE = 0.6
"""Of a core, that is what a manager process may be planned to use: requests come in bursts."""
_MOST_STATEMENTS = 40
MOST_VMS = "/vms?limit=1000"
READS = (
    MOST_VMS,
    "/hosts?limit=1000",
    "/fleet?limit=30&hosts_limit=12",
    "/applications?limit=100",
    "/events?limit=100",
    "/decisions?limit=100",
)
FIRST_PAINT = "first paint of the fleet page"
PAINTS = {
    FIRST_PAINT: "paint",
    "content of the fleet page painted": "content",
    "first byte of the fleet page": "begun",
    "last byte of the fleet page": "answer",
}
"""What is told of each load of the page, and its name in ``times_of``."""
Look = Callable[[], Mapping[str, float]]
"""Looks at a list or a page once; milliseconds by name."""
BARS = {
    "manager, CPU ms per host and interval": 1.5,
    "PostgreSQL, CPU ms per host and interval": 0.7,
    "late reports": 0.0,
    "requests that failed": 0.0,
    "1,000 VMs read, p95, ms": 50.0,
    "fleet page, first paint, median, ms": 300.0,
    "agents, CPU ms per host and interval": 3.0,
}
"""The most that each may be; the last leaves room for 1,000 hosts' agents beside their managers on two cores."""
_BEGIN_PER_S = 8.0
"""So many hosts begin in a second, if not said otherwise: a first report is ten times as long as others."""
_HOSTS_PER_WORKER = 500
"""A manager process takes about 3 ms of CPU time per host and interval in a fleet's first minutes: 0.3 of a core."""


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    hosts: int
    vms: int
    interval_s: float
    seconds: float
    warm_up_s: float
    reads_per_s: float
    registrations_per_s: float
    statements: bool
    ramp_s: float
    grace_s: float
    workers: int
    small_fleet: int | None = None
    browser: bool = True


def register(database_url: str, hosts: Sequence[str], vms: int) -> None:
    """All hosts with their VMs and applications, straight into the database: by requests a host takes 0.6 s."""
    with closing(open_database(database_url)) as database, Progress(transient=True) as shown:
        for host in shown.track(hosts, description="registering"):
            with database.registering(host) as session:
                register_host(session, host, vms)


def register_host(session: Session, host: str, vms: int) -> None:
    """Half of its VMs serve applications, two each."""
    now, names = datetime.now(UTC), vm_names(host, vms)
    critical = names[: 2 * TIERS]
    put_host(session, HostSpec(host, policy="fair"), now, _in_any_case)
    for name in names:
        vm_class = VmClass.CRITICAL if name in critical else VmClass.BATCH
        put_vm(session, VmSpec(name, vm_class, host=host), now, _in_any_case)
    for number in range(len(critical) // 2):
        tier = Tier("web", tuple(critical[2 * number : 2 * number + 2]))
        application = Application(f"{host}-app-{number}", (tier,), Sla(50.0))
        put_application(session, application, now, _in_any_case)


def _in_any_case(_etag: str | None) -> None:
    """No condition."""


def postgres_cpu_s(server: PostgresServer) -> float:
    """CPU seconds of all processes of a server, those that have ended too."""
    postmaster = int((server.folder / "data/postmaster.pid").read_text().split("\n", 1)[0])
    used_s = 0.0
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            if int(folder.name) == postmaster:
                used_s += sum(map(int, fields[11:15])) / 100
            elif int(fields[1]) == postmaster:
                used_s += sum(map(int, fields[11:13])) / 100
    return used_s


def memory_mib(server: PostgresServer) -> float:
    """Memory of all processes of a server, what they share counted once: proc_pid_smaps(5)."""
    postmaster = int((server.folder / "data/postmaster.pid").read_text().split("\n", 1)[0])
    children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
    kib = 0
    for pid in (postmaster, *children):
        with contextlib.suppress(OSError):  # it has ended
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            kib += next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)
    return kib / 1024


@dataclass(frozen=True)
class TableSize:
    """Of one table: its rows, and its bytes with indices."""

    rows: int
    size_bytes: int


def commits_and_flushes(url: str) -> tuple[int, int]:
    """Transactions that were committed, and flushes of the log to disk: fewer where commits share one."""
    query = "SELECT xact_commit, wal_sync FROM pg_stat_database, pg_stat_wal WHERE datname = current_database()"
    with psycopg.connect(url) as connection:
        [(commits, flushes)] = connection.execute(query).fetchall()
    return commits, flushes


def sizes(url: str) -> dict[str, TableSize]:
    """Of all tables, with their partitions."""
    query = (
        "SELECT coalesce(pg_partition_root(oid), oid)::regclass::text, sum(pg_total_relation_size(oid))::bigint"
        " FROM pg_class WHERE relkind IN ('r', 'p') AND relnamespace = 'public'::regnamespace GROUP BY 1"
    )
    with psycopg.connect(url) as connection:
        found = connection.execute(query).fetchall()
        counts = [connection.execute(f'SELECT count(*) FROM "{name}"').fetchone() for name, _ in found]
        return {name: TableSize(row[0], size) for (name, size), row in zip(found, counts, strict=True) if row}


def grown_bytes(before: TableSize, after: TableSize) -> float:
    """By how much a table grew for the rows that it has more; those that were replaced are taken away again."""
    return (after.rows - before.rows) * after.size_bytes / max(after.rows, 1)


@dataclass(frozen=True)
class Statement:
    """A statement of SQL, how often PostgreSQL executed it per report, and for how many milliseconds."""

    sql: str
    calls: float
    took_ms: float


def forget_statements(url: str) -> None:
    """Count statements from now on."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        connection.execute("SELECT pg_stat_statements_reset()")


def read_statements(url: str, reports: int) -> list[Statement]:
    """What was executed since ``forget_statements``, the longest in all first."""
    query = "SELECT query, calls, total_exec_time FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat_statements%'"
    alike: dict[str, list[tuple[float, float]]] = {}
    with psycopg.connect(url) as connection:
        for sql, calls, took_ms in connection.execute(query):
            shape = re.sub(r"\(\$\d+.*?\)", "(...)", " ".join(sql.split()))  # lists of parameters differ in length
            alike.setdefault(shape, []).append((calls / reports, took_ms / reports))
    statements = [Statement(shape, *map(sum, zip(*parts, strict=True))) for shape, parts in alike.items()]
    return sorted(statements, key=lambda statement: -statement.took_ms)


@dataclass(frozen=True)
class Result:
    """Of the fleet in the time that counts. Shares are of one core."""

    hosts: int
    vms: int
    interval_s: float
    workers: int
    registering_s: float
    ramp_s: float
    seconds: float
    reports_per_s: float
    failed: int
    failed_requests: int
    report_ms: Spread
    late_ms: Spread
    told_ms: Spread
    late_reports: int
    longest_gap_s: float
    read_ms: dict[str, Spread]
    read_p95_ms: dict[str, float]
    sent_bytes_per_s: float
    agents_share: float
    agents_mib: float
    manager_share: float
    manager_mib: float
    postgres_share: float
    postgres_mib: float
    growth_bytes_per_day: dict[str, float]
    busy_share: float
    commits_per_s: float
    flushes_per_s: float
    statements: list[Statement]

    @property
    def manager_ms(self) -> float:
        """Manager CPU milliseconds per host and interval."""
        return self.manager_share * self.interval_s / self.hosts * 1000

    @property
    def postgres_ms(self) -> float:
        """PostgreSQL CPU milliseconds per host and interval."""
        return self.postgres_share * self.interval_s / self.hosts * 1000

    @property
    def agents_ms(self) -> float:
        """CPU milliseconds of an agent and its simulated host per interval."""
        return self.agents_share * self.interval_s / self.hosts * 1000

    @property
    def host_mb_per_day(self) -> float:
        """What the database grows by, per host."""
        return sum(self.growth_bytes_per_day.values()) / self.hosts / 1e6

    def bars(self) -> dict[str, float]:
        """What there are bars for, as measured; nothing for what was not."""
        values = (
            *(self.manager_ms, self.postgres_ms, self.late_reports, self.failed_requests),
            self.read_p95_ms.get(f"GET {MOST_VMS}"),
            self.read_ms[FIRST_PAINT].median if FIRST_PAINT in self.read_ms else None,
            self.agents_ms,
        )
        return {name: value for name, value in zip(BARS, values, strict=True) if value is not None}


def manager_usage(pid: int) -> Usage:
    """Of a manager with all its processes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    parts = [usage(one) for one in (pid, *map(int, children))]
    return Usage(*(sum(values) for values in zip(*map(astuple, parts), strict=True)))


def read(looks: Sequence[Look], until_s: float, per_s: float) -> dict[str, list[float]]:
    """Look at lists and pages by turns, ``per_s`` times a second; milliseconds by name."""
    took_ms: dict[str, list[float]] = {}
    for look in cycle(looks):
        if per_s:
            for name, spent_ms in look().items():
                took_ms.setdefault(name, []).append(spent_ms)
        if time.monotonic() > until_s:
            break
        time.sleep(1 / per_s if per_s else 0.5)
    return took_ms


def list_look(client: httpx.Client, path: str) -> Look:
    """Looks at a list."""

    def look() -> Mapping[str, float]:
        began_s = time.perf_counter()
        client.get(path).raise_for_status()
        return {f"GET {path}": (time.perf_counter() - began_s) * 1000}

    return look


def page_look(load: Callable[[], Mapping[str, float]]) -> Look:
    """Looks at the fleet page, which ``load`` loads."""

    def look() -> Mapping[str, float]:
        times = load()
        return {name: times[time_name] for name, time_name in PAINTS.items()}

    return look


def measure(
    manager: ManagerProcess,
    server: PostgresServer,
    url: str,
    pipes: Sequence[Connection],
    options: Options,
    registering_s: float,
    load: Callable[[], Mapping[str, float]] | None,
) -> Result:
    """Let the agents run, first without counting.

    ``registering_s`` is how long it took to register all; ``load`` loads the fleet page.
    """
    pid = manager.pid
    looks = [list_look(manager.client, path) for path in READS]
    if load is not None:
        looks.append(page_look(load))
    time.sleep(options.warm_up_s)
    for pipe in pipes:
        pipe.send("count")
    before: tuple[Usage, float, dict[str, TableSize], tuple[float, float]]
    if options.statements:
        forget_statements(url)
    before = manager_usage(pid), postgres_cpu_s(server), sizes(url), host_cpu_s()
    commits_before = commits_and_flushes(url)
    began_s = time.monotonic()
    with visitors(manager.client, host_names(options.hosts), options.registrations_per_s):
        reads = read(looks, began_s + options.seconds, options.reads_per_s)
    spent_s = time.monotonic() - began_s
    after, after_s, after_bytes, after_cpu = manager_usage(pid), postgres_cpu_s(server), sizes(url), host_cpu_s()
    postgres_mib = memory_mib(server)
    commits, flushes = (now - then for now, then in zip(commits_and_flushes(url), commits_before, strict=True))
    for pipe in pipes:
        pipe.send("stop")
    driven: list[Driven] = [pipe.recv() for pipe in pipes]
    reports = round(spent_s / options.interval_s * options.hosts)
    statements = read_statements(url, reports) if options.statements else []
    grown = {name: grown_bytes(before[2][name], size) / spent_s * 86400 for name, size in after_bytes.items()}
    told_s = [told for one in driven for told in one.told_s]
    return Result(
        hosts=options.hosts,
        vms=options.vms,
        interval_s=options.interval_s,
        workers=options.workers,
        registering_s=registering_s,
        ramp_s=options.ramp_s,
        seconds=spent_s,
        reports_per_s=len(told_s) / spent_s,
        failed=sum(one.failed for one in driven),
        failed_requests=sum(one.failed_requests for one in driven),
        report_ms=Spread.of([1000 * took for one in driven for took in one.took_s]),
        late_ms=Spread.of([1000 * late for one in driven for late in one.late_s]),
        told_ms=Spread.of([1000 * told for told in told_s]),
        late_reports=late_reports(told_s, options.interval_s, options.grace_s),
        longest_gap_s=max(gap_s for one in driven for gap_s in one.gap_s),
        read_ms={path: Spread.of(took) for path, took in reads.items()},
        read_p95_ms={path: percentile(took, 95) for path, took in reads.items()},
        sent_bytes_per_s=sum(one.sent_bytes for one in driven) / spent_s,
        agents_share=sum(one.cpu_s for one in driven) / spent_s,
        agents_mib=sum(one.most_mib for one in driven),
        manager_share=(after.cpu_s - before[0].cpu_s) / spent_s,
        manager_mib=after.most_mib,
        postgres_share=(after_s - before[1]) / spent_s,
        postgres_mib=postgres_mib,
        growth_bytes_per_day={
            name: size for name, size in sorted(grown.items(), key=lambda item: -item[1]) if size > 0
        },
        busy_share=(after_cpu[0] - before[3][0]) / (after_cpu[1] - before[3][1]),
        commits_per_s=commits / spent_s,
        flushes_per_s=flushes / spent_s,
        statements=statements,
    )


def late_reports(told_s: Sequence[float], interval_s: float, grace_s: float) -> int:
    """How many of the reports came too late, from when a tick was due until its report was acknowledged."""
    return sum(told > interval_s + grace_s for told in told_s)


def percentile(values: Sequence[float], percent: float) -> float:
    """The nearest rank of at least one value."""
    return sorted(values)[math.ceil(len(values) * percent / 100) - 1]


def large(result: Result) -> Iterator[tuple[str, str]]:
    """The same with ``LARGE_FLEET`` hosts, if cost grows with the number of reports."""
    times = LARGE_FLEET / result.hosts
    cores, postgres = result.manager_share * times, result.postgres_share * times
    yield "reports a second", f"{result.reports_per_s * times:,.0f}"
    yield "cores of managers", f"{cores:.1f}: {math.ceil(cores / CORE_SHARE)} processes at {CORE_SHARE:.0%} of a core"
    yield "cores of PostgreSQL", f"{postgres:.1f}"
    yield "received by managers", f"{result.sent_bytes_per_s * times / 1e6:.1f} MB/s"
    yield "written before retention", f"{sum(result.growth_bytes_per_day.values()) * times / 1e9:,.0f} GB a day"


def show(result: Result) -> None:
    """Print tables."""
    table = Table("", "", show_header=False, title="fleet")
    table.add_row("hosts, VMs each, interval", f"{result.hosts}, {result.vms}, {result.interval_s:g} s")
    table.add_row("registered in, agents began within", f"{result.registering_s:.0f} s, {result.ramp_s:.0f} s")
    table.add_row("measured for", f"{result.seconds:.0f} s; machine busy {result.busy_share:.0%}")
    failures = f"requests that failed: {result.failed_requests}; agents without a manager at the end: {result.failed}"
    table.add_row("reports a second", f"{result.reports_per_s:.1f}; {failures}")
    late = f"{result.late_reports} of {result.told_ms.count}; longest time without one of a host"
    table.add_row("late reports", f"{late} {result.longest_gap_s:.1f} s")
    spreads = (
        ("a request", result.report_ms),
        ("ticks and turns begin late by", result.late_ms),
        ("from a tick to its report acknowledged", result.told_ms),
    )
    for name, spread in spreads:
        table.add_row(f"{name}, median, p99, most", f"{spread.median:.1f}, {spread.p99:.1f}, {spread.largest:.1f} ms")
    for path, spread in result.read_ms.items():
        figures = f"median {spread.median:.1f}, p95 {result.read_p95_ms[path]:.1f}, p99 {spread.p99:.1f} ms"
        table.add_row(path, f"{figures} of {spread.count}")
    workers = f"manager, processes: {result.workers}"
    table.add_row(workers, f"{result.manager_share:.1%} of a core, {result.manager_mib:.0f} MiB at most")
    table.add_row("PostgreSQL", f"{result.postgres_share:.1%} of a core, {result.postgres_mib:.0f} MiB at the end")
    table.add_row("agents, simulation included", f"{result.agents_share:.1%} of a core, {result.agents_mib:.0f} MiB")
    spent = f"manager {result.manager_ms:.2f}, PostgreSQL {result.postgres_ms:.2f}, agents {result.agents_ms:.2f} ms"
    table.add_row("CPU per host and interval", spent)
    table.add_row("commits, flushes a second", f"{result.commits_per_s:.1f}, {result.flushes_per_s:.1f}")
    for name, size in result.growth_bytes_per_day.items():
        table.add_row(f"table {name} grows a day by", f"{size / 1e9:.2f} GB before retention")
    table.add_row("all tables, a host and day, before older rows are packed", f"{result.host_mb_per_day:.1f} MB")
    console = Console(width=120)
    console.print(table)
    table = Table("bar", "most", "measured", "", title="bars")
    for name, value in result.bars().items():
        table.add_row(name, f"{BARS[name]:g}", f"{value:.2f}", verdict(value, BARS[name]))
    console.print(table)
    if result.statements:
        calls, took_ms = (sum(getattr(one, name) for one in result.statements) for name in ("calls", "took_ms"))
        table = Table("statement", "calls", "ms", title=f"PostgreSQL per report: {calls:.1f} calls, {took_ms:.2f} ms")
        for one in result.statements[:_MOST_STATEMENTS]:
            table.add_row(one.sql[:90], f"{one.calls:.2f}", f"{one.took_ms:.3f}")
        console.print(table)
    table = Table("", "", show_header=False, title=f"calculated: {LARGE_FLEET:,} hosts")
    for name, value in large(result):
        table.add_row(name, value)
    console.print(table)


def run(options: Options) -> Result:
    """Start everything, measure, stop everything."""
    hosts = host_names(options.hosts)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eqp-fleet-")))
        server = stack.enter_context(
            postgres_server(durable=True, preload="pg_stat_statements" if options.statements else "")
        )
        url = server.create("fleet")
        more = () if options.small_fleet is None else ("--small-fleet", f"{options.small_fleet}")
        manager = stack.enter_context(running_manager(folder, url, options.interval_s, options.workers, more))
        began_s = time.monotonic()
        register(url, hosts, options.vms)
        registering_s = time.monotonic() - began_s
        pipes = agents_of(stack, hosts, manager, options)
        with Progress(transient=True) as shown:
            shown.add_task("agents begin", total=None)
            for pipe in pipes:
                pipe.recv()
        looks = options.browser and options.reads_per_s > 0
        load = stack.enter_context(page_loads(manager.url, manager.client, folder)) if looks else None
        return measure(manager, server, url, pipes, options, registering_s, load)


def agents_of(stack: ExitStack, hosts: Sequence[str], manager: ManagerProcess, options: Options) -> list[Connection]:
    """Start the agents' processes; each says once when all of its agents have begun."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eqp-agents-", dir=memory_folder())))
    context = multiprocessing.get_context("spawn")
    pipes = []
    for number in range(DRIVERS):
        own, theirs = context.Pipe()
        mine = hosts[number::DRIVERS]
        ordered = (manager.url, manager.token, mine, options.vms, options.interval_s, options.ramp_s, folder)
        process = context.Process(target=drive, args=(Orders(*ordered), theirs), daemon=True)
        process.start()
        theirs.close()  # so that ``recv`` raises EOFError if the process ends
        stack.callback(process.join, 60)
        pipes.append(own)
    return pipes


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=300)
    parser.add_argument("--vms", type=int, default=20)
    parser.add_argument("--interval-s", type=float, default=5.0)
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--warm-up-s", type=float, default=20.0)
    parser.add_argument("--reads-per-s", type=float, default=2.0)
    parser.add_argument("--registrations-per-s", type=float, default=0.0, help="VMs that come and go, meanwhile")
    parser.add_argument("--no-browser", action="store_true", help="nobody opens the fleet page")
    parser.add_argument("--ramp-s", type=float, help=f"agents begin within; {_BEGIN_PER_S:g} hosts a second by default")
    parser.add_argument("--grace-s", type=float, default=1.0, help="a report is late so long after its interval")
    workers = f"processes of the manager; by default one for each {_HOSTS_PER_WORKER} hosts"
    parser.add_argument("--workers", type=int, help=workers)
    parser.add_argument("--small-fleet", type=int, help="the manager's setting: 0 lets few hosts report as many do")
    parser.add_argument("--statements", action="store_true", help="list PostgreSQL's statements per report")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    options = Options(
        given.hosts,
        given.vms,
        given.interval_s,
        given.seconds,
        given.warm_up_s,
        given.reads_per_s,
        given.registrations_per_s,
        given.statements,
        given.hosts / _BEGIN_PER_S if given.ramp_s is None else given.ramp_s,
        given.grace_s,
        given.workers or math.ceil(given.hosts / _HOSTS_PER_WORKER),
        given.small_fleet,
        not given.no_browser,
    )
    with undone_when_told_to_end():
        result = run(options)
    print(machine())
    show(result)
    bars = {name: {"most": BARS[name], "measured": value} for name, value in result.bars().items()}
    write_json(given.json, {"bars": bars, "result": asdict(result), "large": dict(large(result))})


if __name__ == "__main__":
    main()
