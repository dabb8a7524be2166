"""`equipoise plan`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from pydantic import ValidationError

from manager.cli.options import CLIENT_SETTINGS, JOURNAL_FILE, LIMIT_SETTINGS, Failure, OnePage, connect, with_settings
from manager.errors import ManagerUnavailable
from manager.host.hypervisor import EventLoop, HypervisorWatch
from manager.host.kernel_host import KernelHost
from manager.host.registry import HostPaths
from manager.loop.cache_reading import CacheOutcome, CacheResult
from manager.loop.journal import Journal
from manager.loop.observer import LoopSettings
from manager.loop.rehearsal import Preview
from manager.loop.tick import ControlLoop
from manager.model.cache import format_schemata
from manager.model.cpus import parse_cpus
from manager.model.decision import Change
from manager.model.knobs import knob_name, knob_text, value_shown
from manager.model.records import OutcomeKind
from manager.model.registration import Assignment, Mode
from manager.model.window import Window
from manager.protocol.assignment import AssignmentOut
from manager.protocol.client import ManagerClient
from manager.protocol.convert import assignment_of, window_of
from manager.protocol.report import WindowBody
from manager.settings import Settings
from manager.terminal import Table, say, say_json, show
from policies.installed import load_policies

_LISTING_S = 10
_LOOK_S = 1.0
_SLOTS = 12

_EPILOG = """
WHAT IT DOES
  Reads this host and asks the manager what is registered, as the agent does, looks twice a second apart (to see what
  the VMs use), decides, and prints the settings that would be changed now, and why. Nothing is written: neither to the
  kernel nor to the journal nor to the manager. It decides like an agent that was just started: what a running agent
  remembers of earlier intervals (averages, steps on the way) is not known to it. A host that is in mode `observe` or
  `released` is shown as if it were in `enforce`. It needs root.

OUTPUT
  A table of changes; then how the cache would be divided, if it is to be: the ways of each group; then what the policy
  has to say, and what could not be read or placed. With --json, an object with host, mode (as registered), policy,
  changes (action, vm, knob, index, before, after, reason; vm null: a setting of the host itself), cache (the groups:
  name, applications, vms, schemata), notes and problems. Actions: write; restore (back to the original); leave
  (somebody else changed it); observe (the VM's or application's own mode says so).

EXAMPLES
  equipoise plan
  equipoise plan --json | jq '.changes[] | select(.knob == "vcpu_pin")'
"""


@click.command(cls=OnePage, epilog=_EPILOG)
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def plan(settings: Settings, as_json: bool) -> None:
    """Show what would be changed on this host now, and why, without doing it."""
    client = connect(settings)
    name = settings.text("host_name")
    assignment = _assignment(client, name)
    enforced = replace(assignment, host=replace(assignment.host, mode=Mode.ENFORCE))
    slots = {application.name: _slots(client, application.name) for application in assignment.applications}
    found = _preview(settings, enforced, slots)
    changes = [_change_fields(change, found.names.get(change.key.uuid)) for change in found.changes]
    changes += [_cache_fields(outcome, found.names) for outcome in found.cache.outcomes]
    groups = _groups(found.cache)
    problems = [f"{problem.kind}: {problem.text}" for problem in found.problems]
    if as_json:
        host = {"host": name, "mode": assignment.host.mode, "policy": assignment.host.policy}
        told = {"changes": changes, "cache": groups, "notes": found.notes, "problems": problems}
        say_json(host | told)
        return
    table = Table("VM", "setting", "now", "then", "why", title=f"{name}: policy {assignment.host.policy}")
    for one in changes:
        reason = one["reason"] if one["action"] == "write" else f"{one['action']}: {one['reason']}"
        values = (value_shown(one["knob"], one[name]) for name in ("before", "after"))
        table.add_row(one["vm"] or "(host)", knob_name(one["knob"], one["index"]), *values, reason)
    show(table if changes else f"{name}: nothing would be changed")
    for line in (*map(_group_text, groups), *found.notes, *problems):
        say(line)
    if assignment.host.mode is not Mode.ENFORCE:
        say(f"{name} is in mode {assignment.host.mode}: the agent writes none of this")


def _assignment(client: ManagerClient, name: str) -> Assignment:
    try:
        return assignment_of(AssignmentOut.model_validate(client.get(f"/hosts/{name}/assignment")))[0]
    except ValidationError as error:
        raise ManagerUnavailable(f"the manager's assignment is not understood: {error}") from error


def _slots(client: ManagerClient, application: str) -> tuple[Window, ...]:
    """The newest slots of response times, oldest first."""
    bodies = client.items(f"/applications/{application}/windows", limit=_SLOTS, buckets="true")
    fields = ("start", "end", "buckets", "requests", "ready")
    windows = [
        window_of(
            application, WindowBody.model_validate({"application": application, **{key: body[key] for key in fields}})
        )
        for body in bodies
    ]
    return tuple(sorted(windows, key=lambda window: window.end_s))


def _preview(settings: Settings, assignment: Assignment, slots: dict[str, tuple[Window, ...]]) -> Preview:
    paths = HostPaths(Path(settings.text("root_dir")))
    with ExitStack() as stack:
        events = EventLoop()
        events.start()
        stack.callback(events.stop)
        watch = HypervisorWatch(settings.text("libvirt_uri"), paths, reconcile_s=3600)
        host = KernelHost(paths, watch, parse_cpus(settings.text("managed_cpus")))
        watch.start()
        stack.callback(watch.stop)
        if not watch.wait_first_listing(_LISTING_S):
            raise Failure(f"libvirt at {settings.text('libvirt_uri')} does not answer; is libvirtd running?")
        journal = Journal.copy_of(settings.state_dir / JOURNAL_FILE, host.boot_id)
        stack.callback(journal.close)
        policies = {name: one.policy for name, one in load_policies().items()}
        bounds = LoopSettings(
            settings.text("host_name"),
            settings.number("interval_s"),
            settings.number("stale_s"),
            settings.whole("min_samples"),
        )
        loop = ControlLoop(host, journal, policies, bounds, limits=settings.limits)
        loop.preview(assignment, slots)
        time.sleep(_LOOK_S)
        return loop.preview(assignment, slots)


def _cache_fields(one: CacheOutcome, names: Mapping[str, str | None]) -> dict[str, Any]:
    """A step of dividing the cache, as changes are told."""
    actions = {OutcomeKind.OBSERVED: "observe", OutcomeKind.EXTERNAL: "leave", OutcomeKind.RESTORED: "restore"}
    return {
        "action": actions.get(one.kind, "write"),
        "vm": names.get(one.vm) if one.vm else None,
        "knob": str(one.knob),
        "index": 0,
        "before": one.before,
        "after": one.after,
        "reason": one.reason,
    }


def _groups(cache: CacheResult) -> list[dict[str, Any]]:
    """The groups as they would be."""
    return [
        {
            "name": group.name,
            "applications": list(group.apps),
            "vms": list(group.vms),
            "schemata": format_schemata(group.values).splitlines(),
        }
        for group in cache.groups
    ]


def _group_text(group: dict[str, Any]) -> str:
    of = ", ".join(group["applications"]) or group["name"].rpartition("+")[2] or "all else"
    vms = f" ({', '.join(group['vms'])})" if group["vms"] else ""
    return f"cache of {of}{vms}: {'; '.join(group['schemata'])}"


def _change_fields(change: Change, vm: str | None) -> dict[str, Any]:
    return {
        "action": str(change.action),
        "vm": vm,
        "knob": str(change.key.knob),
        "index": change.key.index,
        "before": knob_text(change.before),
        "after": knob_text(change.after),
        "reason": change.reason,
    }
