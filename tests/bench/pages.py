"""What the dashboard's pages cost: how soon something is seen, and what a page of live charts costs the browser.

    python -m tests.bench.pages [--parts fleet large shop idle] [--loads 20] [--seconds 60] [--json FILE]

Bars: first paint of the fleet page at most 300 ms with 100 applications, and with 1,000 hosts and 2,000 applications on
PostgreSQL (``large``); a page of live charts at most 5 % of a core.
Each load is in a new context of a real Chromium: nothing is cached and no code is compiled yet. First paint is counted
from the beginning of the navigation, so the manager's time is in it (``content``: until the largest text is painted, as
what stands above it may come before; ``answer``: until the page's last byte; ``later``: of the last loads, when the
manager has read all of the last minutes, which it does bit by bit). The CPU time is that of
all the browser's processes, which draw without a graphics card. Browser, manager and simulated host share this machine.
"""

from __future__ import annotations

import argparse
import math
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from playwright.sync_api import Browser, Page
from rich.console import Console
from rich.table import Table

from manager.cli.options import AGENT_TOKEN_FILE
from manager.model.histogram import Histogram
from manager.protocol.client import ManagerClient
from manager.store.database import open_database
from tests.bench.figures import STAT, Spread, host_cpu_s, machine, undone_when_told_to_end, verdict, write_json
from tests.bench.fleet_lists import Fleet
from tests.bench.fleet_lists import fill as fill_lists
from tests.bench.paints import times_of
from tests.e2e.browser import PEOPLES, Visits, chromium, installed
from tests.e2e.past import live_through
from tests.e2e.service import Service
from tests.postgres import postgres_server

BAR_PAINT_MS, BAR_CPU_SHARE = 300.0, 0.05
APPLICATIONS = (100, 1000)
PARTS = ("fleet", "large", "shop", "idle")
LARGE = Fleet(hosts=1000, vms=20, applications=2000)
LARGE_PAGES = {
    "fleet": "/",
    "fleet, searched": "/?search=app-19",
    "hosts": "/hosts",
    "inventory": "/registered",
    "running VMs": "/registered/pick",
}
LATER = 5  # loads
SLOT_S, SLOTS, SAMPLES = 5.0, 120, 50
WARM_S = 10.0
HOUR_S = 3600.0
SCENARIO = str(Path(__file__).parents[1] / "e2e/shop.toml")


@dataclass(frozen=True, slots=True)
class Load:
    """Loads of one page. Times in milliseconds since the navigation began; ``bytes`` as sent, with all files."""

    page: str
    applications: int
    paint_ms: Spread
    content_ms: Spread
    answer_ms: Spread
    later_ms: Spread
    ready_ms: Spread
    kib: float
    elements: int
    bar_ms: float | None


@dataclass(frozen=True, slots=True)
class Idle:
    """What a page costs that is only looked at, in shares of a core; ``drawing_share`` is that of its own process."""

    page: str
    interval_s: float
    cpu_share: float
    drawing_share: float
    seconds: float
    bar: float | None


def fill(service: Service, applications: int) -> None:
    """Applications with one VM each on 10 hosts, the last ten minutes of each, and its state."""
    chance = Random(1)
    client = service.client()
    for number in range(applications):
        name = f"app-{number:04d}"
        client.request("PUT", f"/vms/{name}", body={"class": "critical", "host": service.host})
        sla = {"response_time_ms": 20, "max_rate_rps": 1000}
        body = {"tiers": [{"name": "web", "vms": [name]}], "sla": sla}
        client.request("PUT", f"/applications/{name}", body=body)
    client.close()
    agent = service.client(service.token(AGENT_TOKEN_FILE))
    newest_s = math.floor(time.time() / SLOT_S) * SLOT_S
    windows = [
        window(f"app-{number:04d}", newest_s - SLOT_S * back, chance)
        for number in range(applications)
        for back in range(SLOTS)
    ]
    for begin in range(0, len(windows), 1000):
        report(agent, service.host, windows[begin : begin + 1000])
    agent.close()


def report(client: ManagerClient, host: str, windows: Sequence[object]) -> None:
    """Tell the manager of slots of response times."""
    client.request("POST", f"/hosts/{host}/report", body={"agent_version": "0", "windows": windows})


def window(application: str, end_s: float, chance: Random) -> dict[str, object]:
    """A slot of response times, log-normal about 10 ms."""
    end = datetime.fromtimestamp(end_s, UTC)
    times = Histogram.of(chance.lognormvariate(math.log(10_000), 0.4) for _ in range(SAMPLES))
    return {
        "application": application,
        "start": (end - timedelta(seconds=SLOT_S)).isoformat(),
        "end": end.isoformat(),
        "buckets": dict(times.buckets),
    }


def measure_loads(visits: Visits, service: Service, page: str, path: str, applications: int, loads: int) -> Load:
    """Load a page so many times, after one load that is not counted: the server's own caches are warm."""
    found = []
    for number in range(loads + 1):
        opened = visits.page(service)
        times = times_of(opened, path)
        if number:
            found.append(times)
        opened.context.close()
    spreads = [Spread.of([one[name] for one in found]) for name in ("paint", "content", "answer", "ready")]
    bar_ms = BAR_PAINT_MS if page == "fleet" and applications in {APPLICATIONS[0], LARGE.applications} else None
    spreads.insert(3, Spread.of([one["answer"] for one in found[-LATER:]]))
    return Load(page, applications, *spreads, found[-1]["bytes"] / 1024, int(found[-1]["elements"]), bar_ms)


def measure_idle(
    browser: Browser, page: Page, name: str, path: str, interval_s: float, seconds: float, bar: float | None
) -> Idle:
    """Look at a page, and count what all of the browser's processes use meanwhile (CDP: SystemInfo.getProcessInfo)."""
    page.goto(path)
    page.wait_for_timeout(WARM_S * 1000)
    session = browser.new_browser_cdp_session()

    def used_s() -> tuple[float, float]:
        processes = session.send("SystemInfo.getProcessInfo")["processInfo"]
        drawing = [one["cpuTime"] for one in processes if one["type"] == "renderer"]
        return sum(one["cpuTime"] for one in processes), sum(drawing)

    before_s, began_s = used_s(), time.monotonic()
    page.wait_for_timeout(seconds * 1000)
    after_s, spent_s = used_s(), time.monotonic() - began_s
    session.detach()
    shares = [(after - before) / spent_s for before, after in zip(before_s, after_s, strict=True)]
    return Idle(name, interval_s, *shares, spent_s, bar)


@contextmanager
def fleet_of(applications: int) -> Iterator[Service]:
    """A manager of many applications, whose host does not report any more."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), host="kvm1", interval_s=SLOT_S)
        try:
            service.prepare()
            service.add_users()
            fill(service, applications)
            yield service
        finally:
            service.close()


@contextmanager
def large_fleet() -> Iterator[Service]:
    """A manager of ``LARGE`` on PostgreSQL, of which nothing changes: no response time becomes old, no host silent."""
    with tempfile.TemporaryDirectory() as folder, postgres_server() as server:
        more = {"database_url": server.create("pages"), "workers": 1, "silent_intervals": 10_000}
        service = Service(Path(folder), host="kvm0", interval_s=SLOT_S, stale_s=3600, more=more)
        try:
            service.prepare()
            service.add_users()
            database = open_database(service.database_url)
            fill_lists(database, LARGE, datetime.now(UTC))
            database.close()
            yield service
        finally:
            service.close()


@contextmanager
def shop(interval_s: float) -> Iterator[Service]:
    """The simulated host of the screenshots, an hour old and alive."""
    with tempfile.TemporaryDirectory() as folder:
        service = Service(Path(folder), SCENARIO, host="kvm7", interval_s=interval_s)
        try:
            service.prepare()
            service.add_users()
            live_through(service, time.time() - HOUR_S, time.time())
            service.start("agent")
            yield service
        finally:
            service.close()


def machine_times_s() -> tuple[float, float, float]:
    """Seconds of all CPUs since boot: busy, of that stolen by the hypervisor, and in all (proc_stat(5))."""
    busy_s, all_s = host_cpu_s()
    stolen = int(STAT.read_text().split("\n", 1)[0].split()[8])
    return busy_s, stolen / os.sysconf("SC_CLK_TCK"), all_s


def run(parts: Sequence[str], loads: int, seconds: float) -> tuple[list[Load], list[Idle]]:
    """The measurements of some parts."""
    painted: list[Load] = []
    looked: list[Idle] = []
    with chromium(installed(PEOPLES)) as browser, tempfile.TemporaryDirectory() as sessions:
        visits = Visits(browser, Path(sessions))
        for applications in APPLICATIONS if "fleet" in parts else ():
            with fleet_of(applications) as service:
                painted.append(measure_loads(visits, service, "fleet", "/", applications, loads))
        if "large" in parts:
            with large_fleet() as service:
                for name, path in LARGE_PAGES.items():
                    painted.append(measure_loads(visits, service, name, path, LARGE.applications, loads))
        if "shop" in parts:
            with shop(SLOT_S) as service:
                for name, path in (
                    ("application", "/applications/shop"),
                    ("host", "/hosts/kvm7"),
                    ("decisions", "/decisions"),
                ):
                    painted.append(measure_loads(visits, service, name, path, 3, loads))
        for interval_s in (SLOT_S, 1.0) if "idle" in parts else ():
            with shop(interval_s) as service:
                page = visits.page(service)
                looked.append(measure_idle(browser, page, "an empty one", "about:blank", interval_s, seconds, None))
                for name, path in (("fleet", "/"), ("application", "/applications/shop"), ("host", "/hosts/kvm7")):
                    bar = BAR_CPU_SHARE if name == "application" else None
                    looked.append(measure_idle(browser, page, name, path, interval_s, seconds, bar))
                page.context.close()
    return painted, looked


def show(painted: Sequence[Load], looked: Sequence[Idle]) -> None:
    """Print two tables."""
    console = Console(width=120)
    table = Table(
        "page",
        "applications",
        "first paint ms: median, p99",
        "content",
        "answer",
        "later",
        "ready",
        "KiB",
        "elements",
        "bar",
    )
    for one in painted:
        bar = "" if one.bar_ms is None else f"{one.bar_ms:g} ms: {verdict(one.paint_ms.median, one.bar_ms)}"
        paint = f"{one.paint_ms.median:.0f}, {one.paint_ms.p99:.0f}"
        times = [f"{spread.median:.0f}" for spread in (one.content_ms, one.answer_ms, one.later_ms, one.ready_ms)]
        table.add_row(one.page, str(one.applications), paint, *times, f"{one.kib:.0f}", str(one.elements), bar)
    console.print(table)
    table = Table("page looked at", "interval", "CPU, share of a core", "of that its own process", "bar")
    for it in looked:
        bar = "" if it.bar is None else f"{it.bar:.0%}: {verdict(it.cpu_share, it.bar)}"
        table.add_row(it.page, f"{it.interval_s:g} s", f"{it.cpu_share:.2%}", f"{it.drawing_share:.2%}", bar)
    console.print(table)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what is measured; all by default")
    parser.add_argument("--loads", type=int, default=20, help="how often each page is loaded")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long each page is looked at")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    before_s = machine_times_s()
    with undone_when_told_to_end():
        painted, looked = run(options.parts, options.loads, options.seconds)
    busy_s, stolen_s, all_s = (after - before for before, after in zip(before_s, machine_times_s(), strict=True))
    print(f"{machine()}; meanwhile busy {busy_s / all_s:.0%} of the time, stolen {stolen_s / all_s:.1%}")
    show(painted, looked)
    bars = {"paint_ms": BAR_PAINT_MS, "cpu_share": BAR_CPU_SHARE}
    body = {"bars": bars, "loads": [asdict(one) for one in painted], "looked_at": [asdict(one) for one in looked]}
    write_json(options.json, body)


if __name__ == "__main__":
    main()
