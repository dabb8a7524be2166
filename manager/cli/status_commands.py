"""Hosts, applications and VMs, decisions, and the settings in force: status, decisions, config."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import chain
from typing import Any

import click

from manager.cli.batch_table import batch_table
from manager.cli.cost_options import costs_of
from manager.cli.options import CLIENT_SETTINGS, ManPage, ObjectName, connect, json_option, with_settings
from manager.cli.times import local_time, time_s
from manager.control.power_shares import idle_watts
from manager.model.energy import HostPower
from manager.model.fields import adapter_of, timestamp
from manager.model.knob_text import knob_name, settings_shown, value_shown
from manager.model.knobs import PINS, WARPS, Knob
from manager.model.numbers import digits
from manager.model.records import FULL_VCPU
from manager.model.units import percent
from manager.protocol.client import ManagerClient
from manager.settings import SETTINGS, Settings
from manager.terminal import Table, output

_USES = ("occupancy_bytes", "bandwidth_total_bytes_per_s", "bandwidth_local_bytes_per_s")
_CLOCK_S = 0.5  # a smaller clock offset does no harm to intervals of seconds
_AHEAD_S = 60.0
_RECENT = timedelta(days=1)
_OF_REPORTS = ("host-renamed", "items-refused")
_MOST_EVENTS = 1000
_SLA_MARKS = {"met": "met", "at_risk": "AT RISK", "violated": "VIOLATED", "no_data": "no data"}

_STATUS_EPILOG = """
OUTPUT
  Tables of hosts, applications, and managed VMs with their settings and the originals of these. `externally modified`
  marks a setting that another tool changed since, which is left alone. Where a host's energy can be read (RAPL), VMs
  have their part of its power, by CPU time and without what the host would draw idle. Then a table of batch VMs: what
  they got and would have used alone, in pCPUs, and how their jobs fare. Then lines for what the policy of a host does
  for an application, where it explains that; for the power of each host that measures it; for the mechanism of each
  host's warps, the groups of divided caches, warnings of hosts, such as that one is simulated, reports of the last day
  with refused items or under another host name, and sources of response times with problems. With --json, an object
  with the lists hosts, applications, vms, sources and events as the REST API answers them.

EXAMPLES
  equipoise status
  equipoise status --json | jq '.vms[] | {name, knobs: .status.knobs}'
"""


@click.command(cls=ManPage, epilog=_STATUS_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.option("--host", type=ObjectName(), default="", metavar="NAME", help="Only this host.")
@json_option
def status(settings: Settings, host: str, as_json: bool) -> None:
    """Show every managed VM, its settings and their originals, and the state of every SLA."""
    client = connect(settings)
    hosts = [client.get(f"/hosts/{host}")] if host else client.items("/hosts")
    vms = [vm for vm in client.items("/vms") if not host or host in {vm["host"], vm["status_host"]}]
    applications = client.items("/applications")
    sources = [
        {"application": application["name"], **source}
        for application in applications
        if application["sources"]
        for source in client.items(f"/applications/{application['name']}/sources")
    ]
    events = _events_of_reports(client, host)
    output(
        as_json,
        {"hosts": hosts, "applications": applications, "vms": vms, "sources": sources, "events": events},
        *(_hosts_table(hosts), _applications_table(applications), _vms_table(vms)),
        *filter(None, [batch_table(vms)]),
        *_explanations(applications, host),
        *filter(None, map(_power, hosts)),
        *filter(None, map(_warps, hosts)),
        *_caches(hosts),
        *_warnings(hosts),
        *filter(None, map(_guard, hosts)),
        *(f"{event['host']}: {event['message']} ({_ago(event['at'])})" for event in events),
        *chain.from_iterable(map(_busy_vcpus, hosts)),
        *filter(None, map(_unhealthy, sources)),
    )


def _events_of_reports(client: ManagerClient, host: str) -> list[dict[str, Any]]:
    """The newest event of the last day about each host's refused items, and its former name."""
    since = (datetime.now(UTC) - _RECENT).isoformat()
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
            percent(tick["host_cpu_share"]) if tick else "-",
            str(tick.get("owned_knobs", "-")),
            _ago(host["last_seen_at"]),
            _libvirt(tick),
        )
    return table


def _libvirt(tick: dict[str, Any]) -> str:
    age_s = tick.get("discovery_age_s")
    listed = f", listed {age_s:.0f} s ago" if age_s is not None else ""
    return f"{'connected' if tick.get('libvirt_connected') else 'not connected'}{listed}"


def _power(host: dict[str, Any]) -> str:
    """A line for a host whose power is measured."""
    tick = host["tick"] or {}
    if not tick.get("power"):
        return ""
    watts = adapter_of(HostPower).validate_python(tick["power"]).watts
    idle = idle_watts(watts, costs_of(host, {}).idle_part, tick["host_cpu_share"])
    return f"{host['name']}: processors and memory draw {watts:.1f} W (RAPL), of it {idle:.1f} W idle"


def _guard(host: dict[str, Any]) -> str:
    """A line for a host whose guard did, or would have done, something."""
    guard = (host["tick"] or {}).get("guard")
    if not guard or not (guard["episodes"] or guard["holding"]):
        return ""
    now = "holds batch VMs now" if guard["holding"] and guard["acts"] else "holds nothing now"
    return f"{host['name']}: the guard {now}; {guard['episodes']} episodes so far, the last: {guard['last'] or '-'}"


def _applications_table(applications: list[dict[str, Any]]) -> Table:
    table = Table("application", "SLA", "state", "measured", "rate", "tiers", title="Applications")
    for application in applications:
        sla, window = application["sla"], application["window"] or {}
        measured_ms, rate_rps = application.get("measured_ms"), window.get("rate_rps")
        table.add_row(
            application["name"],
            f"p{sla['percentile']:g} <= {sla['response_time_ms']:g} ms" if sla else "-",
            _SLA_MARKS.get(application["sla_state"], application["sla_state"]),
            f"p{application['measured_percentile']:g} {digits(measured_ms)} ms" if measured_ms is not None else "-",
            f"{rate_rps:.0f}/s" if rate_rps is not None else "-",
            ", ".join(tier["name"] for tier in application["tiers"]),
        )
    return table


def _explanations(applications: list[dict[str, Any]], host: str) -> Iterator[str]:
    """A line for each application and host whose policy says what it does for it; ``host`` empty: all."""
    for application in applications:
        for each in application.get("explanations", ()):
            if host in {"", each["host"]}:
                age = f" ({_ago(each['at'])})"
                yield f"{application['name']} on {each['host']}, policy {each['policy']}: {each['text']}{age}"


def _busy_vcpus(host: dict[str, Any]) -> Iterator[str]:
    """A line for each VM that has both full and idle vCPUs."""
    for vm in (host["tick"] or {}).get("busy_vcpus", ()):
        shares = list(zip(vm["used"], vm["waited"], strict=True))
        if min(map(sum, shares)) < FULL_VCPU <= max(map(sum, shares)):
            each = ", ".join(
                f"{number}: {percent(used)} + {percent(waited)}" for number, (used, waited) in enumerate(shares)
            )
            yield f"{host['name']}: {vm['vm']} has a full vCPU beside idle ones (use + vCPU wait: {each})"


def _warnings(hosts: list[dict[str, Any]]) -> list[str]:
    """A line for each problem of a host, and each property such as that it is simulated."""
    return [f"{host['name']}: {text}" for host in hosts for text in _problems(host)]


def _problems(host: Mapping[str, Any]) -> Iterator[str]:
    if host.get("silent"):
        yield "does not report; see its events"
    stalled_s = (host["tick"] or {}).get("stalled_s")
    if stalled_s is not None:
        yield f"no tick for {stalled_s:.0f} s: nothing is controlled; see its events"
    if rival := host.get("rival_instance"):
        yield f"a second agent, {rival}, was refused; `equipoise host replace {host['name']}` prefers it"
    ahead_s = host.get("clock_ahead_s") or 0.0
    if abs(ahead_s) >= _CLOCK_S:
        yield f"its clock is {digits(abs(ahead_s))} s {'ahead of' if ahead_s > 0 else 'behind'} the manager's"
    yield from (f"limited by its agent's settings: {text}" for text in (host["tick"] or {}).get("limited", ()))
    yield from (host["capabilities"] or {}).get("warnings", ())


def _warps(host: dict[str, Any]) -> str:
    """A line about the mechanism for warps; empty where they are switched off."""
    warp = (host["tick"] or {}).get("warp")
    if warp is None:
        return ""
    vms = f"{warp['vms']} VM{'s' * (warp['vms'] != 1)}"
    words = f"it can {warp['can']}; it cannot {warp['cannot']}"
    return f"{host['name']}: warps of {vms} by {warp['mechanism']} ({warp['detail']}): {words}"


def _caches(hosts: list[dict[str, Any]]) -> Iterator[str]:
    """Lines for the groups of each divided cache, for what each VM uses of it, and for what differs from the wish."""
    for host in hosts:
        cache = (host["tick"] or {}).get("cache") or {"groups": [], "notes": []}
        for group in cache["groups"]:
            ways = ", ".join(
                f"{part['ways']} ways ({part['mask']}) in domain {part['domain']}" for part in group["parts"]
            )
            limit = f", memory bandwidth held to {group['bandwidth']}" if group.get("bandwidth") else ""
            external = " (externally modified)" * group["external"]
            yield f"{host['name']}: cache of {group_owner(group)}: {ways}{limit}{external}"
        yield from (f"{host['name']}: {line}" for line in _traffic(cache))
        yield from (f"{host['name']}: {note}" for note in cache["notes"])


def group_owner(group: Mapping[str, Any]) -> str:
    """Whose group of a cache it is, in words."""
    return ", ".join(group["applications"]) or str(group["name"]).rpartition("+")[2] or "all else"


def _traffic(cache: dict[str, Any]) -> Iterator[str]:
    """Lines for the memory of each domain, and for what each measured VM uses."""
    for memory in cache.get("memories", ()):
        rate, most = memory["bandwidth_bytes_per_s"], memory["maximum_bytes_per_s"]
        if rate is not None:
            beside = f", at most {digits(most / 1e9)} measured" if most is not None else ""
            full = " FULL" * memory["saturated"]
            yield f"memory of domain {memory['domain']}: {digits(rate / 1e9)} GB/s{beside}{full}"
    for vm in cache.get("vms", ()):
        for part in vm["parts"]:
            size, total, local = (part[name] for name in _USES)
            uses = [f"{digits(size / (1 << 20))} MiB of the cache"] if size is not None else []
            uses += [f"{digits(total / 1e9)} GB/s of memory"] if total is not None else []
            uses += [f"{digits(local / 1e9)} of them local"] if local is not None and total is not None else []
            if uses:
                yield f"{vm['vm']} has {', '.join(uses)} in domain {part['domain']}"


def _unhealthy(source: dict[str, Any]) -> str:
    """A line about a source with a problem; empty for one without."""
    name, status = f"source {source['application']}/{source['source']}", source["status"]
    if status is None:
        return f"{name}: {source['problem'] or 'no agent runs it'}"
    if status["state"] == "ok":
        return ""
    detail = f": {status['detail']}" if status["detail"] else ""
    return f"{name} on {source['host']}: {status['state']}{detail}"


def _vms_table(vms: list[dict[str, Any]]) -> Table:
    powers = any(vm.get("power_watts") is not None for vm in vms)
    columns = (
        "VM",
        "class",
        "application",
        "host",
        "CPU",
        "waits",
        *(("power",) if powers else ()),
        "settings",
        "pins",
    )
    table = Table(*columns, title="VMs")
    for vm in vms:
        state, name = vm["status"], (vm["name"], vm["class"], vm["application"] or "-")
        if state is None:
            table.add_row(*name, vm["host"] or "any", "not running", "", *([""] * powers), "", "")
            continue
        knobs = state["knobs"]
        settings = settings_shown(knobs, set(Knob) - PINS - WARPS)
        settings += [f"warp: {state['warp_us']:,} us"] if state.get("warp_us") else []
        settings += settings_shown((knob for knob in knobs if knob["external"]), WARPS)
        shares = percent(state["cpu_share"]), percent(state["run_delay_share"], 1)
        watts = vm.get("power_watts")
        power = ("-" if watts is None else f"{watts:.1f} W",) if powers else ()
        table.add_row(
            *name, vm["status_host"], *shares, *power, settings or "as they were", settings_shown(knobs, PINS)
        )
    return table


def _local(moment: str) -> str:
    """A time in this machine's zone; what is no time stays as it is."""
    try:
        return local_time(datetime.fromisoformat(moment))
    except (ValueError, OverflowError):
        return moment


def _ago(moment: str | None) -> str:
    if moment is None:
        return "never"
    try:
        age_s = time.time() - datetime.fromisoformat(moment).timestamp()
    except ValueError:
        return moment
    return f"{max(age_s, 0):.0f} s ago" if age_s > -_AHEAD_S else f"{moment}, ahead of this clock"


_DECISIONS_EPILOG = """
TIME
  How long ago, such as 90s, 10m, 1h or 2d, or an RFC 3339 time such as 2026-01-31T14:00:00Z.

OUTPUT
  A row per decision, newest first: time, host, VM, setting, value before and after, outcome and reason.

EXAMPLES
  equipoise decisions --vm shop-cache --limit 20
  equipoise decisions --since 2h
  equipoise decisions --since 2026-01-31T14:00:00Z --json
"""


@click.command(cls=ManPage, epilog=_DECISIONS_EPILOG)
@with_settings(*CLIENT_SETTINGS)
@click.option("--host", default="", metavar="NAME", help="Only this host.")
@click.option("--vm", default="", metavar="NAME", help="Only this VM.")
@click.option("--knob", default="", metavar="KNOB", help=f"Only one of {', '.join(Knob)}.")
@click.option("--since", default="", metavar="TIME", help="Begin here.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="At most so many.")
@json_option
def decisions(settings: Settings, limit: int, as_json: bool, **wanted: str) -> None:
    """Show decisions: for which VM, why, and their outcome."""
    if wanted["since"]:
        wanted["since"] = timestamp(max(time_s("--since", wanted["since"], time.time()), 0.0)).isoformat()
    rows = connect(settings).items("/decisions", limit=limit, **wanted)
    table = Table("when", "host", "VM", "setting", "before", "after", "outcome", "reason")
    for row in rows:
        table.add_row(
            _local(row["at"]),
            row["host"],
            row["vm"] or "-",
            knob_name(row["knob"], row["index"]),
            *(value_shown(row["knob"], row[side]) for side in ("before", "after")),
            row["outcome"],
            row["reason"] + (f" ({row['detail']})" if row["detail"] else ""),
        )
    none = f"No decisions about VM {wanted['vm']!r}." if wanted["vm"] else "No decisions yet."
    output(as_json, rows, table if rows else none)


_CONFIG_EPILOG = """
SOURCES
  Later ones win: the default, the TOML file, the environment (EQUIPOISE_ and the name in capitals), an option. Unknown
  names and values out of range are refused. docs/reference/configuration.md describes every setting.

EXAMPLES
  equipoise config
  equipoise config --config trial.toml --json
  EQUIPOISE_INTERVAL_S=1 equipoise config
"""


@click.command(cls=ManPage, epilog=_CONFIG_EPILOG)
@with_settings(*(setting.name for setting in SETTINGS))
@json_option
def config(settings: Settings, as_json: bool) -> None:
    """Print every setting in force, its source, and its range."""
    table = Table("setting", "value", "source", "range", "meaning")
    body = {}
    for row in SETTINGS:
        value, source = settings.shown(row.name), settings.sources[row.name]
        table.add_row(row.name, str(value), source, row.range_text, row.help)
        body[row.name] = {"value": value, "source": source, "default": row.default, "range": row.range_text}
    output(as_json, body, table)
