"""The first page: is every SLA met now, and how full are the hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flask import Blueprint, Response, request

from manager.api.auth import VIEWER, allow
from webui.drawing import Part, Spark, spark, split
from webui.host_view import Contact, heard
from webui.inside import Json
from webui.site import Site, is_fragment, page

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


@dataclass(frozen=True, slots=True)
class HostHealth:
    """Whether a host's agent does what it should. ``advice``: what to do where it does not."""

    mark: str
    word: str
    state: str
    advice: str = ""


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
            health={one["name"]: host_health(one, site) for one in found["hosts"]},
            splits={one["name"]: cpu_split(one["tick"]) for one in found["hosts"] if one["tick"]},
        )


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


def host_health(host: Json, site: Site) -> HostHealth:
    """How a host's agent is, from what it told last."""
    name, tick = host["name"], host["tick"]
    if host["last_seen_at"] is None or tick is None:
        return HostHealth("○", "never reported", "no_data", f"start equipoise agent on {name}, with a token for it")
    contact = heard(host, site.now_s())
    if contact.contact is Contact.SILENT:
        return HostHealth(
            "✗", f"last seen {contact.when}", "missed", f"is equipoise agent running on {name}, and does it reach us?"
        )
    if not tick["libvirt_connected"]:
        return HostHealth("✗", "no libvirt", "missed", f"is libvirtd running on {name}?")
    if tick["errors"]:
        return HostHealth("▲", f"{tick['errors']} errors in the last tick", "at_risk", "the page Events says which")
    duration = f"tick {tick['duration_ms']:.0f} ms"
    if tick["duration_ms"] > 1000 * site.interval_s:
        return HostHealth("▲", f"{duration}, too long", "at_risk", f"longer than the interval: what loads {name}?")
    return HostHealth("✓", duration, "met")
