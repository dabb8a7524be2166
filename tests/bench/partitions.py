"""What tables of history cost in PostgreSQL whole, as before revision 0020, and cut by day into partitions.

    python -m tests.bench.partitions [--hosts 40] [--days 30] [--packets 4000] [--json FILE]

The same decisions in each: a row of 600 bytes for each host and every five minutes of so many days; and minutes of four
applications a host, of the first two days. Then hosts report packets of history (ticks of a minute and three decisions,
as the manager stores them), the newest decisions of hosts are listed, and the manager removes the oldest day of
decisions and of minutes; what it deletes is vacuumed. CPU time is that of all processes of the server, on this machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from rich.console import Console
from rich.table import Table
from sqlalchemy import text

from manager.store.database import Database, open_database
from manager.store.day_partitions import CUT_TABLES, DECISIONS, MINUTES, make_days
from manager.store.decision_packs import DecisionFilter, newest_decisions, store_decisions
from manager.store.models import RollupRow
from manager.store.pack_models import DecisionPackRow
from manager.store.retention import Cleanup
from manager.store.tick_packs import store_ticks
from tests.aging import long_ago
from tests.bench.figures import machine, write_json
from tests.bench.fleet import postgres_cpu_s
from tests.postgres import PostgresServer, postgres_server

DAY = timedelta(days=1)
WARM_UP = 400
"""Packets before the measurement: every connection has planned its statements by then."""
LISTS = 200
FILL_DECISIONS = """
    INSERT INTO decision_packs (host, last_at, claimed_from, claimed_until, about, body)
    SELECT 'kvm' || host, at, at, at, E'\\nvm=web-' || host || E'\\nknob=weight\\noutcome=applied\\n',
        decode(repeat(md5(host::text || at::text), 37), 'hex')
    FROM generate_series(%(first)s::timestamptz, %(last)s::timestamptz, '5 minutes') AS at,
        generate_series(1, %(hosts)s) AS host
"""
FILL_MINUTES = """
    INSERT INTO rollups (application_id, length_s, start, count, histogram, slots, judged, violated)
    SELECT application, 60, at, 200, decode(repeat(md5(application::text || at::text), 8), 'hex'), 12, 12, 0
    FROM generate_series(%(first)s::timestamptz, %(first)s::timestamptz + '2 days' - '1 minute'::interval, '1 minute')
        AS at, generate_series(1, 4 * %(hosts)s) AS application
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """CPU time of the server for a packet of history and a list; CPU and wall-clock time to remove a day."""

    packet_ms: float
    list_ms: float
    decisions_cpu_s: float
    decisions_s: float
    minutes_cpu_s: float
    minutes_s: float


def cut_by_day(database: Database, first: datetime, days: int) -> None:
    """Make the partition of each day, in tables that are empty."""
    with database.writing() as session:
        for cut in CUT_TABLES:
            session.execute(text(f"DROP TABLE {cut.table}_before"))
    for number in range(days):
        make_days(database, first + number * DAY)


def decisions(at: datetime) -> Iterator[dict[str, Any]]:
    """What a host decided within a minute."""
    for place in range(3):
        texts = dict.fromkeys(("before", "after", "detail"), "")
        yield {
            "at": at + timedelta(seconds=place),
            "record_id": str(uuid4()),
            "vm": f"web-{place}",
            "knob": "weight",
            "index": 0,
            "reason": "priority: critical VM",
            "policy": "auto",
            "mode": "enforce",
            "outcome": "applied",
            **texts,
        }


def report(database: Database, hosts: int, packets: range, now: datetime) -> None:
    """Packets of history: a host after the other, a minute after the other."""
    for number in packets:
        minute, host = divmod(number, hosts)
        at = now + timedelta(minutes=minute)
        ticks = {at + timedelta(seconds=5 * place): '{"cpu": 0.5}' for place in range(12)}
        with database.writing() as session:
            store_ticks(session, f"kvm{host + 1}", ticks)
            store_decisions(session, f"kvm{host + 1}", [*decisions(at)])


def list_newest(database: Database, hosts: int, latest: datetime) -> None:
    """The first page of a host's decisions, of a host after the other."""
    for number in range(LISTS):
        with database.reading() as session:
            newest_decisions(session, DecisionFilter(host=f"kvm{number % hosts + 1}"), None, 50, latest)


def remove(database: Database, connection: psycopg.Connection[Any], first: datetime) -> Iterator[Callable[[], int]]:
    """Removals of the oldest day of decisions and of minutes; each makes the room free, too."""
    cleanup = Cleanup(database, first + 2 * DAY, long_ago)
    decision, minute = DecisionPackRow, RollupRow

    def decisions() -> int:
        return cleanup.remove_old("decisions", decision.id, decision.last_at, DAY, cut=DECISIONS)

    def minutes() -> int:
        return cleanup.remove_old("minutes", minute.id, minute.start, DAY, minute.length_s == 60, MINUTES)

    for table, act in (("decision_packs", decisions), ("rollups", minutes)):

        def removal(table: str = table, act: Callable[[], int] = act) -> int:
            gone = act()
            connection.execute(f"VACUUM {table}")
            return gone

        yield removal


def measure(server: PostgresServer, options: argparse.Namespace, *, by_day: bool) -> Figures:
    """One layout, in a database of its own."""
    url = server.create(f"by_day_{by_day}".lower())
    now = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = now - options.days * DAY

    def cpu_s(act: Callable[[], object]) -> tuple[float, float]:
        before_s, begin_s = postgres_cpu_s(server), time.monotonic()
        act()
        return postgres_cpu_s(server) - before_s, time.monotonic() - begin_s

    with closing(open_database(url, 1)) as database, psycopg.connect(url, autocommit=True) as connection:
        database.upgrade("head" if by_day else "0019")
        if by_day:
            cut_by_day(database, first, options.days + 1)
        given = {"first": first, "last": now - timedelta(minutes=5), "hosts": options.hosts}
        for fill in (FILL_DECISIONS, FILL_MINUTES):
            connection.execute(fill, given)
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
        report(database, options.hosts, range(WARM_UP), now)
        packets = range(WARM_UP, WARM_UP + options.packets)
        packets_s, _ = cpu_s(lambda: report(database, options.hosts, packets, now))
        lists_s, _ = cpu_s(lambda: list_newest(database, options.hosts, now + DAY))
        removed = [figure for removal in remove(database, connection, first) for figure in cpu_s(removal)]
        return Figures(packets_s / options.packets * 1000, lists_s / LISTS * 1000, *removed)


def main(words: Sequence[str] | None = None) -> None:
    """Measure both, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=40)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--packets", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    with postgres_server(durable=True) as server:
        figures = {by_day: measure(server, options, by_day=by_day) for by_day in (False, True)}
    columns = "a packet, CPU ms", "a list", "a day of decisions removed: CPU s", "s", "of minutes: CPU s", "s"
    table = Table("tables", *columns, title=machine())
    for by_day, of_layout in figures.items():
        name = "by day" if by_day else "whole"
        table.add_row(name, *(f"{value:.3f}" for value in asdict(of_layout).values()))
    Console().print(table)
    write_json(
        options.json, {("by_day" if by_day else "whole"): asdict(of_layout) for by_day, of_layout in figures.items()}
    )


if __name__ == "__main__":
    main()
