"""How fast the REST interface reads lists and takes response times, through a real server and connection.

    python -m tests.bench.api [--database URL] [--json]

Bars (design, section 9): p95 of a list read at most 20 ms with 1,000 VMs; at least 20,000 response times a second in
batches. The client runs in a process of its own; both share this machine, which is printed with the numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import platform
import random
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
from sqlalchemy import delete

from manager.api.manager_server import make_server
from manager.model.histogram import Histogram
from manager.settings import load_settings
from manager.store.access_models import AuditRow
from manager.store.audit import forget
from manager.store.database import open_database
from manager.store.models import Base
from manager.store.tokens import Role, create_token
from policies.installed import load_policies

VMS = 1000
APPLICATIONS = 50
READS = 200
BATCHES = 100
CAPABILITIES = {
    "kernel": "6.1.0",
    "libvirt": "9.0.0",
    "cgroup_version": 2,
    "weights": {"minimum": 1, "maximum": 10000, "default": 100, "critical": 10000, "critical_min": 100, "batch": 1},
    "online_cpus": "0-63",
    "managed_cpus": "0-63",
    "schedstat": True,
}


@dataclass(frozen=True)
class Result:
    """One line of the table. ``bar`` is empty where there is none."""

    what: str
    p50_ms: float
    p95_ms: float
    rate_per_s: float
    bar: str
    met: bool


def serve(url: str, pipe: Connection) -> None:
    """A manager with an empty database; tells its port and an admin's token, and ends when told."""
    database = open_database(url)
    database.upgrade()
    with database.registering() as session:
        forget(session, datetime.now(UTC) + timedelta(days=1), sys.maxsize, sys.maxsize)
        for table in reversed(Base.metadata.sorted_tables):
            if table.name != AuditRow.__tablename__:
                session.execute(delete(table))
        _, secret = create_token(session, "bench", Role.ADMIN, None, datetime.now(UTC))
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = load_settings(None, {}, {"listen_port": port, "requests_per_s": 0, "samples_per_s": 0})
    server = make_server(settings, database, load_policies())
    server.start()
    pipe.send((port, secret))
    pipe.recv()
    server.close()
    database.close()


def fill(client: httpx.Client) -> None:
    """1,000 VMs on 5 hosts, each with a status, half of them in applications."""
    names = [f"vm-{number:04d}" for number in range(VMS)]
    for name in names:
        client.put(f"/vms/{name}", json={"class": "critical"}).raise_for_status()
    for number in range(APPLICATIONS):
        tiers = [{"name": "web", "vms": names[number * 10 : number * 10 + 10]}]
        body = {"tiers": tiers, "sla": {"response_time_ms": 50}}
        client.put(f"/applications/app-{number}", json=body).raise_for_status()
        client.post(f"/applications/app-{number}/samples", json={"times_ms": times(500)}).raise_for_status()
    for host in range(5):
        vms = [status(name, number) for number, name in enumerate(names[host * 200 : host * 200 + 200])]
        body = {"agent_version": "0", "capabilities": CAPABILITIES, "vms": vms}
        client.post(f"/hosts/kvm{host}/report", json=body).raise_for_status()


def status(name: str, number: int) -> dict[str, object]:
    """A VM with four vCPUs, so with six knobs."""
    pins = [
        {"knob": "vcpu_pin", "index": cpu, "value": str(cpu), "original": "0-63", "owned": True} for cpu in range(4)
    ]
    return {
        "vm": name,
        "libvirt_name": name,
        "libvirt_uuid": f"00000000-0000-4000-8000-{number:012d}",
        "pid": 1000 + number,
        "vcpus": 4,
        "cpu_share": 0.01,
        "run_delay_share": 0.001,
        "knobs": [
            {"knob": "weight", "index": 0, "value": "10000", "original": "100", "owned": True},
            *pins,
            {"knob": "emulator_pin", "index": 0, "value": "0-3", "original": "0-63", "owned": True},
        ],
    }


def slot(application: str, back: int) -> dict[str, object]:
    """A slot of 500 response times, so many slots ago."""
    end = datetime.now(UTC) - timedelta(seconds=5 * back)
    buckets = Histogram.of(time_ms * 1000 for time_ms in times(500)).buckets
    start = end - timedelta(seconds=5)
    return {
        "application": application,
        "start": start.isoformat(),
        "end": end.isoformat(),
        "buckets": buckets,
        "requests": 500,
    }


def times(count: int) -> list[float]:
    """Response times in milliseconds, log-normal about 10."""
    return [round(random.lognormvariate(math.log(10), 0.5), 3) for _ in range(count)]


def measure(what: str, act: Callable[[], object], repeats: int, each: int, bar_ms: float, bar_rate: float) -> Result:
    """Time ``act``, which handles ``each`` things."""
    spent_s = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        act()
        spent_s.append(time.perf_counter() - began_s)
    ordered = sorted(spent_s)
    p50_ms, p95_ms = (ordered[math.ceil(repeats * share) - 1] * 1000 for share in (0.5, 0.95))
    rate = each * repeats / sum(spent_s)
    bar = f"p95 <= {bar_ms:g} ms" if bar_ms else f">= {bar_rate:g}/s" if bar_rate else ""
    return Result(what, p50_ms, p95_ms, rate, bar, (not bar_ms or p95_ms <= bar_ms) and rate >= bar_rate)


def run(url: str) -> list[Result]:
    """All measurements on one database."""
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(url, theirs))
    process.start()
    port, secret = ours.recv()
    headers = {"Authorization": f"Bearer {secret}", "Content-Type": "application/json"}
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/api/v1", headers=headers, timeout=60) as client:
        fill(client)

        def read(path: str) -> Callable[[], object]:
            return lambda: client.get(path).raise_for_status()

        def post(count: int) -> Callable[[], object]:
            body = json.dumps({"times_ms": times(count)})  # made once: the client's work is not measured
            return lambda: client.post("/applications/app-0/samples", content=body).raise_for_status()

        def post_lines(count: int) -> Callable[[], object]:
            body = "\n".join(json.dumps({"time_ms": time_ms}) for time_ms in times(count))
            lines = {"Content-Type": "application/x-ndjson"}
            return lambda: client.post("/applications/app-1/samples", content=body, headers=lines).raise_for_status()

        def report(windows: int) -> Callable[[], object]:
            slots = [slot(f"app-{number % APPLICATIONS}", number // APPLICATIONS) for number in range(windows)]
            body = json.dumps({"agent_version": "0", "capabilities": CAPABILITIES, "windows": slots})
            return lambda: client.post("/hosts/kvm0/report", content=body).raise_for_status()

        results = [
            measure("GET /vms, all 1,000 in one part", read("/vms?limit=1000"), READS, VMS, 20, 0),
            measure("GET /vms, the first 100 of 1,000", read("/vms"), READS, 100, 20, 0),
            measure("GET /vms of one host, 200", read("/vms?limit=200&host=kvm0"), READS, 200, 20, 0),
            measure(f"GET /applications, {APPLICATIONS}", read("/applications"), READS, APPLICATIONS, 20, 0),
            measure("GET /hosts, 5", read("/hosts"), READS, 5, 20, 0),
            measure("GET assignment of 1,000 VMs", read("/hosts/kvm0/assignment"), READS, VMS, 0, 0),
            measure("POST samples, batches of 100", post(100), BATCHES, 100, 0, 0),
            measure("POST samples, batches of 1,000", post(1000), BATCHES, 1000, 0, 20_000),
            measure("POST samples, batches of 10,000", post(10_000), BATCHES, 10_000, 0, 20_000),
            measure("POST samples, 1,000 lines", post_lines(1000), BATCHES, 1000, 0, 20_000),
            measure("POST samples, 10,000 lines", post_lines(10_000), BATCHES, 10_000, 0, 20_000),
            measure("POST report with 150 windows", report(150), BATCHES, 150, 0, 0),
            measure("GET assignment with their slots", read("/hosts/kvm1/assignment"), READS, VMS, 0, 0),
        ]
    ours.send("end")
    process.join()
    return results


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="benchmark of the REST interface")
    parser.add_argument(
        "--database", default="", help="SQLAlchemy URL; all in it is deleted. Default: a new SQLite file"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = run(options.database or f"sqlite:///{Path(folder) / 'bench.db'}")
    machine = f"{os.cpu_count()} CPUs, Python {platform.python_version()}, Linux {platform.release()}"
    if options.json:
        print(json.dumps({"machine": machine, "results": [asdict(one) for one in results]}, indent=2))
        return
    print(machine)
    print(f"{'':36} {'p50 ms':>8} {'p95 ms':>8} {'rate /s':>10}  bar")
    for one in results:
        verdict = f"{one.bar}: {'met' if one.met else 'VIOLATED'}" if one.bar else ""
        print(f"{one.what:36} {one.p50_ms:8.1f} {one.p95_ms:8.1f} {one.rate_per_s:10.0f}  {verdict}")


if __name__ == "__main__":
    main()
