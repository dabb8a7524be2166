"""What there is to see: hosts, applications and VMs, and what was decided."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import click

from manager.cli.options import CLIENT_SETTINGS, OnePage, connect, with_settings
from manager.model.knobs import PINS, WARPS, Knob, knob_name, settings_shown, value_shown
from manager.model.records import FULL_VCPU
from manager.protocol.client import ManagerClient
from manager.settings import Settings
from manager.terminal import Table, say, say_json, show

_USES = ("occupancy_bytes", "bandwidth_total_bytes_per_s", "bandwidth_local_bytes_per_s")
_TOLD_CLOCK_S = 0.5  # a clock that differs by less does no harm to intervals of seconds
_AHEAD_S = 60.0
_SHOWN = timedelta(days=1)
_OF_REPORTS = ("host-renamed", "items-refused")
_MOST_EVENTS = 1000
_SLA_MARKS = {"met": "met", "at_risk": "AT RISK", "missed": "MISSED", "no_data": "no data"}

_STATUS_EPILOG = """
OUTPUT
  A table of hosts, one of applications, and one of managed VMs with their settings: what each holds, and what it was
  before Equipoise changed it. `externally modified` marks a setting that another tool changed since, which is left
  alone. Then a line for each host with warps, by which mechanism; for each group of a divided cache; for each warning
  of a host, such as that it is simulated; for each host of whose reports items were refused, or whose name changed, in
  the last day; and for each source of response times that is not well. With --json, one object with the keys hosts,
  applications, vms, sources and events, each a list as the REST API answers it.

EXAMPLES
  equipoise status
  equipoise status --json | jq '.vms[] | {name, knobs: .status.knobs}'
"""


@click.command(cls=OnePage, epilog=_STATUS_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.option("--host", default="", metavar="NAME", help="Only this host.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def status(settings: Settings, host: str, as_json: bool) -> None:
    """Show every managed VM, its settings and their originals, and the state of every SLA."""
    client = connect(settings)
    hosts = [client.get(f"/hosts/{host}")] if host else client.items("/hosts")
    vms = client.items("/vms")
    if host:
        vms = [vm for vm in vms if host in {vm["host"], vm["status_host"]}]
    applications = client.items("/applications")
    sources = [
        {"application": application["name"], **source}
        for application in applications
        if application["sources"]
        for source in client.items(f"/applications/{application['name']}/sources")
    ]
    events = _events_of_reports(client, host)
    found = {"hosts": hosts, "applications": applications, "vms": vms, "sources": sources, "events": events}
    if as_json:
        say_json(found)
        return
    show(_hosts_table(hosts), _applications_table(applications), _vms_table(vms))
    told = (
        *filter(None, map(_warps, hosts)),
        *_caches(hosts),
        *_warnings(hosts),
        *(f"{event['host']}: {event['message']} ({_ago(event['at'])})" for event in events),
        *chain.from_iterable(map(_busy_vcpus, hosts)),
        *filter(None, map(_ailing, sources)),
    )
    for line in told:
        say(line)


def _events_of_reports(client: ManagerClient, host: str) -> list[dict[str, Any]]:
    """The newest event of each host about items that were set aside, and about another name, of the last day."""
    since = (datetime.now(UTC) - _SHOWN).isoformat()
    newest: dict[tuple[str, str], dict[str, Any]] = {}
    for kind in _OF_REPORTS:
        for event in client.items("/events", limit=_MOST_EVENTS, host=host, kind=kind, since=since):
            newest.setdefault((event["host"], kind), event)
    return list(newest.values())


def _hosts_table(hosts: list[dict[str, Any]]) -> Table:
    table = Table("host", "mode", "policy", "pinning", "CPU", "changed", "last seen", "libvirt", title="Hosts")
    for host in hosts:
        tick = host["tick"] or {}
        table.add_row(
            host["name"],
            host["mode"] if tick.get("mode", host["mode"]) == host["mode"] else f"{host['mode']} (not yet in force)",
            host["policy"],
            "yes" if host["pinning"] else "no",
            f"{tick['host_cpu_share']:.0%}" if tick else "-",
            str(tick.get("owned_knobs", "-")),
            _ago(host["last_seen_at"]),
            _libvirt(tick),
        )
    return table


def _libvirt(tick: dict[str, Any]) -> str:
    """Whether it answers, and how old its last listing of all domains is."""
    age_s = tick.get("discovery_age_s")
    listed = f", listed {age_s:.0f} s ago" if age_s is not None else ""
    return f"{'connected' if tick.get('libvirt_connected') else 'not connected'}{listed}"


def _applications_table(applications: list[dict[str, Any]]) -> Table:
    table = Table("application", "SLA", "state", "measured", "rate", "tiers", title="Applications")
    for application in applications:
        sla, window = application["sla"], application["window"] or {}
        measured_ms, rate_rps = application.get("measured_ms"), window.get("rate_rps")
        table.add_row(
            application["name"],
            f"p{sla['percentile']:g} <= {sla['response_time_ms']:g} ms" if sla else "-",
            _SLA_MARKS.get(application["sla_state"], application["sla_state"]),
            f"p{application['measured_percentile']:g} {measured_ms:.3g} ms" if measured_ms is not None else "-",
            f"{rate_rps:.0f}/s" if rate_rps is not None else "-",
            ", ".join(tier["name"] for tier in application["tiers"]),
        )
    return table


def _busy_vcpus(host: dict[str, Any]) -> Iterator[str]:
    """A line for each VM with a full vCPU that has others which are not."""
    for vm in (host["tick"] or {}).get("busy_vcpus", ()):
        wanted = [used + waited for used, waited in zip(vm["used"], vm["waited"], strict=True)]
        if min(wanted) < FULL_VCPU <= max(wanted):
            each = ", ".join(
                f"{number}: {used:.0%} + {waited:.0%}"
                for number, (used, waited) in enumerate(zip(vm["used"], vm["waited"], strict=True))
            )
            yield f"{host['name']}: {vm['vm']} has a full vCPU beside idle ones (use + vCPU wait: {each})"


def _warnings(hosts: list[dict[str, Any]]) -> list[str]:
    """A line for each thing that hosts lack, or are: such as silent, of another time, or simulated."""
    found = [f"{host['name']}: does not report; see its events" for host in hosts if host.get("silent")]
    for host in hosts:
        stalled_s = (host["tick"] or {}).get("stalled_s")
        if stalled_s is not None:
            found.append(f"{host['name']}: no tick for {stalled_s:.0f} s: nothing is controlled; see its events")
        if rival := host.get("rival_instance"):
            name = host["name"]
            found.append(f"{name}: a second agent, {rival}, was refused; `equipoise host replace {name}` prefers it")
        ahead_s = host.get("clock_ahead_s") or 0.0
        if abs(ahead_s) >= _TOLD_CLOCK_S:
            where = "ahead of" if ahead_s > 0 else "behind"
            found.append(f"{host['name']}: its clock is {abs(ahead_s):.3g} s {where} the manager's")
    found += [
        f"{host['name']}: limited by its agent's settings: {text}"
        for host in hosts
        for text in (host["tick"] or {}).get("limited", ())
    ]
    return found + [
        f"{host['name']}: {warning}" for host in hosts for warning in (host["capabilities"] or {}).get("warnings", ())
    ]


def _warps(host: dict[str, Any]) -> str:
    """A line about the mechanism for warps of a host; empty where they are switched off."""
    warp = (host["tick"] or {}).get("warp")
    if warp is None:
        return ""
    vms = f"{warp['vms']} VM{'s' * (warp['vms'] != 1)}"
    words = f"it can {warp['can']}; it cannot {warp['cannot']}"
    return f"{host['name']}: warps of {vms} by {warp['mechanism']} ({warp['detail']}): {words}"


def _caches(hosts: list[dict[str, Any]]) -> Iterator[str]:
    """A line for each group of each cache that is divided, for what each VM has of it, and what is not as asked."""
    for host in hosts:
        cache = (host["tick"] or {}).get("cache") or {"groups": [], "notes": []}
        for group in cache["groups"]:
            ways = ", ".join(
                f"{part['ways']} ways ({part['mask']}) in domain {part['domain']}" for part in group["parts"]
            )
            of = ", ".join(group["applications"]) or group["name"].rpartition("+")[2] or "all else"
            held = f", memory bandwidth held to {group['bandwidth']}" if group.get("bandwidth") else ""
            yield f"{host['name']}: cache of {of}: {ways}{held}{' (externally modified)' * group['external']}"
        yield from (f"{host['name']}: {line}" for line in _traffic(cache))
        yield from (f"{host['name']}: {note}" for note in cache["notes"])


def _traffic(cache: dict[str, Any]) -> Iterator[str]:
    """A line for the memory of each domain, and for what each VM that is measured has there."""
    for memory in cache.get("memories", ()):
        rate, most = memory["bandwidth_bytes_per_s"], memory["maximum_bytes_per_s"]
        if rate is not None:
            beside = f", at most {most / 1e9:.3g} measured" if most is not None else ""
            yield f"memory of domain {memory['domain']}: {rate / 1e9:.3g} GB/s{beside}{' FULL' * memory['saturated']}"
    for vm in cache.get("vms", ()):
        for part in vm["parts"]:
            size, total, local = (part[name] for name in _USES)
            told = [f"{size / (1 << 20):.3g} MiB of the cache"] if size is not None else []
            told += [f"{total / 1e9:.3g} GB/s of memory"] if total is not None else []
            told += [f"{local / 1e9:.3g} of them local"] if local is not None and total is not None else []
            if told:
                yield f"{vm['vm']} has {', '.join(told)} in domain {part['domain']}"


def _ailing(source: dict[str, Any]) -> str:
    """A line about a source that is not ok; empty for one that is."""
    name, status = f"source {source['application']}/{source['source']}", source["status"]
    if status is None:
        return f"{name}: {source['problem'] or 'no agent runs it'}"
    if status["state"] == "ok":
        return ""
    detail = f": {status['detail']}" if status["detail"] else ""
    return f"{name} on {source['host']}: {status['state']}{detail}"


def _vms_table(vms: list[dict[str, Any]]) -> Table:
    table = Table("VM", "class", "application", "host", "CPU", "waits", "settings", "pins", title="VMs")
    for vm in vms:
        state = vm["status"]
        if state is None:
            table.add_row(
                vm["name"], vm["class"], vm["application"] or "-", vm["host"] or "any", "not running", "", "", ""
            )
            continue
        knobs = state["knobs"]
        settings = settings_shown(knobs, set(Knob) - PINS - WARPS)
        settings += [f"warp: {state['warp_us']:,} us"] if state.get("warp_us") else []
        settings += settings_shown((knob for knob in knobs if knob["external"]), WARPS)
        table.add_row(
            vm["name"],
            vm["class"],
            vm["application"] or "-",
            vm["status_host"],
            f"{state['cpu_share']:.0%}",
            f"{state['run_delay_share']:.1%}",
            settings or "as they were",
            settings_shown(knobs, PINS),
        )
    return table


def _local(moment: str) -> str:
    """A time as clocks here show it; as it is where it is none."""
    try:
        return datetime.fromisoformat(moment).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError):
        return moment


def _ago(moment: str | None) -> str:
    if moment is None:
        return "never"
    try:
        age_s = time.time() - datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return moment
    # One of the two clocks was set: how long ago it is cannot be told by them.
    return f"{max(age_s, 0):.0f} s ago" if age_s > -_AHEAD_S else f"{moment}, ahead of this clock"


_DECISIONS_EPILOG = """
OUTPUT
  One line a decision, newest first: when, on which host and VM, which setting, before and after, what came of it, why.

EXAMPLES
  equipoise decisions --vm shop-cache --limit 20
  equipoise decisions --since 2026-01-31T14:00:00Z --json
"""


@click.command(cls=OnePage, epilog=_DECISIONS_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.option("--host", default="", metavar="NAME", help="Only this host.")
@click.option("--vm", default="", metavar="NAME", help="Only this VM.")
@click.option(
    "--knob",
    default="",
    metavar="KNOB",
    help=f"Only one of {', '.join(Knob)}.",
)
@click.option("--since", default="", metavar="TIME", help="Not before this RFC 3339 time.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list.")
def decisions(settings: Settings, host: str, vm: str, knob: str, since: str, limit: int, as_json: bool) -> None:
    """Show what was decided, for which VM, why, and what came of it."""
    found = connect(settings).items("/decisions", limit=limit, host=host, vm=vm, knob=knob, since=since)
    if as_json:
        say_json(found)
        return
    table = Table("when", "host", "VM", "setting", "before", "after", "outcome", "reason")
    for one in found:
        when = _local(one["at"])
        reason = one["reason"] + (f" ({one['detail']})" if one["detail"] else "")
        table.add_row(
            when,
            one["host"],
            one["vm"] or "-",
            knob_name(one["knob"], one["index"]),
            value_shown(one["knob"], one["before"]),
            value_shown(one["knob"], one["after"]),
            one["outcome"],
            reason,
        )
    show(table if found else "No decisions yet.")
