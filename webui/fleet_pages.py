"""The first page: is every SLA met now, and how full are the hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flask import Response, request

from manager.api.auth import VIEWER, allow
from webui import rest
from webui.drawing import Part, spark, split
from webui.host_view import FAILING, host_health
from webui.rest import Json
from webui.site import is_fragment, now_s, page, site, web
from webui.words import BADGES

PAGE_ROWS, FIRST_ROWS = 100, 30
"""Applications in a part of the list, and in a page that is just opened: more than a screen shows, and what a browser
draws at once. Its script asks for the rest right after."""
ORDERS: Mapping[str, str] = {
    "worst": "worst first",
    "name": "name",
    "used": "response time against SLA",
    "rate": "rate",
}
_MINUTES = 10
_MOST_URGENT = 5
MOST_HOSTS = 12
"""Hosts on the first page, the worst first; the page of hosts has all."""


@web.get("/")
@allow(VIEWER)
def fleet() -> Response:
    """Applications and hosts, the worst first."""
    asked = {name: request.args.get(name, "") for name in ("state", "host", "search", "sort")}
    wanted = {name: value for name, value in asked.items() if value}
    offset = request.args.get("offset", 0, int)
    rows = PAGE_ROWS if is_fragment() else FIRST_ROWS
    answer = rest.get("/fleet", **wanted, offset=offset, limit=rows, hosts_limit=MOST_HOSTS, minutes=_MINUTES)
    hosts, applications = answer["hosts"], answer["applications"]
    health = {host["name"]: host_health(host, now_s(), site().context.slot_s) for host in hosts}
    return page(
        "fleet.html",
        fleet=answer,
        asked=asked,
        wanted=wanted,
        offset=offset,
        rows=rows,
        orders=ORDERS,
        minutes=_MINUTES,
        lines={
            row["name"]: spark(row["points_ms"], (row["sla"] or {}).get("response_time_ms")) for row in applications
        },
        attention=_attention(applications),
        health=health,
        failing=[name for name, (badge, _) in health.items() if badge.colour == "violated"][:_MOST_URGENT],
        failing_hosts=sum(answer["hosts_health"][health] for health in FAILING),
        hosts_registered=sum(answer["hosts_health"].values()),
        splits={host["name"]: cpu_split(host["tick"]) for host in hosts if host["tick"]},
    )


def _attention(applications: Sequence[Json]) -> list[Json]:
    """The applications that need a human first: what burns its error budget, the fastest first, then violations."""
    order = list(BADGES["burn"])
    urgent = [row for row in applications if row["burning"] != "none" or row["sla_state"] == "violated"]
    urgent.sort(key=lambda row: (order.index(row["burning"]), -(row["burn_rate"] or 0.0)))
    return urgent[:_MOST_URGENT]


def cpu_split(tick: Json) -> tuple[Part, ...]:
    """Whose the host's CPU time was in the last interval; empty before there is one that was measured."""
    critical, batch, busy = tick["critical_cpu_share"], tick["batch_cpu_share"], tick["host_cpu_share"]
    if critical is None or batch is None:
        return ()
    other = max(0.0, busy - critical - batch)
    return split([("critical", critical), ("batch", batch), ("other", other), ("idle", 1.0 - busy)])
