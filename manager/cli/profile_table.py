"""`equipoise profile table`: how much load an application may have beside batch VMs, as was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import click

from manager.cli.options import CLIENT_SETTINGS, Failure, ManPage, ObjectName, connect, json_option, with_settings
from manager.model.interference import ANY_LOSS, LOSS_BOUNDS
from manager.model.units import per_second, percent
from manager.settings import Settings
from manager.terminal import Table, output

_EPILOG = """
WHAT IT DOES
  Shows the interference tables of APP, one for each type of host on which it ran: the largest load that met its SLA
  beside batch VMs, by how much CPU time these wanted, and by what part of it they lost at most. The manager keeps them
  up to date from history; no load is made. Loads that never came are not known: `equipoise profile load --drive` brings
  them.

READING IT
  Batch load is what batch VMs wanted over all pCPUs: none below 5 %, light below 25 %, moderate below 50 %, heavy below
  100 %, full from there on. A column is the largest load in req/s, and in percent of the largest load that was ever
  measured, with which batch VMs lost at most that part of what they wanted. Each load that is shown is known with 95 %
  confidence. `too much from` is the smallest load that is known to violate the SLA.

OUTPUT
  With --json the answer of the REST interface. Exit status 1 if there is no table.

EXAMPLES
  equipoise profile table shop
  equipoise profile table shop --json | jq '.tables[].rows[] | select(.max_loss == 0.1)'
"""


@click.command("table", cls=ManPage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("application", type=ObjectName(), metavar="APP")
@json_option
def table_command(settings: Settings, application: str, as_json: bool) -> None:
    """Show how much load APP may have beside batch VMs."""
    answer = connect(settings).get(f"/applications/{application}/interference")
    output(as_json, answer, *_lines(answer))
    if not answer["tables"]:
        raise Failure(f"no interference table of {application}: {answer['why']}")


def _lines(answer: Mapping[str, Any]) -> Iterator[str | Table]:
    for each in answer["tables"]:
        yield _table(answer["application"], each)
        where = f"runs on {', '.join(each['hosts'])}" if each["hosts"] else "runs on none of these now"
        count = "1 minute" if each["minutes"] == 1 else f"{each['minutes']:,} minutes"
        yield f"{count} from {each['since']} to {each['until']}; {where}"
    if answer["tables"] and answer["size"]:
        since = f", since {answer['size_since']}" if answer["size_since"] else ""
        yield f"vCPUs by tier: {answer['size']}{since}"
    if answer["tables"] and answer["why"]:
        yield answer["why"]


def _table(application: str, table: Mapping[str, Any]) -> Table:
    bounds = [*reversed(LOSS_BOUNDS)]
    names = ["any loss" if bound == ANY_LOSS else f"loss <= {percent(bound)}" for bound in bounds]
    title = f"{application} on {table['host_type']}: largest load"
    shown = Table("batch load", *names, "too much from", "minutes", title=title)
    rows = {(row["batch"], row["max_loss"]): row for row in table["rows"]}
    for batch in dict.fromkeys(row["batch"] for row in table["rows"]):
        most = rows[batch, ANY_LOSS]
        cells = (_cell(rows[batch, bound]) for bound in bounds)
        limit = "-" if most["violated_rps"] is None else per_second(most["violated_rps"])
        shown.add_row(batch, *cells, limit, str(most["minutes"]))
    return shown


def _cell(row: Mapping[str, Any]) -> str:
    if row["load_rps"] is None:
        return "-"
    return f"{per_second(row['load_rps'])} ({percent(row['peak_share'])})"
