"""The first page: is every SLA met now, and how full are the hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flask import Blueprint, Response, request

from manager.api.auth import VIEWER, allow
from webui.drawing import Part, Spark, spark, split
from webui.host_view import host_health
from webui.inside import Json
from webui.site import Site, is_fragment, page
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


def add_fleet(web: Blueprint, site: Site) -> None:
    """The page ``/``."""

    @web.get("/")
    @allow(VIEWER)
    def fleet() -> Response:
        """All applications and hosts."""
        asked = {name: request.args.get(name, "") for name in ("state", "host", "search", "sort")}
        wanted = {name: value for name, value in asked.items() if value}
        offset = request.args.get("offset", 0, int)
        rows = PAGE_ROWS if is_fragment() else FIRST_ROWS
        found = site.api.get("/fleet", **wanted, offset=offset, limit=rows, minutes=_MINUTES)
        health = {one["name"]: host_health(one, site.now_s(), site.interval_s) for one in found["hosts"]}
        return page(
            "fleet.html",
            fleet=found,
            asked=asked,
            wanted=wanted,
            offset=offset,
            rows=rows,
            orders=ORDERS,
            minutes=_MINUTES,
            lines={one["name"]: _line(one) for one in found["applications"]},
            attention=_attention(found["applications"]),
            health=health,
            failing=[name for name, one in health.items() if one.badge.colour == "missed"],
            splits={one["name"]: cpu_split(one["tick"]) for one in found["hosts"] if one["tick"]},
        )


def _attention(applications: Sequence[Json]) -> list[Json]:
    """The applications that need a human first: what burns its error budget, the fastest first, then violations."""
    order = list(BADGES["burn"])
    urgent = [one for one in applications if one["burning"] != "none" or one["sla_state"] == "missed"]
    urgent.sort(key=lambda one: (order.index(one["burning"]), -(one["burn_rate"] or 0.0)))
    return urgent[:_MOST_URGENT]


def _line(application: Json) -> Spark:
    sla = application["sla"]
    return spark(application["points_ms"], sla["response_time_ms"] if sla else None)


def cpu_split(tick: Json) -> tuple[Part, ...]:
    """Whose the host's CPU time was in the last interval. An older agent does not tell the classes apart."""
    critical, batch = tick.get("critical_cpu_share"), tick.get("batch_cpu_share")
    vms: list[tuple[str, float]] = [("VMs", tick["vms_cpu_share"])]
    if critical is not None and batch is not None:
        vms = [("critical", critical), ("batch", batch)]
    other = max(0.0, tick["host_cpu_share"] - sum(share for _, share in vms))
    return split([*vms, ("other", other), ("idle", 1.0 - tick["host_cpu_share"])])
