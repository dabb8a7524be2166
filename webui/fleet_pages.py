"""The first page: is every SLA met now, and how full are the hosts.

Applications are one list, or groups of which some are open. What is open is in the URL, so that a page works without
scripts, can be bookmarked, and is fetched anew as it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from flask import Response, request

from manager.api.auth import VIEWER, allow
from webui import rest
from webui.drawing import Part, Spark, spark, split
from webui.host_view import FAILING, host_health
from webui.opened_page import opened_page
from webui.rest import Json
from webui.site import is_fragment, now_s, site, web
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
GROUPS: Mapping[str, str] = {"state": "SLA", "host": "host", "policy": "policy", "mode": "mode"}
NO_VALUE: Mapping[str, str] = {"host": "not running", "policy": "not running", "mode": "inherited from host"}
"""The heading of the group of applications without a value."""
PAGE_GROUPS, OPEN_GROUPS = 50, 5
"""Groups on a page, and those of which it shows the applications, ``FIRST_ROWS`` of each at most."""
_NOTHING = "-"
"""Stands in the URL for the group without a value: no name begins like that."""
_MINUTES = 10
_MOST_URGENT = 5
MOST_HOSTS = 12
"""Hosts on the first page, the worst first; the page of hosts has all."""


@dataclass(frozen=True, slots=True)
class ShownGroup:
    """A group of applications: ``rows`` are the first of its ``count`` applications where it is open, else None.

    ``key`` stands for it in the URL; ``toggled`` are the keys of the groups that are open once it is pressed.
    """

    key: str
    value: str
    heading: str
    worst: str
    states: Mapping[str, int]
    rows: Sequence[Json] | None
    toggled: Sequence[str]

    @property
    def count(self) -> int:
        """Applications in it."""
        return sum(self.states.values())


@web.get("/")
@allow(VIEWER)
def fleet() -> Response:
    """Applications, in groups where that is asked for, and hosts, the worst first."""
    return opened_page("fleet.html", _values)


def _values() -> Mapping[str, object]:
    """What the page shows of what the request asks for."""
    asked = {name: request.args.get(name, "") for name in ("state", "host", "search", "sort", "group")}
    wanted = {name: value for name, value in asked.items() if value}
    only = request.args.get("in_group")
    if asked["group"] in GROUPS and only is None:
        return _grouped(asked, wanted)
    if asked["group"] in GROUPS and only is not None:
        wanted["in_group"] = only
    offset = request.args.get("offset", 0, int)
    rows = PAGE_ROWS if is_fragment() else FIRST_ROWS
    answer = rest.get("/fleet", **wanted, offset=offset, limit=rows, hosts_limit=MOST_HOSTS, minutes=_MINUTES)
    heading = None if only is None else _heading(asked["group"], only)
    return _shown(answer, asked, wanted, answer["applications"], offset=offset, rows=rows, only=heading)


def _grouped(asked: Mapping[str, str], wanted: Mapping[str, str]) -> Mapping[str, object]:
    """Groups of applications: the open ones with their first applications."""
    offset = request.args.get("offset", 0, int)
    filters = {name: asked[name] or None for name in ("state", "host", "search")}
    groups = rest.get("/fleet/groups", **filters, group=asked["group"], offset=offset, limit=PAGE_GROUPS)
    answer = rest.get("/fleet", **filters, limit=_MOST_URGENT, hosts_limit=MOST_HOSTS, minutes=_MINUTES)
    shown = _open(groups["items"], wanted)
    rows = [row for group in shown for row in group.rows or ()]
    return _shown(answer, asked, wanted, rows, groups=shown, grouped=groups, offset=offset, rows=PAGE_GROUPS)


def _open(groups: Sequence[Json], wanted: Mapping[str, str]) -> list[ShownGroup]:
    """The groups of a page. Open are those that the URL says; where it says nothing, the first."""
    keys = [group["value"] or _NOTHING for group in groups]
    chosen = [key for key in dict.fromkeys(request.args.getlist("open")) if key] if "open" in request.args else keys[:1]
    opened = [key for key in chosen if key in keys][-OPEN_GROUPS:]
    return [_group(group, key, opened, wanted) for group, key in zip(groups, keys, strict=True)]


def _group(group: Json, key: str, opened: Sequence[str], wanted: Mapping[str, str]) -> ShownGroup:
    by, value, rows = wanted["group"], group["value"], None
    if key in opened:
        query = {**wanted, "in_group": value, "limit": FIRST_ROWS, "hosts_limit": 0, "minutes": _MINUTES}
        rows = rest.get("/fleet", **query)["applications"]
    toggled = [one for one in opened if one != key] if key in opened else [*opened, key][-OPEN_GROUPS:]
    return ShownGroup(key, value, _heading(by, value), group["worst"], group["states"], rows, toggled or [""])


def _heading(by: str, value: str) -> str:
    """A group's value in words."""
    return BADGES["sla"][value].word if by == "state" and value in BADGES["sla"] else value or NO_VALUE.get(by, "")


def _shown(
    answer: Json, asked: Mapping[str, str], wanted: Mapping[str, str], applications: Sequence[Json], **values: object
) -> Mapping[str, object]:
    """``applications`` with hosts, counts, and what needs attention."""
    hosts = answer["hosts"]
    health = {host["name"]: host_health(host, now_s(), site().context.slot_s) for host in hosts}
    return {
        "fleet": answer,
        "asked": asked,
        "wanted": wanted,
        "orders": ORDERS,
        "group_names": GROUPS,
        "minutes": _MINUTES,
        "lines": _lines(applications),
        "attention": _attention(answer["applications"]),
        "health": health,
        "failing": [name for name, (badge, _) in health.items() if badge.colour == "violated"][:_MOST_URGENT],
        "failing_hosts": sum(answer["hosts_health"][health] for health in FAILING),
        "hosts_registered": sum(answer["hosts_health"].values()),
        "splits": {host["name"]: cpu_split(host["tick"]) for host in hosts if host["tick"]},
        **values,
    }


def _lines(applications: Iterable[Json]) -> dict[str, Spark]:
    """The last minutes of applications, drawn, by name."""
    return {row["name"]: spark(row["points_ms"], (row["sla"] or {}).get("response_time_ms")) for row in applications}


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
