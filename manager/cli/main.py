"""The command ``equipoise`` and its subcommands."""

from __future__ import annotations

import gc
import os
import sys
from importlib import import_module
from types import ModuleType
from typing import Any

import click

from manager import __version__
from manager.terminal import print_traceback

# Loaded when called: the agent needs neither the database nor the web framework.
_COMMANDS = {
    "run": "run_command",
    "manager": "manager_command",
    "agent": "agent_command",
    "status": "status_commands",
    "decisions": "status_commands",
    "plan": "plan_command",
    "services": "services_command",
    "watch": "watch_command",
    "enforce": "mode_commands",
    "observe": "mode_commands",
    "release": "mode_commands",
    "adopt": "mode_commands",
    "partition": "partition_command",
    "host": "mode_commands",
    "doctor": "doctor_command",
    "load": "load_command",
    "profile": "profile_command",
    "fits": "fits_command",
    "proposals": "proposals_command",
    "savings": "savings_command",
    "record": "record_command",
    "replay": "replay_command",
    "sim": "sim_command",
    "config": "status_commands",
    "support-bundle": "support_command",
    "db": "admin_commands",
    "token": "admin_commands",
    "user": "admin_commands",
    "backup": "admin_commands",
    "restore": "admin_commands",
}

_EPILOG = """
FILES
  /etc/equipoise/equipoise.toml   settings; `equipoise config` lists them all
  /var/lib/equipoise/             database, journal of original values, tokens

ENVIRONMENT
  EQUIPOISE_CONFIG      settings file
  EQUIPOISE_TOKEN       bearer token of commands that use a manager
  EQUIPOISE_<SETTING>   any setting, such as EQUIPOISE_INTERVAL_S=1

EXIT STATUS
  0  done     1  it failed, and standard error says why     2  wrong usage

EXAMPLES
  equipoise run                         manager and agent on this machine
  equipoise status                      hosts, VMs, changed settings, and SLAs
  equipoise decisions --vm shop-cache   why that VM has the weight it has
  equipoise release                     restore every changed setting of this host
"""


class _Group(click.Group):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run as a process: its files are its user's alone, and unexpected errors are printed as plain text."""
        os.umask(0o077)
        sys.excepthook = print_traceback
        return super().__call__(*args, **kwargs)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order of use."""
        del ctx
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        del ctx
        if cmd_name not in _COMMANDS:
            return None
        command: click.Command = getattr(_loaded(_COMMANDS[cmd_name]), cmd_name.replace("-", "_"))
        return command

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        del ctx
        formatter.write(_EPILOG)


def _loaded(name: str) -> ModuleType:
    """A module of this package, without looking for garbage meanwhile: what modules make stays to the end.

    That is a sixth of the time it takes, and what is there then is never looked at again.
    """
    path = f"{__package__}.{name}"
    if path in sys.modules:
        return sys.modules[path]
    gc.disable()
    try:
        return import_module(path)
    finally:
        gc.freeze()
        gc.enable()


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, message="%(prog)s %(version)s")
def main() -> None:
    """Fill a KVM host with batch VMs and keep the SLAs of the services beside them.

    Equipoise gives registered VMs CPU weights and pCPUs so that latency-critical services keep their response times
    while batch VMs use what is left. It touches registered VMs only, records every change with its reason, and restores
    every changed setting on request, when it stops, and after a crash.
    """
