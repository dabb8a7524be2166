"""`equipoise plan`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import click

from manager.cli.machine import loop_settings
from manager.cli.options import (
    CLIENT_SETTINGS,
    JOURNAL_FILE,
    LIMIT_SETTINGS,
    Failure,
    ManPage,
    connect,
    json_option,
    with_settings,
)
from manager.cli.record_command import fetch_assignment, fetch_windows
from manager.cli.status_commands import group_owner
from manager.cli.this_machine import open_host
from manager.loop.apply import Outcome
from manager.loop.cache_reading import CacheResult
from manager.loop.journal import Journal
from manager.loop.rehearsal import Preview
from manager.loop.tick import ControlLoop
from manager.model.cache import format_schemata
from manager.model.decision import Change
from manager.model.knob_text import knob_name, knob_text, value_shown
from manager.model.records import OutcomeKind
from manager.model.registration import Assignment, Mode
from manager.model.window import Window
from manager.settings import Settings
from manager.terminal import Table, output
from policies.installed import load_policies

_LOOK_S = 1.0
_SLOTS = 12

_EPILOG = """
WHAT IT DOES
  Reads this host and its assignment from the manager, looks twice a second apart to see what the VMs use, decides, and
  prints the settings that would be changed now, and why. It writes nothing: neither to the kernel nor the journal nor
  the manager. It decides like an agent that was just started, without what a running agent remembers of earlier
  intervals (averages, steps of ladders). A host in mode `observe` or `released` is shown as if it were in `enforce`. It
  needs root.

OUTPUT
  A table of changes; the groups of a divided cache; then notes of the policy and problems. With --json, an object with
  host, mode (as registered), policy, changes (action, vm, knob, index, before, after, reason; vm null: a setting of the
  host itself), cache (the groups: name, applications, vms, schemata), notes and problems. Actions: write; restore (the
  original); leave (externally modified); observe (because of the VM's or application's own mode).

EXAMPLES
  equipoise plan
  equipoise plan --json | jq '.changes[] | select(.knob == "vcpu_pin")'
"""


@click.command(cls=ManPage, epilog=_EPILOG)
@with_settings(
    *CLIENT_SETTINGS,
    "host_name",
    "libvirt_uri",
    "root_dir",
    "managed_cpus",
    "interval_s",
    "stale_s",
    "min_samples",
    *LIMIT_SETTINGS,
)
@json_option
def plan(settings: Settings, as_json: bool) -> None:
    """Show what would be changed on this host now, and why, without doing it."""
    client = connect(settings)
    name = settings.text("host_name")
    assignment = fetch_assignment(client, name)
    mode, policy = assignment.host.mode, assignment.host.policy
    enforced = replace(assignment, host=replace(assignment.host, mode=Mode.ENFORCE))
    slots = {each.name: tuple(fetch_windows(client, each.name, _SLOTS)) for each in assignment.applications}
    preview = _preview(settings, enforced, slots)
    changes = [_change_fields(change, preview.names.get(change.key.uuid)) for change in preview.changes]
    changes += [_cache_fields(outcome, preview.names) for outcome in preview.cache.outcomes]
    groups = _groups(preview.cache)
    problems = [f"{problem.kind}: {problem.text}" for problem in preview.problems]
    table = Table("VM", "setting", "now", "then", "why", title=f"{name}: policy {policy}")
    for change in changes:
        reason = change["reason"] if change["action"] == "write" else f"{change['action']}: {change['reason']}"
        values = (value_shown(change["knob"], change[side]) for side in ("before", "after"))
        table.add_row(change["vm"] or "(host)", knob_name(change["knob"], change["index"]), *values, reason)
    output(
        as_json,
        {"host": name, "mode": mode, "policy": policy}
        | {"changes": changes, "cache": groups, "notes": preview.notes, "problems": problems},
        table if changes else f"{name}: nothing would be changed",
        *map(_group_text, groups),
        *preview.notes,
        *problems,
        *([f"{name} is in mode {mode}: the agent writes none of this"] if mode is not Mode.ENFORCE else []),
    )


def _preview(settings: Settings, assignment: Assignment, slots: dict[str, tuple[Window, ...]]) -> Preview:
    with ExitStack() as stack:
        host, _, listed = open_host(settings, stack)
        if not listed:
            raise Failure(f"libvirt at {settings.text('libvirt_uri')} does not answer; is libvirtd running?")
        journal = Journal.copy_of(settings.state_dir / JOURNAL_FILE, host.boot_id)
        stack.callback(journal.close)
        policies = {name: installed.policy for name, installed in load_policies().items()}
        loop = ControlLoop(host, journal, policies, loop_settings(settings), limits=settings.limits)
        loop.preview(assignment, slots)
        time.sleep(_LOOK_S)
        return loop.preview(assignment, slots)


def _row(*values: object) -> dict[str, Any]:
    return dict(zip(("action", "vm", "knob", "index", "before", "after", "reason"), values, strict=True))


def _cache_fields(outcome: Outcome, names: Mapping[str, str | None]) -> dict[str, Any]:
    actions = {OutcomeKind.OBSERVED: "observe", OutcomeKind.EXTERNAL: "leave", OutcomeKind.RESTORED: "restore"}
    action, key = actions.get(outcome.kind, "write"), outcome.key
    return _row(action, names.get(key.uuid), key.knob, key.index, outcome.before, outcome.after, outcome.reason)


def _groups(cache: CacheResult) -> list[dict[str, Any]]:
    return [
        {
            "name": group.name,
            "applications": list(group.applications),
            "vms": list(group.vms),
            "schemata": format_schemata(group.values).splitlines(),
        }
        for group in cache.groups
    ]


def _group_text(group: dict[str, Any]) -> str:
    vms = f" ({', '.join(group['vms'])})" if group["vms"] else ""
    return f"cache of {group_owner(group)}{vms}: {'; '.join(group['schemata'])}"


def _change_fields(change: Change, vm: str | None) -> dict[str, Any]:
    values = knob_text(change.before), knob_text(change.after)
    return _row(change.action, vm, change.key.knob, change.key.index, *values, change.reason)
