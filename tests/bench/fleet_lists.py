"""What the lists of a large fleet cost: their time, statements and rows, as pages and as JSON.

    python -m tests.bench.fleet_lists [--hosts 1000] [--vms 20] [--applications 2000] [--reads 20] [--json FILE]

A PostgreSQL of its own is filled directly: hosts with 20 VMs each, whose last ticks carry what ticks carry, and one
more that is not registered, and applications with ten minutes of windows. Then each list is asked for within this
process, without network and browser.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from sqlalchemy import insert, text

from manager.model.histogram import Histogram
from manager.model.registration import Mode, VmClass
from manager.protocol.report import TickStatus
from manager.store.database import Database, open_database
from manager.store.host_models import DomainRow
from manager.store.models import ApplicationRow, Base, HostRow, TierRow, TierVmRow, VmRow, VmStatusRow, WindowRow
from manager.store.tokens import Role
from tests.api.conftest import CAPABILITIES, START, status, tick
from tests.bench.figures import Spread, machine, write_json
from tests.bench.names import host_names
from tests.postgres import postgres_server
from tests.statements import counted
from tests.web.desk import Browser, Desk, make_desk

SLOT_S = 5
SLOTS = 120
"""Ten minutes of windows."""
LISTS = (
    "/",
    "/?sort=name&search=app-19",
    "/?host=kvm0500",
    "/?offset=1500",
    "/?group=state",
    "/?group=host",
    "/?group=host&offset=950",
    "/hosts",
    "/registered",
    "/registered/pick",
    "/registered/new/applications",
    "/registered/applications/app-0500",
    "/hosts/kvm0500/admission",
    "/what-if",
    "/what-if?application=app-0500",
    "/first",
    "/first?step=application",
    "/first?step=sources&application=app-0500",
    "/savings",
    "/control/hosts/kvm0500",
    "/control/applications/app-0500",
    "/applications/app-0500",
    "/forms/suggest/hosts?field=host&host=kvm05",
    "/forms/suggest/vms?field=vm&vm=-05",
    "/api/v1/fleet?limit=30&hosts_limit=12",
    "/api/v1/fleet/groups?group=host&limit=50",
    "/api/v1/fleet/hosts?limit=50",
    "/api/v1/fleet/hosts?limit=50&group=policy&sort=load",
    "/api/v1/hosts",
    "/api/v1/applications",
    "/api/v1/vms?limit=1000",
    "/api/v1/vms?host=kvm0500",
    "/api/v1/domains",
)


@dataclass(frozen=True, slots=True)
class Fleet:
    """The size of a fleet; ``vms`` are those of each host."""

    hosts: int
    vms: int
    applications: int


@dataclass(frozen=True, slots=True)
class ListCost:
    """What a list costs: the first answer, the later ones, the fewest statements and rows of these, and bytes.

    The fewest: an answer that renews the overview of the fleet reads that, too.
    """

    path: str
    first_ms: float
    later_ms: Spread
    statements: int
    rows: int
    kib: float


def last_tick(host: int) -> dict[str, Any]:
    """A host's last tick, with the load of its pCPUs."""
    busy = {str(cpu): 0.5 for cpu in range(64)}
    errors = 1 if host % 100 == 99 else 0
    return tick(errors=errors, busy_pcpus=busy)


def fill(database: Database, fleet: Fleet, now: datetime) -> None:
    """Insert all hosts, VMs, statuses, domains, applications and windows."""
    fixed = {"version": 1, "created_at": now, "updated_at": now}
    capabilities = CAPABILITIES | {"online_cpus": "0-63", "managed_cpus": "0-63"}

    def put(session: Any, table: type[Base], rows: Sequence[dict[str, Any]]) -> None:
        for first in range(0, len(rows), 5000):
            session.execute(insert(table), rows[first : first + 5000])

    hosts = [
        {
            **fixed,
            "id": number + 1,
            "name": name,
            "mode": Mode.ENFORCE,
            "policy": "priority",
            "pinning": True,
            "last_seen_at": now,
            "silent": number % 100 == 0,
            "agent_version": "1.0.0",
            "tick": last_tick(number),
            **TickStatus.model_validate(last_tick(number)).health._asdict(),
            "capabilities": capabilities,
        }
        for number, name in enumerate(host_names(fleet.hosts))
    ]
    places = [(host, vm) for host in range(fleet.hosts) for vm in range(fleet.vms)]
    names = [f"vm-{host:04}-{vm:02}" for host, vm in places]
    vms = [
        {
            **fixed,
            "id": number + 1,
            "name": name,
            "vm_class": VmClass.CRITICAL if vm < 4 else VmClass.BATCH,
            "libvirt_name": name,
        }
        for number, (name, (_, vm)) in enumerate(zip(names, places, strict=True))
    ]
    statuses = [
        {
            "vm": name,
            "host_id": host + 1,
            "at": now,
            "cpu_share": 0.01,
            "run_delay_share": 0.0,
            "body": json.dumps(status(name)),
        }
        for name, (host, _) in zip(names, places, strict=True)
    ]
    free = [((host, fleet.vms), f"free-{host:04}") for host in range(fleet.hosts)]
    domains = [
        {"host_id": host + 1, "libvirt_uuid": f"{host:08}-0000-4000-8000-{vm:012}", "libvirt_name": name}
        for (host, vm), name in (*zip(places, names, strict=True), *free)
    ]
    applications = [
        {
            **fixed,
            "id": number + 1,
            "name": f"app-{number:04}",
            "sla_response_time_ms": 4.0 if number % 100 == 0 else 5.2 if number % 100 == 1 else 50.0,
            "sla_percentile": 95.0,
        }
        for number in range(fleet.applications)
    ]
    tiers = [
        {"id": number + 1, "application_id": number + 1, "name": "web", "position": 0}
        for number in range(fleet.applications)
    ]
    critical = [vm["id"] for vm in vms if vm["vm_class"] is VmClass.CRITICAL]
    tier_vms = [
        {"vm_id": number, "tier_id": place * fleet.applications // len(critical) + 1, "position": place}
        for place, number in enumerate(critical)
    ]
    histogram = Histogram.of([5000.0 + 10 * step for step in range(200)])
    newest = datetime.fromtimestamp(now.timestamp() // SLOT_S * SLOT_S, UTC)
    with database.writing() as session:
        for table, rows in (
            (HostRow, hosts),
            (VmRow, vms),
            (VmStatusRow, statuses),
            (DomainRow, domains),
            (ApplicationRow, applications),
            (TierRow, tiers),
            (TierVmRow, tier_vms),
        ):
            put(session, table, rows)
        for back in range(1, SLOTS + 1):
            start = newest - timedelta(seconds=SLOT_S * back)
            end = start + timedelta(seconds=SLOT_S)
            put(
                session,
                WindowRow,
                [
                    {
                        "application_id": number + 1,
                        "slot": start,
                        "origin": "kvm0000",
                        "start_at": start,
                        "end_at": end,
                        "count": 200,
                        "histogram": histogram,
                        "requests": 200.0,
                    }
                    for number in range(fleet.applications)
                ],
            )
    with database._engine.connect() as connection:
        connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))


def measure(desk: Desk, browser: Browser, path: str, reads: int) -> ListCost:
    """Ask for a list, once and then ``reads`` times."""
    times_ms: list[float] = []
    counts: list[tuple[int, int]] = []
    for _ in range(reads + 1):
        with counted(desk.database) as count:
            begun_s = time.perf_counter()
            response = browser.client.get(path)
            size = len(response.get_data())
            times_ms.append((time.perf_counter() - begun_s) * 1000)
        counts.append((count.rows, count.statements))
        if response.status_code != 200:
            raise SystemExit(f"{path}: {response.status_code} {response.get_data(as_text=True)[:500]}")
    rows, statements = min(counts)
    return ListCost(path, times_ms[0], Spread.of(times_ms[1:]), statements, rows, size / 1024)


def show(costs: Sequence[ListCost]) -> None:
    """Print a table."""
    table = Table("list", "first ms", "later ms: median, p99", "statements", "rows", "KiB")
    for cost in costs:
        later = f"{cost.later_ms.median:.0f}, {cost.later_ms.p99:.0f}"
        table.add_row(cost.path, f"{cost.first_ms:.0f}", later, f"{cost.statements}", f"{cost.rows}", f"{cost.kib:.0f}")
    Console(width=120).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=1000)
    parser.add_argument("--vms", type=int, default=20, help="of each host")
    parser.add_argument("--applications", type=int, default=2000)
    parser.add_argument("--reads", type=int, default=20)
    parser.add_argument("--lists", nargs="+", default=LISTS, metavar="PATH")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with postgres_server() as server:
        database = open_database(server.create("lists"))
        database.upgrade()
        fill(database, Fleet(options.hosts, options.vms, options.applications), START)
        desk = make_desk(database)
        browser = desk.browser(Role.ADMIN)
        print(machine())
        costs = [measure(desk, browser, path, options.reads) for path in options.lists]
        show(costs)
        write_json(options.json, {"lists": [asdict(cost) for cost in costs]})
        database.close()


if __name__ == "__main__":
    main()
