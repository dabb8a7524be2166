"""`equipoise config`."""

from __future__ import annotations

import click

from manager.cli.options import OnePage, with_settings
from manager.settings import SETTINGS, Settings
from manager.terminal import Table, say_json, show

_CONFIG_EPILOG = """
SOURCES
  Later ones win: the default, the TOML file, the environment (EQUIPOISE_ and the name in capitals), a flag. An
  unknown name or a value out of range is refused. docs/reference/configuration.md describes every setting.

EXAMPLES
  equipoise config
  equipoise config --config trial.toml --json
  EQUIPOISE_INTERVAL_S=1 equipoise config
"""


@click.command(cls=OnePage, epilog=_CONFIG_EPILOG)
@with_settings(*(setting.name for setting in SETTINGS))
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def config(settings: Settings, as_json: bool) -> None:
    """Print every setting in force, where it came from, and its range."""
    if as_json:
        rows = {
            one.name: {
                "value": settings.shown(one.name),
                "source": settings.sources[one.name],
                "default": one.default,
                "range": one.range_text,
            }
            for one in SETTINGS
        }
        say_json(rows)
        return
    table = Table("setting", "value", "source", "range", "meaning")
    for one in SETTINGS:
        table.add_row(one.name, str(settings.shown(one.name)), settings.sources[one.name], one.range_text, one.help)
    show(table)
