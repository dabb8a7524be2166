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
from webui.inside import Json, Refused
from webui.site import Site, page

_DEFAULT = timedelta(days=30)
_POINTS = 720  # an hour each of the default period; violations less than a step apart are told as one
_MOST_LISTED = 50
_MOST_EXPLAINED = 8
_CHART_WIDTH, _CHART_HEIGHT = 720.0, 160.0


@dataclass(frozen=True, slots=True)
class Totals:
    """A period in numbers. ``requests`` None: nobody counted them."""

    judged: int
    missed: int
    count: int
    requests: float | None

    @property
    def kept(self) -> float | None:
        """The share of judged intervals that kept the SLA; None where none was judged."""
        return 1 - self.missed / self.judged if self.judged else None


def add_report(web: Blueprint, site: Site) -> None:
    """The report."""

    @web.get("/applications/<name>/report")
    @allow(VIEWER)
    def report(name: str) -> Response:
        """A period, from ``since`` until before ``until``: times, or days in UTC; the last 30 days by default."""
        path = f"/applications/{quote(name, safe='')}"
        now = datetime.fromtimestamp(site.now_s(), UTC)
        until = _moment("until") or now
        since = _moment("since") or until - _DEFAULT
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
            totals=totals(found["steps"]),
            chart=_chart(found),
            violations=sorted(longest[:_MOST_LISTED], key=lambda one: str(one["start"])),
            violations_total=len(longest),
            lengths={one["start"]: _length_s(one) for one in longest[:_MOST_LISTED]},
            guilty={one["start"]: site.api.get(f"{path}/evidence", at=one["end"]) for one in longest[:_MOST_EXPLAINED]},
        )


def totals(steps: Sequence[Json]) -> Totals:
    """A period's steps together."""
    known = [step["requests"] for step in steps if step["requests"] is not None]
    return Totals(
        sum(step["judged"] for step in steps),
        sum(step["missed"] for step in steps),
        sum(step["count"] for step in steps),
        sum(known) if known else None,
    )


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
        raise Refused(422, f"{name}: {text!r} is no time; use a day such as 2026-01-31 or 2026-01-31T14:00:00Z")
    return moment


def _chart(found: Json) -> Spark:
    sla = found["sla"]
    values = [step["time_ms"] if sla else step["p95_ms"] for step in found["steps"]]
    return spark(values, sla["response_time_ms"] if sla else None, _CHART_WIDTH, _CHART_HEIGHT)


def _length_s(violation: Any) -> float:
    start, end = (datetime.fromisoformat(violation[name]) for name in ("start", "end"))
    return (end - start).total_seconds()
