"""The SLA report of an application for a period, to be printed and handed to the owner of the service."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, request

from manager.api.auth import VIEWER, allow
from webui.drawing import Spark, spark
from webui.inside import Json, RequestRefused
from webui.site import Site, page

_LONGEST = timedelta(days=30)  # of the default period
_POINTS = 720  # an hour each of 30 days; violations less than a step apart are shown as one
_MOST_LISTED = 50
_MOST_EXPLAINED = 8
_CHART_WIDTH, _CHART_HEIGHT = 720.0, 160.0


@dataclass(frozen=True, slots=True)
class Totals:
    """A period in numbers, ``intervals`` of them. ``requests`` None: nobody counted them."""

    intervals: int
    judged: int
    missed: int
    count: int
    requests: float | None

    @property
    def attainment(self) -> float | None:
        """The share of judged intervals in which the SLA held; None where none was judged."""
        return 1 - self.missed / self.judged if self.judged else None

    @property
    def no_data(self) -> float:
        """The share of intervals that could not be judged."""
        return 1 - self.judged / self.intervals


def add_report(web: Blueprint, site: Site) -> None:
    """The report."""

    @web.get("/applications/<name>/report")
    @allow(VIEWER)
    def report(name: str) -> Response:
        """A period, from ``since`` until before ``until``: times, or days in UTC.

        By default it is the last 30 days, or begins when response times did.
        """
        path = f"/applications/{quote(name, safe='')}"
        now = datetime.fromtimestamp(site.now_s(), UTC)
        until = _moment("until") or now
        since = _moment("since") or _begin(site.api.get(f"{path}/budget")["first_at"], until)
        found = site.api.get(f"{path}/history", since=since.isoformat(), until=until.isoformat(), points=_POINTS)
        longest = sorted(found["violations"], key=_length_s, reverse=True)
        return page(
            "report.html",
            application=site.api.get(path),
            found=found,
            since=since,
            until=min(until, now),
            until_day=(until + timedelta(days=1) - timedelta(microseconds=1)).date(),
            made_at=now,
            young=since > until - _LONGEST and not request.args.get("since"),
            totals=totals(found["steps"], (min(until, now) - _time(found["since"])).total_seconds(), site.interval_s),
            chart=_chart(found),
            violations=sorted(longest[:_MOST_LISTED], key=lambda one: str(one["start"])),
            violations_total=len(longest),
            lengths={one["start"]: _length_s(one) for one in longest[:_MOST_LISTED]},
            causes={one["start"]: site.api.get(f"{path}/evidence", at=one["end"]) for one in longest[:_MOST_EXPLAINED]},
        )


def totals(steps: Sequence[Json], length_s: float, interval_s: float) -> Totals:
    """The steps of a period of ``length_s`` together."""
    known = [step["requests"] for step in steps if step["requests"] is not None]
    judged = sum(step["judged"] for step in steps)
    return Totals(
        max(round(length_s / interval_s), judged, 1),
        judged,
        sum(step["missed"] for step in steps),
        sum(step["count"] for step in steps),
        sum(known) if known else None,
    )


def _begin(first_at: str | None, until: datetime) -> datetime:
    """Where the default period begins."""
    earliest = until - _LONGEST
    begin = _time(first_at) if first_at else earliest
    return begin if earliest < begin < until else earliest


def _moment(name: str) -> datetime | None:
    """A time of the URL; a day begins at midnight, UTC. Raises Refused."""
    text = request.args.get(name, "")
    if not text:
        return None
    try:
        if len(text) == len("2026-01-31"):
            return datetime.combine(date.fromisoformat(text), datetime.min.time(), UTC)
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise RequestRefused(422, f"{name}: {text!r} is no time; use a day such as 2026-01-31 or 2026-01-31T14:00:00Z")
    return moment


def _chart(found: Json) -> Spark:
    sla = found["sla"]
    values = [step["time_ms"] if sla else step["p95_ms"] for step in found["steps"]]
    return spark(values, sla["response_time_ms"] if sla else None, _CHART_WIDTH, _CHART_HEIGHT)


def _length_s(violation: Any) -> float:
    return (_time(violation["end"]) - _time(violation["start"])).total_seconds()


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text)
