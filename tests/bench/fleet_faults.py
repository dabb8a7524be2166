"""Faults of a fleet's managers and database under load: what is lost, what control notices, and when all is well again.

    python -m tests.bench.fleet_faults [--hosts 60] [--vms 20] [--interval-s 5] [--fault-s 40] [--away-s 300]
        [--away-history-min 0] [--deliver-s 1800] [--only worker machine ...] [--json FILE]

Agents are those of ``tests.bench.fleet``, with the product's own timing of exchanges. They find two managers by one
name: one of three processes, one of two. These share a PostgreSQL that a second one follows (synchronous replication).
Its disk is a small one in memory, whose flushes can be made slower. It needs root. Agents give way to all else. Faults
follow each other:

    worker    one of three processes of a manager is killed
    machine   all processes of the other manager are killed; it starts again after ``--fault-s``
    slow      each flush of the database's disk takes 100 ms longer
    full      the database's disk is full
    failover  the database is killed; its follower is promoted 10 s later (sooner with a shorter ``--fault-s``)
    away      all managers are killed; they start again after ``--away-s``. With ``--away-history-min 60`` each
              agent then has an hour's history waiting, made in advance by the agents' own code with clocks set back

After each everything has ``--calm-s`` seconds, and after ``away`` until agents have delivered what had waited, at most
``--deliver-s``, and then ``--calm-s`` again. In the end what was acknowledged to any agent is compared with what is
stored. Everything shares this machine, so times are those of a fleet whose machines are as busy as this one.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path

import httpx
import psycopg
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from sqlalchemy import select

from manager.model.fields import timestamp
from manager.model.packed_records import moment_of, unpack_decisions, unpack_ticks
from manager.store.database import open_database
from manager.store.models import ApplicationRow
from manager.store.windows import list_windows
from tests.bench.fault_agents import History, HowMuchWaits, Keys, Orders, Seen, drive
from tests.bench.fault_figures import Found, Phase, Read, find
from tests.bench.fault_servers import ServerPair, server_pair
from tests.bench.figures import host_cpu_s, machine, undone_when_told_to_end, verdict, write_json
from tests.bench.fleet import register
from tests.bench.fleet_agents import REQUESTS, memory_folder
from tests.bench.names import host_names
from tests.bench.site import ManagerProcess
from tests.bench.vms import BenchError

FAULTS = ("worker", "machine", "slow", "full", "failover", "away")
BAR_RECOVERY_S = 120.0
DRIVERS = 20
"""Processes with agents: of hundreds in one, each of which has something to do, most wait for the interpreter."""
ADDRESSES = ("127.0.0.2", "127.0.0.3")
SLOW_FLUSH_MS = 100
DISK_MIB, HOST_DISK_MIB = 600, 3
_MANY = 1_000_000  # more windows than an application has
_LONGEST_OUTAGE_S = 10.0
_NAMED = 5
_LOOK_S = 10.0
_AS_BEFORE = 1.5
"""Delivered is what had waited once no more than so many times as much waits as before: each agent keeps its minute, so
what waits differs from moment to moment."""
_TURNS = 3
"""A host reports every two intervals; one that is without an answer for so many has missed its turn."""


@dataclass(frozen=True, slots=True)
class Options:
    """What was asked for. ``more``: arguments of the managers; ``workers``: processes of each."""

    hosts: int
    vms: int
    interval_s: float
    calm_s: float
    fault_s: float
    away_s: float
    faults: Sequence[str]
    away_history_min: float = 0.0
    deliver_s: float = 0.0
    more: Sequence[str] = ()
    workers: tuple[int, int] = (3, 2)


@dataclass(frozen=True, slots=True)
class Result:
    """Of all. ``lost`` and ``twice`` name some. ``waited``: how many items at all agents once a history was made."""

    hosts: int
    away_history_min: float
    waited: int
    found: list[Found]
    acknowledged: int
    stored: int
    lost: list[str]
    twice: list[str]
    refused: int
    undelivered: int
    busy_share: float


class Managers:
    """Two of them, each with an address of its own and the same port."""

    def __init__(self, folder: Path, url: str, options: Options) -> None:
        self._folder, self._url, self._options = folder, url, options
        self._port = 0
        self.running: dict[int, ManagerProcess] = {}

    def start(self, number: int) -> ManagerProcess:
        """Start one of them."""
        options, listen = self._options, (ADDRESSES[number], self._port)
        more = ("--state-dir", f"{self._folder / f'manager-{number}'}", *options.more)
        one = ManagerProcess(self._folder, self._url, options.interval_s, options.workers[number], listen, more)
        self._port = int(one.url.rpartition(":")[2])
        self.running[number] = one
        return one

    @property
    def port(self) -> int:
        """That of all."""
        return self._port

    def urls(self) -> list[str]:
        """Of all, also of those that do not run."""
        return [f"http://{address}:{self._port}/api/v1" for address in ADDRESSES]

    def kill(self, number: int) -> None:
        """Let its machine be gone."""
        self.running.pop(number).kill()

    def close(self) -> None:
        """End those that run."""
        for one in self.running.values():
            one.close()


class Looker(threading.Thread):
    """Somebody who looks at the fleet each second, by whichever manager answers."""

    def __init__(self, urls: Sequence[str], token: str) -> None:
        super().__init__(name="looker", daemon=True)
        self._urls, self._headers = urls, {"Authorization": f"Bearer {token}"}
        self._ended = threading.Event()
        self.reads: list[Read] = []

    def run(self) -> None:
        with httpx.Client(headers=self._headers, timeout=10) as client:
            while not self._ended.wait(1.0):
                began_s = time.monotonic()
                answered = any(self._asked(client, url) for url in self._urls)
                now_s = time.monotonic()
                self.reads.append(Read(now_s, now_s - began_s, answered))

    @staticmethod
    def _asked(client: httpx.Client, url: str) -> bool:
        try:
            return client.get(f"{url}/fleet", params={"limit": 30, "hosts_limit": 12}).status_code == 200
        except httpx.TransportError:
            return False

    def end(self) -> None:
        """Wait for its end."""
        self._ended.set()
        self.join()


class Site:
    """Everything that faults happen to."""

    def __init__(self, pair: ServerPair, managers: Managers, options: Options, agents: Sequence[Connection]) -> None:
        self._pair, self._managers, self._options, self._agents = pair, managers, options, agents
        self.waited = self._before = 0

    def suffer(self, fault: str) -> None:
        """Let a fault happen, and repair it."""
        {
            "worker": self._worker,
            "machine": self._machine,
            "slow": self._slow,
            "full": self._full,
            "failover": self._failover,
            "away": self._away,
        }[fault]()

    def _worker(self) -> None:
        one = self._managers.running[0]
        one.kill_worker(one.workers()[0])

    def _machine(self) -> None:
        self._managers.kill(1)
        time.sleep(self._options.fault_s)
        self._managers.start(1)

    def _slow(self) -> None:
        self._pair.slow(SLOW_FLUSH_MS)
        time.sleep(self._options.fault_s)
        self._pair.slow(0)

    def _full(self) -> None:
        self._pair.fill_disk()
        time.sleep(self._options.fault_s)
        self._pair.free_disk()

    def _failover(self) -> None:
        self._pair.kill_first()
        time.sleep(min(self._options.fault_s, _LONGEST_OUTAGE_S))
        self._pair.promote()

    def _away(self) -> None:
        self._before = self._waiting()
        for number in range(len(ADDRESSES)):
            self._managers.kill(number)
        back_s = time.monotonic() + self._options.away_s
        if self._options.away_history_min:
            self._make_history()
        time.sleep(max(back_s - time.monotonic(), 0.0))
        for number in range(len(ADDRESSES)):
            self._managers.start(number)

    def _make_history(self) -> None:
        """All agents at once; returns when all have theirs."""
        self.waited = self._asked(History(self._options.away_history_min))

    def _waiting(self) -> int:
        return self._asked(HowMuchWaits())

    def _asked(self, order: History | HowMuchWaits) -> int:
        """What all agents answer, added up."""
        for pipe in self._agents:
            pipe.send(order)
        return sum(pipe.recv() for pipe in self._agents)

    def wait_until_delivered(self, say: Callable[[str], None]) -> None:
        """Wait until no more waits with agents than before managers were away, or too much time is gone."""
        begun_s = time.monotonic()
        while (gone_s := time.monotonic() - begun_s) < self._options.deliver_s:
            waiting = self._waiting()
            say(f"{gone_s:.0f} s later {waiting} items wait, {self._before} before")
            if waiting <= _AS_BEFORE * self._before:
                return
            time.sleep(_LOOK_S)


def read_stored(url: str) -> tuple[Keys, list[str]]:
    """What is stored, and what of it is there more than once."""
    stored = Keys()
    with psycopg.connect(url) as connection:

        def rows(query: str) -> list[tuple[object, ...]]:
            return connection.execute(query).fetchall()  # type: ignore[call-overload, no-any-return]

        records = [str(name) for [name] in rows("SELECT record_id FROM events")]
        for [body] in rows("SELECT body FROM decision_packs"):
            records += [one.record_id for one in unpack_decisions(body)]  # type: ignore[arg-type]
        ticks = [
            (str(host), moment_of(one.at_us))
            for host, body in rows("SELECT host, body FROM tick_packs")
            for one in unpack_ticks(body)  # type: ignore[arg-type]
        ]
    windows = read_windows(url)
    stored.records, stored.ticks, stored.windows = set(records), set(ticks), set(windows)  # type: ignore[arg-type]
    counts = (collections.Counter(kind) for kind in (records, ticks, windows))
    return stored, [f"{key}" for kind in counts for key, count in kind.items() if count > 1]  # type: ignore[attr-defined]


def read_windows(url: str) -> list[tuple[str, datetime]]:
    """Application and end of each window, as readers see it: twice where its response times count twice."""
    windows: list[tuple[str, datetime]] = []
    with closing(open_database(url)) as database, database.reading() as session:
        for application in session.scalars(select(ApplicationRow)):
            for _, window in list_windows(session, application, None, None, _MANY):
                times = -(-window.histogram.count // REQUESTS)
                windows += [(application.name, timestamp(window.end_s))] * times
    return windows


def agents_of(
    stack: ExitStack, hosts: Sequence[str], managers: Managers, token: str, options: Options, folder: Path
) -> list[Connection]:
    """Start the agents; returns once all have reported."""
    context = multiprocessing.get_context("spawn")
    pipes = []
    drivers = min(DRIVERS, len(hosts))
    for number in range(drivers):
        own, theirs = context.Pipe()
        mine = hosts[number::drivers]
        orders = Orders(ADDRESSES, managers.port, token, mine, options.vms, options.interval_s, folder)
        process = context.Process(target=drive, args=(orders, theirs), daemon=True)
        process.start()
        stack.callback(process.join, 60)
        pipes.append(own)
    for pipe in pipes:
        pipe.recv()
    return pipes


def suffer_all(site: Site, options: Options) -> Iterator[Phase]:
    """A calm time, then each fault with a calm time after it."""
    with Progress(transient=True) as shown:
        task = shown.add_task("calm", total=len(options.faults) + 1)
        for name in ("none", *options.faults):
            shown.update(task, description=name)
            begin_s = time.monotonic()
            if name != "none":
                site.suffer(name)
            repaired_s, repaired_epoch_s = time.monotonic(), time.time()
            shown.update(task, description=f"{name}: calm")
            time.sleep(options.calm_s)
            if name == "away":
                site.wait_until_delivered(shown.console.print)
                time.sleep(options.calm_s)  # whether each host reports in its turns then
            shown.advance(task)
            yield Phase(name, begin_s, repaired_s, repaired_epoch_s, time.monotonic())


def run(options: Options) -> Result:
    """Start everything, let all faults happen, and see what is stored."""
    hosts = host_names(options.hosts)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eqp-faults-")))
        kept = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="eqp-agents-", dir=memory_folder())))
        pair = stack.enter_context(server_pair(DISK_MIB + HOST_DISK_MIB * options.hosts))
        url = pair.create("fleet")
        managers = Managers(folder, url, options)
        stack.callback(managers.close)
        first, _ = managers.start(0), managers.start(1)
        register(url, hosts, options.vms)
        pipes = agents_of(stack, hosts, managers, first.token, options, kept)
        looker = Looker(managers.urls(), first.token)
        looker.start()
        before = host_cpu_s()
        site = Site(pair, managers, options, pipes)
        phases = list(suffer_all(site, options))
        after = host_cpu_s()
        looker.end()
        for pipe in pipes:
            pipe.send("stop")
        parts: list[Seen] = [pipe.recv() for pipe in pipes]
        seen = Seen([], [], Keys(), sum(part.refused for part in parts), sum(part.waiting for part in parts))
        for part in parts:
            seen.exchanges.extend(part.exchanges)
            seen.ticks.extend(part.ticks)
            seen.acknowledged.add(part.acknowledged)
        stored, twice = read_stored(url)
        lost = seen.acknowledged.without(stored)
        return Result(
            options.hosts,
            options.away_history_min,
            site.waited,
            [find(phase, seen, looker.reads, options.hosts, _TURNS * options.interval_s) for phase in phases],
            len(seen.acknowledged),
            len(stored),
            lost,
            twice,
            seen.refused,
            seen.waiting,
            (after[0] - before[0]) / (after[1] - before[1]),
        )


COLUMNS: Mapping[str, Callable[[Found], str]] = {
    "fault": lambda one: one.name,
    "failed": lambda one: f"{one.failed}",
    "all report after, s": lambda one: f"{one.live_s:.0f}",
    "steady, s": lambda one: f"{one.steady_s:.0f}: {verdict(one.steady_s, BAR_RECOVERY_S)}",
    "all stored, s": lambda one: f"{one.stored_s:.0f}",
    "most requests in 1 s": lambda one: f"{one.busiest_s}",
    "a request, ms: median, p99": lambda one: f"{one.median_ms:.0f}, {one.p99_ms:.0f}",
    "meanwhile": lambda one: "" if one.during_ms is None else f"{one.during_ms:.0f}",
    "live after: median, p99": lambda one: "" if one.live_ms is None else f"{one.live_ms:.0f}, {one.live_p99_ms:.0f}",
    "longest between ticks, s": lambda one: f"{one.tick_gap_s:.1f}",
    "reads failed": lambda one: f"{one.reads_failed} of {one.reads}",
    "read p95, ms": lambda one: f"{one.read_p95_ms:.0f}",
}


def show(result: Result) -> None:
    """Print a table, and what became of what was acknowledged."""
    console = Console(width=160)
    table = Table(*COLUMNS, title=f"{result.hosts} hosts; machine busy {result.busy_share:.0%}")
    for one in result.found:
        table.add_row(*(text(one) for text in COLUMNS.values()))
    console.print(table)
    for name, keys in (("lost", result.lost), ("stored twice", result.twice)):
        console.print(f"{name}: {len(keys)}{': ' if keys else ''}{', '.join(keys[:_NAMED])}")
    console.print(f"acknowledged: {result.acknowledged}, stored: {result.stored}; refused: {result.refused}")
    if result.away_history_min:
        made = f"{result.away_history_min:g} minutes of history, made in advance by the agents' own code"
        console.print(f"{made}: {result.waited} items waited when the managers came back")
    console.print(f"agents that could not deliver all: {result.undelivered}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=60)
    parser.add_argument("--vms", type=int, default=20)
    parser.add_argument("--interval-s", type=float, default=5.0)
    parser.add_argument("--calm-s", type=float, default=90.0, help="before the first fault, and after each")
    parser.add_argument("--fault-s", type=float, default=40.0, help="how long a fault lasts")
    parser.add_argument("--away-s", type=float, default=300.0, help="how long all managers are away")
    parser.add_argument("--away-history-min", type=float, default=0.0, help="history made in advance while they are")
    parser.add_argument("--deliver-s", type=float, default=1800.0, help="how long what had waited may take at most")
    parser.add_argument("--only", nargs="+", choices=FAULTS, default=FAULTS, help="which faults; all by default")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    options = Options(
        given.hosts,
        given.vms,
        given.interval_s,
        given.calm_s,
        given.fault_s,
        given.away_s,
        tuple(given.only),
        given.away_history_min,
        given.deliver_s,
    )
    with undone_when_told_to_end():
        result = run(options)
    print(machine())
    show(result)
    write_json(given.json, {"bars": {"steady_s": BAR_RECOVERY_S}, "result": asdict(result)})
    if result.lost or result.twice:
        raise BenchError(f"{len(result.lost)} acknowledged items are lost, {len(result.twice)} are stored twice")


if __name__ == "__main__":
    main()
