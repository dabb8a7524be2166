"""The pages of what happened: decisions and their effect, events, and the audit of who changed what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from itertools import groupby

from flask import Response, request, url_for

from manager.api.auth import OPERATOR, VIEWER, allow
from manager.model.fields import MANAGER
from manager.model.records import OutcomeKind, Severity
from webui import rest
from webui.filled import differences
from webui.rest import Json, RequestRefused
from webui.site import is_fragment, now_s, page, web
from webui.words import PERIODS

PAGE = 50
MAX_NAMES = 1000
"""So many names are offered; others can be typed."""
MAX_EXPLAINED = 3
"""Of so many applications the likely cause stands on top."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What a reader wants to see, from the query string. ``period`` is a key of PERIODS."""

    endpoint: str
    names: Mapping[str, str]
    period: str
    since: str | None
    until: str | None
    cursor: str | None

    @property
    def span(self) -> str:
        """The period in words."""
        words, length_s = PERIODS[self.period]
        return words if length_s is None else f"the last {words}"

    @property
    def when(self) -> str:
        """What stands after «no decisions»: nothing where all that is kept was asked for."""
        if self.since or self.until:
            return " in this time"
        return f" in {self.span}" if PERIODS[self.period][1] else ""

    def url(self, **changes: str | None) -> str:
        """This page with other choices, from its first part on unless a cursor is given; None takes a choice away."""
        choices: Json = {**self.names, "last": self.period, "since": self.since, "until": self.until, **changes}
        return url_for(self.endpoint, **choices)

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
    since, until = (moment(given[name]) or None for name in ("since", "until"))
    return Choice(endpoint, names, period, since, until, given["cursor"] or None)


def moment(text: str) -> str:
    """A time as a browser's field gives it, which is UTC, as the interface wants it; other text as it is."""
    if len(text) == len("2026-01-31T12:00"):
        return f"{text}:00Z"
    return f"{text}Z" if len(text) == len("2026-01-31T12:00:00") else text


@dataclass(frozen=True, slots=True)
class Moment:
    """What was decided on a host in one tick, or consecutive events of a kind, as the interface has them."""

    key: str
    entries: Sequence[Json]

    @property
    def first(self) -> Json:
        """What stands for all."""
        return self.entries[0]

    @property
    def names(self) -> Sequence[str]:
        """The applications."""
        return sorted({entry["application"] for entry in self.entries if entry["application"]})

    @property
    def violated(self) -> Json | None:
        """An entry that was decided while an SLA was violated."""
        return next((entry for entry in self.entries if entry["violated"]), None)

    @property
    def summary(self) -> str:
        """Such as «12 settings of 4 VMs»; of one VM what became of it."""
        if len(self.entries) == 1:
            return str(self.first["sentence"])
        vms = len([entry for entry in self.entries if entry["vm"]])
        host = " and of the host" * (vms < len(self.entries))
        return f"{sum(len(entry['changes']) for entry in self.entries)} settings of {vms} VM{'s' * (vms != 1)}{host}"

    @property
    def outcomes(self) -> Sequence[str]:
        """What came of it, the worst first."""
        found = {entry["outcome"] for entry in self.entries}
        return [outcome for outcome in _WORST_FIRST if outcome in found]


def moments(entries: Sequence[Json]) -> list[Moment]:
    """The story by tick and host, newest first."""
    groups = groupby(entries, lambda entry: (entry["at"], entry["host"], entry["policy"]))
    return [Moment(f"{''.join(filter(str.isalnum, at))}-{host}", list(group)) for (at, host, _), group in groups]


def alike(events: Sequence[Json]) -> list[Moment]:
    """Consecutive events of the same kind, severity and host as one."""
    groups = groupby(events, lambda event: (event["kind"], event["severity"], event["host"]))
    return [Moment(found[0]["id"], found) for _, group in groups for found in [list(group)]]


_WORST_FIRST = ("failed", "ignored", "external", "vanished", "observed", "restored", "applied")


@web.get("/decisions")
@allow(VIEWER)
def decisions() -> Response:
    """The decisions and their effect by tick, newest first."""
    choice = chosen("web.decisions", ("application", "host", "vm", "outcome"), "1h")
    answer, refused = _asked("/decisions/story", choice)
    rows = moments(answer["items"])
    violated = [] if choice.cursor else [row.violated["application"] for row in rows if row.violated]
    return page(
        "decisions.html",
        choice=choice,
        found=answer,
        rows=rows,
        refused=refused,
        violated=list(dict.fromkeys(violated))[:MAX_EXPLAINED],
        periods=PERIODS,
        outcomes=[str(kind) for kind in OutcomeKind],
        known=_names(),
    )


@web.get("/decisions/cause")
@allow(VIEWER)
def cause() -> Response:
    """The likely cause of a violation, with the evidence."""
    application, at = request.args.get("application", ""), request.args.get("at")
    evidence = rest.get(rest.at("applications", application, "evidence"), at=at or None)
    return page("cause.html", application=application, evidence=evidence)


@web.get("/events")
@allow(VIEWER)
def events() -> Response:
    """What an operator may want to know, newest first."""
    choice = chosen("web.events", ("severity", "host", "vm"), "7d")
    answer, refused = _asked("/events", choice)
    return page(
        "events.html",
        choice=choice,
        found=answer,
        rows=alike(answer["items"]),
        manager=MANAGER,
        refused=refused,
        periods=PERIODS,
        severities=[str(severity) for severity in Severity],
        known=_names(),
    )


@web.get("/audit")
@allow(OPERATOR)
def audit() -> Response:
    """Who changed what, newest first."""
    choice = chosen("web.audit", ("actor", "object_kind", "object"), "all")
    answer, refused = _asked("/audit", choice)
    rows = [(entry, differences(entry["before"] or {}, entry["after"] or {})) for entry in answer["items"]]
    status = HTTPStatus.UNPROCESSABLE_ENTITY if refused else HTTPStatus.OK
    return page("audit.html", status, choice=choice, found=answer, rows=rows, refused=refused)


def _asked(path: str, choice: Choice) -> tuple[Json, RequestRefused | None]:
    """The part of a list that was chosen; none of it where it was refused, for a choice that cannot be."""
    try:
        return rest.get(path, **choice.query(now_s())), None
    except RequestRefused as refused:
        if refused.status not in {400, 404, 422}:
            raise
        return {"items": [], "next": None}, refused


def _names() -> Mapping[str, Sequence[str]]:
    """Names to choose from, for the form: nothing where only the list is fetched anew."""
    if is_fragment():
        return {}
    vms = rest.get("/vms", limit=MAX_NAMES)["items"]
    return {
        "application": sorted({vm["application"] for vm in vms if vm["application"] is not None}),
        "host": [host["name"] for host in rest.get("/hosts", limit=MAX_NAMES)["items"]],
        "vm": [vm["name"] for vm in vms],
    }
