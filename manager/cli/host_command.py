"""`equipoise host`: which agent serves a host."""

from __future__ import annotations

import click

from manager.cli.options import CLIENT_SETTINGS, OnePage, connect, with_settings
from manager.settings import Settings
from manager.terminal import say

_REPLACE_EPILOG = """
WHAT IT DOES
  When a second agent reports under the name of a host that is served, the manager refuses it, and an event
  `second-agent` names both. This command lets the one that was refused last serve the host; the other is refused from
  then on. It is not needed where the first agent is down: after `silent_intervals` the second takes over by itself.

EXAMPLES
  equipoise host replace kvm7
"""


@click.group()
def host() -> None:
    """Look after the agents of hosts."""


@host.command(cls=OnePage, epilog=_REPLACE_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.argument("name")
def replace(settings: Settings, name: str) -> None:
    """Let the agent that was refused serve the host NAME."""
    answer = connect(settings).request("POST", f"/hosts/{name}/replace-agent").json()
    say(f"{name} is served by agent {answer['agent_instance']}")
