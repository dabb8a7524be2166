"""The pages of hosts: a list, of each its pCPUs, VMs, health, and controls, and its last minutes as a what-if."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flask import Response, request

from manager.api.auth import VIEWER, allow
from manager.api.history_routes import HostHistoryOut
from manager.model.cpus import parse_cpus
from manager.model.host_health import HostHealth
from manager.model.traffic import MOST_SERVICES
from webui import rest
from webui.cpu_map import USES, draw_map
from webui.drawing import Part
from webui.fleet_pages import cpu_split
from webui.host_view import (
    HEALTH_WORDS,
    Heard,
    batch_lines,
    cache_lines,
    controls,
    grouped,
    heard,
    host_health,
    power_shown,
    resources_shown,
    service_lines,
    traffic_lines,
    vm_lines,
)
from webui.opened_page import opened_page
from webui.rest import Json, RequestRefused
from webui.site import csv_file, is_fragment, now_s, page, site, web
from webui.words import Badge

CSV_STEPS = 2000
MINUTES = (5, 15, 30, 60)
PAGE_HOSTS = 48
"""Hosts on a page of their list."""
HOST_ORDERS: Mapping[str, str] = {"worst": "worst first", "name": "name", "load": "CPU use, highest first"}
HOST_GROUPS: Mapping[str, str] = {"health": "health", "policy": "policy", "mode": "mode"}
_COLUMNS = tuple(HostHistoryOut.model_json_schema()["$defs"]["HostStep"]["properties"])


@dataclass(frozen=True, slots=True)
class HostCard:
    """A host in the list: how its agent is heard of, its health, whose its CPU time was, and its group.

    ``group``: the value, as the interface counts it, and its heading.
    """

    host: Json
    heard: Heard
    health: tuple[Badge, str]
    split: tuple[Part, ...]
    group: tuple[str, str]


@web.get("/hosts")
@allow(VIEWER)
def hosts() -> Response:
    """Hosts, the worst first, or as they are asked for."""
    return opened_page("hosts.html", _hosts)


def _hosts() -> Mapping[str, object]:
    """What the page of hosts shows of what the request asks for."""
    asked = {name: request.args.get(name, "") for name in ("health", "search", "policy", "mode", "sort", "group")}
    wanted = {name: value for name, value in asked.items() if value}
    offset = request.args.get("offset", 0, int)
    answer = rest.get("/fleet/hosts", **wanted, offset=offset, limit=PAGE_HOSTS)
    rows = [
        HostCard(
            host,
            heard(host, now_s()),
            host_health(host, now_s(), site().context.slot_s),
            cpu_split(host["tick"]) if host["tick"] else (),
            _group(host, asked["group"]),
        )
        for host in answer["items"]
    ]
    return {
        "rows": rows,
        "answer": answer,
        "asked": asked,
        "wanted": wanted,
        "offset": offset,
        "size": PAGE_HOSTS,
        "orders": HOST_ORDERS,
        "grouped_by": HOST_GROUPS,
        "health_words": HEALTH_WORDS,
    }


def _group(host: Json, group: str) -> tuple[str, str]:
    """The group of a host, as the interface counts it, and its heading; both empty without groups."""
    value = str(host[group]) if group in HOST_GROUPS else ""
    return value, HEALTH_WORDS[HostHealth(value)] if group == "health" else value


@web.get("/hosts/<name>")
@allow(VIEWER)
def host(name: str) -> Response:
    """One host: 404 where there is none."""
    path = rest.at("hosts", name)
    answer = rest.get(path)
    capabilities, checks = answer["capabilities"], _checks(path)
    online = parse_cpus(capabilities["online_cpus"]) if capabilities else frozenset[int]()
    lines = vm_lines(rest.every("/vms", host=name), name, online)
    services = rest.get(f"{path}/services", limit=MOST_SERVICES)
    tick = answer["tick"] or {}
    cache = tick.get("cache")
    return page(
        "host.html",
        host=answer,
        heard=heard(answer, now_s()),
        health=host_health(answer, now_s(), site().context.slot_s),
        split=tick and cpu_split(tick),
        lines=lines,
        pcpus=len(online),
        unregistered=[domain["libvirt_name"] for domain in rest.every(f"{path}/domains", registered=False)],
        map=capabilities
        and draw_map(
            capabilities,
            answer["placement"]["reserved_cpus"],
            [line.vm for line in lines if line.running],
            tick,
        ),
        uses=USES,
        fences=answer["placement"]["batch"],
        controls=controls(lines, checks and checks["findings"], tick),
        cache=cache,
        cache_lines=cache_lines(cache),
        traffic=traffic_lines(cache),
        resources=resources_shown(tick.get("resources")),
        power=power_shown(answer),
        batch_lines=batch_lines(tick.get("batch_vms", ()), lines),
        findings=checks,
        groups=grouped(checks["findings"]) if checks else [],
        services=services,
        service_lines=service_lines(services["items"], [line.vm for line in lines]),
    )


@web.get("/hosts/<name>/history.csv")
@allow(VIEWER)
def host_csv(name: str) -> Response:
    """The last hour of a host as a file."""
    history = rest.get(rest.at("hosts", name, "history"), points=CSV_STEPS)
    return csv_file(history["host"], _COLUMNS, ([step[column] for column in _COLUMNS] for step in history["steps"]))


def _checks(path: str) -> Any:
    """What the host's doctor found; None where the agent has not reported it."""
    try:
        return rest.get(f"{path}/findings")
    except RequestRefused as refused:
        if refused.status == 404:
            return None
        raise


@web.get("/what-if")
@allow(VIEWER)
def what_if() -> Response:
    """The choice of host, policy and minutes; with all three, the estimate, or why there is none.

    Without a host one is proposed whose agent is heard of; if it can be, one on which ``application`` runs.
    """
    host, policy = request.args.get("host", ""), request.args.get("policy", "")
    minutes = request.args.get("minutes", str(MINUTES[-1]))
    estimate = refusal = None
    if host and policy:
        try:
            estimate = rest.get(rest.at("hosts", host, "what-if"), policy=policy, minutes=minutes)
        except RequestRefused as refused:
            refusal = refused
    if not host and not is_fragment():
        host = _proposed_host(request.args.get("application", ""))
    return page(
        "what_if.html",
        host=host,
        policy=policy,
        minutes=minutes,
        choices=MINUTES,
        estimate=estimate,
        refused=refusal,
        hosts=[] if is_fragment() else rest.suggested("hosts"),
        policies=[] if is_fragment() else list(rest.every("/policies")),
    )


def _proposed_host(application: str) -> str:
    """A host to begin with: one on which the application runs, if there is one, and that reports; empty: no host."""
    vms = rest.every("/vms", application=application) if application else ()
    for name in sorted({vm["status_host"] for vm in vms if vm["status_host"]}):
        if not rest.get(rest.at("hosts", name))["silent"]:
            return str(name)
    for reporting in (True, False):
        first = rest.get("/hosts", reporting=reporting, limit=1)["items"]
        if first:
            return str(first[0]["name"])
    return ""
