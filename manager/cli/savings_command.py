"""`equipoise savings`."""

from __future__ import annotations

import csv
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from typing import Any

import click

from manager.cli.cost_options import cost_options, costs_of, given_costs
from manager.cli.options import CLIENT_SETTINGS, Failure, ManPage, ObjectName, connect, json_option, with_settings
from manager.cli.times import time_s
from manager.control.savings import (
    ENERGY_WORDS,
    CostedUse,
    EnergySource,
    HostUse,
    Savings,
    model_of,
    saved_by,
    use_between,
)
from manager.model.costs import HostCosts
from manager.model.fields import timestamp
from manager.model.units import percent
from manager.protocol.client import ManagerClient
from manager.settings import Settings
from manager.terminal import Table, output, progress, say

_POINTS = "1000"
_FLEET = "all hosts"
_EPILOG = """
WHAT IT DOES
  Says what it saved that batch VMs and services shared hosts: beside separate servers that would have done the same,
  services alone on theirs, and the batch VMs' CPU time on others that were full. It reads each host's CPU use from the
  manager's history; times of which there is none do not count.

  The costs are a model, not measured: a server's price, and electricity over its life, burdened with that of power
  delivery and cooling (Leverich and Kozyrakis, EuroSys 2014, table 2, whose constants are the defaults); its power
  grows linearly with CPU use. Each host counts by its own costs (`equipoise host costs`); a cost that is given as an
  option counts for all of them, in this report alone. GAIN is the throughput per dollar of ownership over that of
  separate servers. Batch work counts by CPU time: work that batch VMs lost in shared caches is not seen in it.

  Energy is measured by RAPL where that could be read for at least half of a host's hours: that of processors and their
  memory, without fans, disks and power supplies. Elsewhere it is that of the model, which is of the whole server. Each
  line says which. What batch VMs added and what was saved is the model's, in proportion to what was measured.

TIME
  How long ago, such as 12h or 7d, or an RFC 3339 time such as 2026-01-31T14:00:00Z.

OUTPUT
  A line per host, and one of all hosts where there are several. With --json an object with since, until, hosts (each
  with its costs) and fleet; with --csv the lines as CSV: host, servers, saved_servers, utilisation, critical (fractions
  of the CPU time), gain (a fraction), together_usd_per_year, apart_usd_per_year, energy_kwh, batch_kwh, saved_kwh,
  energy_source (rapl, model, or mixed: of some hosts measured), hours. Exit status 1 if nothing was measured.

EXAMPLES
  equipoise savings
  equipoise savings --host kvm7 --since 7d
  equipoise savings --since 30d --server-usd 6500 --peak-watts 550 --usd-per-kwh 0.21 --csv > savings.csv
"""


@dataclass(frozen=True)
class SavedPart:
    """A line of the report: of a host, or of all."""

    name: str
    saved: Savings


@click.command("savings", cls=ManPage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.option(
    "--host",
    "hosts",
    type=ObjectName(),
    multiple=True,
    metavar="NAME",
    help="Only this host; may be repeated. [default: all]",
)
@click.option("--since", default="30d", show_default=True, metavar="TIME", help="Begin here.")
@click.option("--until", default="", metavar="TIME", help="End before this. [default: now]")
@cost_options("each host's, see `equipoise host costs`")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@json_option
def savings(
    settings: Settings,
    hosts: Sequence[str],
    since: str,
    until: str,
    as_csv: bool,
    as_json: bool,
    **costs: float | None,
) -> None:
    """Show what sharing hosts saved: servers, cost and energy, by a model."""
    if as_csv and as_json:
        raise click.UsageError("--csv does not go with --json")
    now_s = time.time()
    since_s, until_s = time_s("--since", since, now_s), time_s("--until", until, now_s) if until else now_s
    if since_s >= until_s:
        raise click.UsageError("--since is not before --until")
    given, client = given_costs(costs), connect(settings)
    begin, end = timestamp(max(since_s, 0.0)), timestamp(until_s)
    known = [client.get(f"/hosts/{name}") for name in hosts] or client.items("/hosts")
    costs_by_host = {host["name"]: costs_of(host, given) for host in known}
    with progress("hosts", len(costs_by_host)) as bar:
        uses = []
        for name, of_host in costs_by_host.items():
            uses.append(CostedUse(use_of(client, name, begin, end), model_of(of_host)))
            bar.advance()
    parts = [SavedPart(host.use.host, saved) for host in uses if (saved := saved_by([host])) is not None]
    fleet = saved_by(uses)
    if fleet is None:
        raise Failure("no CPU use was measured in that time: choose another with --since")
    lines = [*parts, SavedPart(_FLEET, fleet)] if len(parts) > 1 else parts
    if as_csv:
        for line in _csv(lines).splitlines():
            say(line)
        return
    rows = [{**_row(part), "costs": asdict(costs_by_host[part.name])} for part in parts]
    body = {"since": begin.isoformat(), "until": end.isoformat(), "hosts": rows, "fleet": asdict(fleet)}
    output(as_json, body, _table(lines), *_remarks(fleet, {part.name: costs_by_host[part.name] for part in parts}))


def use_of(client: ManagerClient, host: str, begin: datetime, end: datetime) -> HostUse:
    """Means over what was measured of a host in a range of time. Raises ManagerUnavailable."""

    def read(since: datetime, until: datetime) -> Any:
        return client.get(f"/hosts/{host}/history", since=since.isoformat(), until=until.isoformat(), points=_POINTS)

    return use_between(host, read, begin, end)


def _table(parts: Sequence[SavedPart]) -> Table:
    table = Table(
        "host",
        "hours",
        "used",
        "critical",
        "servers saved",
        "gain",
        "$ a year",
        "apart",
        "kWh",
        "kWh saved",
        "energy",
        title="Savings (model)",
    )
    for part in parts:
        saved = part.saved
        table.add_row(
            part.name,
            f"{saved.hours:.1f}",
            percent(saved.utilisation),
            percent(saved.critical),
            f"{saved.saved_servers:.2f} of {saved.servers}",
            percent(saved.gain),
            f"{saved.together_usd_per_year:,.0f}",
            f"{saved.apart_usd_per_year:,.0f}",
            f"{saved.energy_kwh:,.1f}",
            f"{saved.saved_kwh:,.1f}",
            ENERGY_WORDS[saved.energy_source],
        )
    return table


def _remarks(fleet: Savings, costs: Mapping[str, HostCosts]) -> Iterator[str]:
    """What servers cost, the hosts with the same costs together, and what that makes of the work of batch VMs."""
    for of_hosts in dict.fromkeys(costs.values()):
        names = [name for name, of_host in costs.items() if of_host == of_hosts]
        which = "A server" if len(names) == len(costs) else f"{', '.join(names)}: a server"
        power = f"{of_hosts.peak_watts:g} W when full, {percent(of_hosts.idle_part)} of it when idle"
        price = f"${of_hosts.server_usd:,.0f} over {of_hosts.years:g} years"
        yield f"{which}: {price}, {power}, ${of_hosts.usd_per_kwh:g} per kWh."
    saved_usd = fleet.apart_usd_per_year - fleet.together_usd_per_year
    yield f"Batch VMs did the work of {fleet.saved_servers:.2f} servers: ${saved_usd:,.0f} a year less than apart."
    if fleet.energy_source is EnergySource.MODEL:
        yield "Costs and energy are calculated from CPU use, not measured."
        return
    yield "Costs are calculated from CPU use, not measured."
    yield "Energy that is measured (RAPL) is that of processors and memory, without fans, disks and power supplies."
    yield "What was saved of it is the model's, in proportion."


def _row(part: SavedPart) -> dict[str, Any]:
    return {"host": part.name, **asdict(part.saved)}


def _csv(parts: Sequence[SavedPart]) -> str:
    text = io.StringIO()
    columns = ["host", *(field.name for field in fields(Savings))]
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_row(part) for part in parts)
    return text.getvalue()
