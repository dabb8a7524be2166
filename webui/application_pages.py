"""The page of one application, its files, and its SLA report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from operator import itemgetter
from typing import Any

from flask import Response, request

from manager.api.auth import VIEWER, allow
from manager.api.history_routes import StepOut
from manager.model.cpus import parse_cpus
from manager.model.interference import LOSS_BOUNDS
from manager.model.numbers import milliseconds
from webui import rest
from webui.drawing import spark
from webui.rest import Json, RequestRefused
from webui.site import csv_file, now_s, page, site, web
from webui.words import PERIODS

BUDGETS: Mapping[int, str] = {3600: "last hour", 86_400: "last day", 30 * 86_400: "last 30 days"}
"""What the lengths of error budgets are called, in seconds."""

_MOST_POINTS = 2000
_TIMES = tuple(StepOut.model_fields)
_SHOWN_PERCENTILES = (50, 95, 99)
_OF_VMS = ("start", "tier", "vm", "host")
_OVER_TIME = ("cpu_share", "run_delay_share", "weight", "mode")
_YEARS = (1970, 9998)
"""Of the times that the REST interface takes."""
_LONGEST = timedelta(days=30)  # of a report's default period
_POINTS = 720  # an hour each of 30 days; violations less than a step apart are shown as one
_MOST_LISTED = 50
_MOST_EXPLAINED = 8
_MOST_DISKS = 3
_CHART_WIDTH, _CHART_HEIGHT = 720.0, 160.0


@dataclass(frozen=True, slots=True)
class Totals:
    """A period in numbers, ``intervals`` of them. ``requests`` None: nobody counted them."""

    intervals: int
    judged: int
    violated: int
    count: int
    requests: float | None

    @property
    def attainment(self) -> float | None:
        """The share of judged intervals in which the SLA held; None where none was judged."""
        return 1 - self.violated / self.judged if self.judged else None

    @property
    def no_data(self) -> float:
        """The share of intervals that could not be judged."""
        return 1 - self.judged / self.intervals


@web.get("/applications/<name>")
@allow(VIEWER)
def application(name: str) -> Response:
    """SLA, steps of the policy, charts, budget, evidence, interference tables, sources and VMs."""
    path = rest.at("applications", name)
    answer = rest.get(path)
    vms = {vm["name"]: vm for vm in rest.every("/vms", application=name)}
    hosts = {vm["status_host"] for vm in vms.values() if vm["status"]}
    window, judged = answer["window"], answer["measured_percentile"]
    others = [f"p{percentile}" for percentile in _SHOWN_PERCENTILES if percentile != judged]
    return page(
        "application.html",
        pcpus={host: _pcpus(rest.get(rest.at("hosts", host))["capabilities"]) for host in hosts},
        application=answer,
        others=[(other, window and window[f"{other}_ms"]) for other in others],
        budget=rest.get(f"{path}/budget"),
        evidence=rest.get(f"{path}/evidence") if answer["sla"] else None,
        interference=rest.get(f"{path}/interference"),
        bounds=LOSS_BOUNDS[::-1],
        sources=rest.get(f"{path}/sources", limit=1000)["items"],
        vms=vms,
        disks={vm: _disks(each["resources"]) for vm, each in vms.items()},
        ranges=[(name, words) for name, (words, length_s) in PERIODS.items() if length_s],
        periods=BUDGETS,
        silent_s=max(0.0, now_s() - _time(window["end"]).timestamp()) if window else None,
        stale_s=site().context.stale_s,
        ages={each["host"]: now_s() - _time(each["at"]).timestamp() for each in answer["explanations"]},
    )


def _disks(resources: Json | None) -> str:
    """The disks of a VM with the mean time of their requests, the slowest first; empty: nothing is reported of them."""
    timed = [disk for disk in (resources or {}).get("virtual_disks", ()) if disk.get("latency_ms") is not None]
    timed.sort(key=itemgetter("latency_ms"), reverse=True)
    shown = [f"{disk['disk']} {milliseconds(disk['latency_ms'])}" for disk in timed[:_MOST_DISKS]]
    more = [f"{len(timed) - _MOST_DISKS} more"] if len(timed) > _MOST_DISKS else []
    return ", ".join(shown + more)


@web.get("/applications/<name>/times.csv")
@allow(VIEWER)
def times_csv(name: str) -> Response:
    """Response times and rate of a range of time, a line each step."""
    history = rest.get(rest.at("applications", name, "history"), **_range())
    return csv_file(f"{name}-times", _TIMES, ([step[column] for column in _TIMES] for step in history["steps"]))


@web.get("/applications/<name>/tiers.csv")
@allow(VIEWER)
def tiers_csv(name: str) -> Response:
    """CPU use and weights of a range of time, a line each step and VM."""
    history = rest.get(rest.at("applications", name, "tiers-history"), **_range())
    return csv_file(f"{name}-tiers", (*_OF_VMS, *_OVER_TIME), _tier_rows(history))


@web.get("/applications/<name>/report")
@allow(VIEWER)
def report(name: str) -> Response:
    """The SLA report of a period, to be printed and handed to the owner of the service.

    The period is from ``since`` until before ``until``: times, or days in UTC. By default it is the last 30 days, or
    begins when response times did.
    """
    path = rest.at("applications", name)
    now = datetime.fromtimestamp(now_s(), UTC)
    until = moment_given("until") or now
    end = min(until, now)
    budget = rest.get(f"{path}/budget")
    since = moment_given("since") or _begin(budget["first_at"], end)
    history = rest.get(f"{path}/history", since=since.isoformat(), until=until.isoformat(), points=_POINTS)
    sla, steps = history["sla"], history["steps"]
    values = [step["percentile_ms"] if sla else step["p95_ms"] for step in steps]
    lengths = {violation["start"]: _length_s(violation) for violation in history["violations"]}
    longest = sorted(history["violations"], key=lambda violation: -lengths[violation["start"]])
    length_s = (end - _time(history["since"])).total_seconds()
    return page(
        "report.html",
        application=rest.get(path),
        found=history,
        target=budget["attainment_target"],
        since=since,
        until=end,
        until_day=(until + timedelta(days=1) - timedelta(microseconds=1)).date(),
        made_at=now,
        young=since > end - _LONGEST and not request.args.get("since"),
        totals=totals(steps, length_s, site().context.slot_s),
        chart=spark(values, sla["response_time_ms"] if sla else None, _CHART_WIDTH, _CHART_HEIGHT),
        violations=sorted(longest[:_MOST_LISTED], key=itemgetter("start")),
        violations_total=len(longest),
        lengths=lengths,
        causes={
            violation["start"]: rest.get(f"{path}/evidence", at=violation["end"])
            for violation in longest[:_MOST_EXPLAINED]
        },
    )


def _pcpus(capabilities: Json | None) -> int:
    """How many pCPUs a host has; 0: not known."""
    return len(parse_cpus(capabilities["online_cpus"])) if capabilities else 0


def _range() -> dict[str, object]:
    """The range that the URL names; the interface has its own default."""
    return {"since": request.args.get("since"), "until": request.args.get("until"), "points": _MOST_POINTS}


def _tier_rows(history: Json) -> Iterator[Sequence[Any]]:
    for place, start in enumerate(history["starts"]):
        for tier in history["tiers"]:
            for vm in tier["vms"]:
                values = [vm[name][place] for name in _OVER_TIME]
                if any(value is not None for value in values):
                    yield [start, tier["tier"], vm["vm"], vm["host"], *values]


def totals(steps: Sequence[Json], length_s: float, interval_s: float) -> Totals:
    """The steps of a period of ``length_s`` together."""
    known = [step["requests"] for step in steps if step["requests"] is not None]
    judged = sum(step["judged"] for step in steps)
    return Totals(
        max(round(length_s / interval_s), judged, 1),
        judged,
        sum(step["violated"] for step in steps),
        sum(step["count"] for step in steps),
        sum(known) if known else None,
    )


def _begin(first_at: str | None, until: datetime) -> datetime:
    """Where the default period begins."""
    earliest = until - _LONGEST
    begin = _time(first_at) if first_at else earliest
    return begin if earliest < begin < until else earliest


def moment_given(name: str) -> datetime | None:
    """A time of the URL, in UTC; a day begins at midnight, UTC; None: it has none. Raises RequestRefused."""
    text = request.args.get(name, "")
    if not text:
        return None
    try:
        if len(text) == len("2026-01-31"):
            moment = datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
        else:
            moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None or not _YEARS[0] <= moment.year <= _YEARS[1]:
        raise RequestRefused(422, f"{name}: {text!r} is no time; use a day such as 2026-01-31 or 2026-01-31T14:00:00Z")
    return moment.astimezone(UTC)


def _length_s(violation: Any) -> float:
    return (_time(violation["end"]) - _time(violation["start"])).total_seconds()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
