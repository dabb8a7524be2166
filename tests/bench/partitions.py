"""What a table of history costs in PostgreSQL as it is, and cut by day into partitions.

    python -m tests.bench.partitions [--hosts 100] [--days 30] [--packets 4000] [--json FILE]

The same decisions in each: a row of 600 bytes for each host and every five minutes of so many days. Then hosts report
packets of history (ticks of a minute and three decisions, as the manager stores them), and the oldest day is removed:
by DELETE and VACUUM, or with its partition. CPU time is that of all processes of the server, on this machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
from rich.console import Console
from rich.table import Table

from manager.store.database import Database, open_database
from manager.store.decision_packs import store_decisions
from manager.store.tick_packs import store_ticks
from tests.bench.figures import machine, write_json
from tests.bench.fleet import postgres_cpu_s
from tests.postgres import PostgresServer, postgres_server

DAY = timedelta(days=1)
AHEAD = 3
"""Partitions of days to come, so that none is missing when a job does not run."""
WARM_UP = 400
"""Packets before the measurement: every connection has planned its statements by then."""
PARTITIONED = """
    ALTER TABLE decision_packs RENAME TO plain;
    CREATE TABLE decision_packs (LIKE plain INCLUDING DEFAULTS) PARTITION BY RANGE (last_at);
    ALTER TABLE decision_packs ADD PRIMARY KEY (id, last_at);
    CREATE INDEX ON decision_packs (last_at);
    CREATE INDEX ON decision_packs (host, last_at);
    CREATE INDEX ON decision_packs (host, claimed_until);
    ALTER SEQUENCE decision_packs_id_seq OWNED BY decision_packs.id;
    DROP TABLE plain
"""
FILL = """
    INSERT INTO decision_packs (host, last_at, claimed_from, claimed_until, about, body)
    SELECT 'kvm' || host, at, at, at, E'\\nvm=web-' || host || E'\\nknob=weight\\noutcome=applied\\n',
        decode(repeat(md5(host::text || at::text), 37), 'hex')
    FROM generate_series(%(first)s::timestamptz, %(last)s::timestamptz, '5 minutes') AS at,
        generate_series(1, %(hosts)s) AS host
"""


@dataclass(frozen=True, slots=True)
class Figures:
    """CPU time of the server for a packet of history, and CPU and wall-clock time to remove a day."""

    packet_ms: float
    removal_cpu_s: float
    removal_s: float


def cut_by_day(connection: psycopg.Connection[Any], first: datetime, days: int) -> None:
    """Make the table of decisions a partitioned one, empty, with a partition for each day and for all else."""
    connection.execute(PARTITIONED)
    for number in range(days):
        begin, end = (first + step * DAY for step in (number, number + 1))
        between = f"FROM ('{begin.isoformat()}') TO ('{end.isoformat()}')"
        connection.execute(f"CREATE TABLE {partition(begin)} PARTITION OF decision_packs FOR VALUES {between}")
    connection.execute("CREATE TABLE decision_packs_rest PARTITION OF decision_packs DEFAULT")


def partition(day: datetime) -> str:
    """Of the table of decisions."""
    return f"decision_packs_{day:%Y%m%d}"


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


def remove(connection: psycopg.Connection[Any], day: datetime, *, by_day: bool) -> None:
    """Remove all decisions of a day, and make their room free."""
    if by_day:
        connection.execute(f"DROP TABLE {partition(day)}")
        return
    some = "SELECT id FROM decision_packs WHERE last_at < %s LIMIT 10000"
    while connection.execute(f"DELETE FROM decision_packs WHERE id IN ({some})", (day + DAY,)).rowcount:
        pass
    connection.execute("VACUUM decision_packs")


def measure(server: PostgresServer, options: argparse.Namespace, *, by_day: bool) -> Figures:
    """One layout, in a database of its own."""
    url = server.create(f"by_day_{by_day}".lower())
    now = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    first = now - options.days * DAY
    with closing(open_database(url, 1)) as database, psycopg.connect(url, autocommit=True) as connection:
        database.upgrade()
        if by_day:
            cut_by_day(connection, first, options.days + 1 + AHEAD)
        connection.execute(FILL, {"first": first, "last": now - timedelta(minutes=5), "hosts": options.hosts})
        connection.execute("VACUUM ANALYZE")
        connection.execute("CHECKPOINT")
        report(database, options.hosts, range(WARM_UP), now)
        before_s = postgres_cpu_s(server)
        report(database, options.hosts, range(WARM_UP, WARM_UP + options.packets), now)
        packets_s = postgres_cpu_s(server) - before_s
        before_s, begin_s = postgres_cpu_s(server), time.monotonic()
        remove(connection, first, by_day=by_day)
        return Figures(
            packets_s / options.packets * 1000, postgres_cpu_s(server) - before_s, time.monotonic() - begin_s
        )


def main(words: Sequence[str] | None = None) -> None:
    """Measure both, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--packets", type=int, default=4000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    with postgres_server(durable=True) as server:
        figures = {by_day: measure(server, options, by_day=by_day) for by_day in (False, True)}
    table = Table("table", "a packet, CPU ms", "a day removed: CPU s", "s", title=machine())
    for by_day, of_layout in figures.items():
        name = f"{options.days + 1 + AHEAD} partitions" if by_day else "as it is"
        table.add_row(
            name, *(f"{value:.3f}" for value in (of_layout.packet_ms, of_layout.removal_cpu_s, of_layout.removal_s))
        )
    Console().print(table)
    write_json(
        options.json, {("by_day" if by_day else "one_table"): asdict(found) for by_day, found in figures.items()}
    )


if __name__ == "__main__":
    main()
