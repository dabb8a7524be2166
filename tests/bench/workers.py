"""What worker processes bring: requests per second of one manager by the number of its workers.

    python -m tests.bench.workers [--workers 1 2] [--seconds 10] [--clients 16] [--json FILE]

A PostgreSQL of its own with a small fleet, ``equipoise manager``, and clients in another process that read a list of
100 VMs over connections that stay open. All of them share this machine's CPUs, which is what bounds the gain.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from manager.store.database import open_database
from tests.api.conftest import START
from tests.bench.figures import Spread, machine, write_json
from tests.bench.fleet_lists import Fleet, fill
from tests.bench.site import ManagerProcess, usage
from tests.postgres import PostgresServer, postgres_server

LIST = "/api/v1/vms?limit=100"
FLEET = Fleet(hosts=50, vms=20, applications=20)


@dataclass(frozen=True, slots=True)
class Throughput:
    """Requests per second with so many workers, their durations, and CPU time of the manager for each."""

    workers: int
    per_s: float
    duration_ms: Spread
    manager_cpu_ms: float


def drive(url: str, token: str, clients: int, seconds: float) -> list[float]:
    """Ask again and again with so many clients; returns how long each answer took, in milliseconds."""

    async def ask(client: httpx.AsyncClient, until_s: float) -> list[float]:
        times_ms = []
        while (begun_s := time.perf_counter()) < until_s:
            (await client.get(f"{url}{LIST}")).raise_for_status()
            times_ms.append((time.perf_counter() - begun_s) * 1000)
        return times_ms

    async def all_of_them() -> list[float]:
        limits = httpx.Limits(max_connections=clients, max_keepalive_connections=clients)
        async with httpx.AsyncClient(headers={"Authorization": f"Bearer {token}"}, limits=limits, timeout=30) as client:
            until_s = time.perf_counter() + seconds
            parts = await asyncio.gather(*(ask(client, until_s) for _ in range(clients)))
        return [time_ms for part in parts for time_ms in part]

    return asyncio.run(all_of_them())


def cpu_s(manager: ManagerProcess) -> float:
    """CPU time of the manager's processes."""
    children = Path(f"/proc/{manager.pid}/task/{manager.pid}/children").read_text().split()
    return sum(usage(int(pid)).cpu_s for pid in (manager.pid, *children))


def measure(server: PostgresServer, workers: int, clients: int, seconds: float) -> Throughput:
    """A manager with so many workers on a new database."""
    url = server.create(f"workers-{workers}")
    database = open_database(url)
    database.upgrade()
    fill(database, FLEET, START)
    database.close()
    spawned = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as name, ProcessPoolExecutor(1, mp_context=spawned) as others:
        manager = ManagerProcess(Path(name), url, 5.0, workers)
        try:
            others.submit(
                drive, manager.url, manager.token, clients, 3.0
            ).result()  # all workers serve, caches are full
            begun_cpu_s = cpu_s(manager)
            times_ms = others.submit(drive, manager.url, manager.token, clients, seconds).result()
            used_s = cpu_s(manager) - begun_cpu_s
        finally:
            manager.close()
    return Throughput(workers, len(times_ms) / seconds, Spread.of(times_ms), 1000 * used_s / len(times_ms))


def show(results: Sequence[Throughput]) -> None:
    """Print a table."""
    table = Table("workers", "requests/s", "ms: median, p99", "manager CPU ms per request")
    for result in results:
        spread = f"{result.duration_ms.median:.0f}, {result.duration_ms.p99:.0f}"
        table.add_row(f"{result.workers}", f"{result.per_s:.0f}", spread, f"{result.manager_cpu_ms:.1f}")
    Console(width=120).print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    print(machine())
    with postgres_server() as server:
        results = [measure(server, workers, options.clients, options.seconds) for workers in options.workers]
    show(results)
    write_json(options.json, {"workers": [asdict(result) for result in results]})


if __name__ == "__main__":
    main()
