"""`equipoise proposals`."""

from __future__ import annotations

from typing import Any

import click

from manager.cli.options import CLIENT_SETTINGS, ManPage, ManPageGroup, connect, json_option, with_settings
from manager.model.migration import OPEN, MigrationState
from manager.model.numbers import milliseconds
from manager.model.units import percent
from manager.settings import Settings
from manager.terminal import Table, output

_EPILOG = """
WHAT IT DOES
  Lists the manager's proposals to migrate VMs, the newest first: those that are not over, or with --all every one. A
  migration is proposed when an SLA is violated persistently and other VMs of its host cause that; nothing moves because
  hosts are unequally full. See docs/how-to/balance.md.

OUTPUT
  A line for each proposal, and one for each application whose response times it changes: before, and after with the
  interval, both simulated. With --json the list as the REST interface has it.

EXAMPLES
  equipoise proposals
  equipoise proposals --all --host kvm3 --json
  equipoise proposals approve 12
"""
_APPROVE = """
WHAT IT DOES
  Lets the agent of the VM's host migrate it through libvirt. The agent's own settings have the last word: without
  `allow = migrate` there, the migration fails with that reason. `equipoise proposals` shows how far it is.

EXAMPLES
  equipoise proposals approve 12
"""
_DISMISS = """
WHAT IT DOES
  Leaves the VM where it is. No migration of it, from its host, or to the destination is proposed during the cool-down:
  15 minutes, doubled with each further proposal of a day that was decided.

EXAMPLES
  equipoise proposals dismiss 12
"""


@click.group("proposals", cls=ManPageGroup, epilog=_EPILOG, invoke_without_command=True)
@with_settings(*CLIENT_SETTINGS)
@click.option("--host", default="", metavar="NAME", help="From this host, or to it.")
@click.option("--all", "everything", is_flag=True, help="Those that are over, too.")
@json_option
@click.pass_context
def proposals(context: click.Context, settings: Settings, host: str, everything: bool, as_json: bool) -> None:
    """Show proposals to migrate VMs, approve or dismiss one."""
    if context.invoked_subcommand is not None:
        return
    found = [
        proposal
        for proposal in connect(settings).items("/proposals", host=host)
        if everything or MigrationState(proposal["state"]) in OPEN
    ]
    if not found:
        output(as_json, found, "No migration is proposed." if everything else "No migration is proposed or under way.")
        return
    output(as_json, found, _table(found), *(line for proposal in found for line in _lines(proposal)))


@proposals.command("approve", cls=ManPage, epilog=_APPROVE)
@with_settings(*CLIENT_SETTINGS)
@click.argument("number")
@json_option
def approve(settings: Settings, number: str, as_json: bool) -> None:
    """Have the VM of proposal NUMBER migrated."""
    _decide(settings, number, "approve", as_json)


@proposals.command("dismiss", cls=ManPage, epilog=_DISMISS)
@with_settings(*CLIENT_SETTINGS)
@click.argument("number")
@json_option
def dismiss(settings: Settings, number: str, as_json: bool) -> None:
    """Leave the VM of proposal NUMBER where it is."""
    _decide(settings, number, "dismiss", as_json)


def _decide(settings: Settings, number: str, what: str, as_json: bool) -> None:
    if not number.isdecimal():
        raise click.UsageError(f"NUMBER {number!r} is refused: use the number of a proposal, such as 12")
    proposal = connect(settings).change("POST", f"/proposals/{number}/{what}")
    move = f"{proposal['vm']} from {proposal['source']} to {proposal['destination']}"
    output(as_json, proposal, f"Proposal {number}, {move}: {proposal['state']}.")


def _table(found: list[dict[str, Any]]) -> Table:
    table = Table("number", "state", "VM", "from", "to", "for", "decided by", title="Proposals to migrate VMs")
    for proposal in found:
        copied = proposal["copied"]
        running = proposal["state"] == MigrationState.RUNNING and copied is not None
        table.add_row(
            str(proposal["number"]),
            proposal["state"] + (f", {percent(copied)} copied" if running else ""),
            proposal["vm"],
            proposal["source"],
            proposal["destination"],
            proposal["application"],
            proposal["decided_by"] or "-",
        )
    return table


def _lines(proposal: dict[str, Any]) -> list[str]:
    lines = [f"{proposal['number']}: {proposal['reason']}"]
    for each in proposal["predictions"]:
        what = f"p{each['percentile']:g} of {each['application']} on {each['host']} (simulated)"
        target = milliseconds(each["target_ms"])
        lines.append(f"   {what}: {_span(each['before'])} before, {_span(each['after'])} after; target {target}")
    if proposal["unpredicted"]:
        lines.append(f"   not predicted: {proposal['unpredicted']}")
    if proposal["detail"]:
        lines.append(f"   failed: {proposal['detail']}")
    return lines


def _span(span: dict[str, float] | None) -> str:
    if span is None:
        return "not known"
    return f"{milliseconds(span['ms'])} ({milliseconds(span['low_ms'])} to {milliseconds(span['high_ms'])})"
