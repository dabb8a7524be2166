"""`equipoise host costs`."""

from __future__ import annotations

from dataclasses import asdict

import click

from manager.cli.cost_options import cost_options, costs_of, given_costs
from manager.cli.options import CLIENT_SETTINGS, ManPage, ObjectName, connect, json_option, with_settings
from manager.model.costs import STUDY_COSTS
from manager.settings import Settings
from manager.terminal import Table, output

_EPILOG = """
WHAT IT DOES
  Shows what the host NAME costs, by which `equipoise savings` and the dashboard's report count it: its price, its
  power, and what a dollar for electricity comes to with power delivery and cooling. With options it sets those costs
  first; the others stay. --reset sets all to the constants of the study (Leverich and Kozyrakis, EuroSys 2014, table
  2). Setting needs a token of role operator.

OUTPUT
  A row per cost: name, value, that of the study. With --json an object with the costs by name.

EXAMPLES
  equipoise host costs kvm7
  equipoise host costs kvm7 --server-usd 6500 --peak-watts 550 --usd-per-kwh 0.21
  equipoise host costs kvm7 --reset --usd-per-kwh 0.21
"""


@click.command("costs", cls=ManPage, epilog=_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("name", type=ObjectName())
@cost_options("unchanged")
@click.option("--reset", is_flag=True, help="Costs that are not given: those of the study.")
@json_option
def costs(settings: Settings, name: str, reset: bool, as_json: bool, **options: float | None) -> None:
    """Show or set what the host NAME costs."""
    client, path = connect(settings), f"/hosts/{name}"
    given = given_costs(options)
    wanted = asdict(STUDY_COSTS) | given if reset else given
    host = client.change("PATCH", path, {"costs": wanted}) if wanted else client.get(path)
    known = asdict(costs_of(host, {}))
    table = Table("cost", "value", "study", title=f"Costs of {name}")
    for cost, value in known.items():
        table.add_row(cost, f"{value:,.12g}", f"{getattr(STUDY_COSTS, cost):,.12g}")
    output(as_json, known, table)
