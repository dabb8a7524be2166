"""The pages of what happened: decisions as a story, and events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlencode

from flask import Blueprint, Response, request, url_for

from manager.api.auth import VIEWER, allow
from manager.model.records import OutcomeKind, Severity
from webui.inside import Json, RequestRefused
from webui.site import FRAGMENT, Site, page

PERIODS: Mapping[str, tuple[str, int | None]] = {
    "15min": ("15 minutes", 900),
    "1h": ("hour", 3600),
    "6h": ("6 hours", 6 * 3600),
    "1d": ("day", 86_400),
    "7d": ("7 days", 7 * 86_400),
    "all": ("all that is kept", None),
}
"""Times back from now that a reader can choose: what they are called, and seconds."""
PAGE = 50
MAX_NAMES = 1000
"""So many names are offered; others can be typed."""
MAX_BLAMED = 3
"""Of so many applications it is told at once who was guilty."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a reader wants to see, from the query string. ``period`` is a key of PERIODS."""

    endpoint: str
    names: Mapping[str, str]
    period: str
    since: str | None
    until: str | None
    cursor: str | None

    def url(self, **changes: str | None) -> str:
        """This page with other choices, from its first part on unless a cursor is given; None takes a choice away."""
        kept = {**self.names, "last": self.period, "since": self.since, "until": self.until, **changes}
        given = urlencode({name: value for name, value in kept.items() if value})
        return f"{url_for(self.endpoint)}?{given}"

    def query(self, now_s: float) -> dict[str, object]:
        """The same for the interface. A time in the URL counts before the period."""
        length_s = PERIODS[self.period][1]
        since = self.since
        if since is None and self.until is None and length_s is not None:
            since = datetime.fromtimestamp(now_s - length_s, UTC).isoformat()
        return {**self.names, "since": since, "until": self.until, "cursor": self.cursor, "limit": PAGE}


def chosen(endpoint: str, filters: Sequence[str], default: str) -> Choice:
    """What the request asks for, by the names of ``filters``; ``default`` is the period where it names none."""
    given = {name: request.args.get(name, "").strip() for name in (*filters, "last", "since", "until", "cursor")}
    period = given["last"] if given["last"] in PERIODS else default
    names = {name: given[name] for name in filters if given[name]}
    return Choice(endpoint, names, period, given["since"] or None, given["until"] or None, given["cursor"] or None)


def add_why(web: Blueprint, site: Site) -> None:
    """The story of the decisions, and the events."""

    @web.get("/why")
    @allow(VIEWER)
    def why() -> Response:
        """The story of the decisions, newest first."""
        choice = chosen("web.why", ("application", "host", "vm", "outcome"), "1h")
        told, refused = _asked(site, "/decisions/story", choice)
        return page(
            "why.html",
            choice=choice,
            told=told,
            refused=refused,
            blamed=_blamed(told["items"]) if told and not choice.cursor else [],
            missed=_missed,
            periods=PERIODS,
            outcomes=[str(kind) for kind in OutcomeKind],
            known=_known(site),
        )

    @web.get("/why/guilty")
    @allow(VIEWER)
    def guilty() -> Response:
        """The part of an entry that says who is guilty of a missed SLA, with the evidence."""
        application, at = request.args.get("application", ""), request.args.get("at")
        evidence = site.api.get(f"/applications/{quote(application, safe='')}/evidence", at=at or None)
        return page("guilty.html", application=application, evidence=evidence)

    @web.get("/events")
    @allow(VIEWER)
    def events() -> Response:
        """What an operator may want to know, newest first."""
        choice = chosen("web.events", ("severity", "host", "vm"), "7d")
        told, refused = _asked(site, "/events", choice)
        return page(
            "events.html",
            choice=choice,
            told=told,
            refused=refused,
            periods=PERIODS,
            severities=[str(severity) for severity in Severity],
            known=_known(site),
        )


def _asked(site: Site, path: str, choice: Choice) -> tuple[Any, RequestRefused | None]:
    """The part of a list that was chosen, or why it was refused: a choice that cannot be, which the form shows."""
    try:
        return site.api.get(path, **choice.query(site.now_s())), None
    except RequestRefused as refused:
        if refused.status not in {400, 404, 422}:
            raise
        return None, refused


def _missed(entry: Json) -> bool:
    """Whether the application's SLA was missed when an entry of the story was decided."""
    return bool(entry["sla"] and entry["time_ms"] and entry["time_ms"] > entry["sla"]["response_time_ms"])


def _blamed(entries: Sequence[Json]) -> list[str]:
    """The applications of which the story tells that they missed their SLA, the latest first."""
    return list(dict.fromkeys(entry["application"] for entry in entries if _missed(entry)))[:MAX_BLAMED]


def _known(site: Site) -> Mapping[str, Sequence[str]]:
    """Names to choose from, for the form: nothing where only the list is fetched anew."""
    if FRAGMENT in request.headers:
        return {}
    vms = site.api.get("/vms", limit=MAX_NAMES)["items"]
    return {
        "application": sorted({vm["application"] for vm in vms if vm["application"] is not None}),
        "host": [host["name"] for host in site.api.get("/hosts", limit=MAX_NAMES)["items"]],
        "vm": [vm["name"] for vm in vms],
    }
