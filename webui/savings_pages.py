"""What sharing hosts saved, as a report to print, and as a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from math import nan

from flask import Response, request

from manager.api.auth import VIEWER, allow
from manager.control.savings import (
    COST_RANGES,
    STUDY_COSTS,
    CostModel,
    HostUse,
    Savings,
    model_of,
    saved_by,
    use_of_history,
)
from webui import rest
from webui.application_pages import moment_given
from webui.rest import RequestRefused
from webui.site import csv_file, now_s, page, web

_LENGTH = timedelta(days=30)
_POINTS = 1000
_MOST_HOSTS = 100
_LABELS: Mapping[str, str] = {
    "server_usd": "Price of a server ($)",
    "years": "It serves (years)",
    "usd_per_kwh": "Electricity ($ per kWh)",
    "peak_watts": "Power when full (W)",
    "idle_percent": "Of that when idle (%)",
}
_COLUMNS = ("host", *(field.name for field in fields(Savings)))


@dataclass(frozen=True, slots=True)
class SavingsReport:
    """A period with costs as they were filled in, and what each host and all together saved; ``fleet`` None: nothing.

    ``left_out`` hosts are not in it.
    """

    since: datetime
    until: datetime
    costs: Mapping[str, float]
    model: CostModel
    hosts: tuple[tuple[str, Savings], ...]
    fleet: Savings | None
    left_out: int


@web.get("/savings")
@allow(VIEWER)
def savings() -> Response:
    """The report of a period: by default the last 30 days, with the constants of the study."""
    found = _report()
    until_day = (found.until + timedelta(days=1) - timedelta(microseconds=1)).date()
    return page("savings.html", found=found, labels=_LABELS, ranges=COST_RANGES, until_day=until_day)


@web.get("/savings.csv")
@allow(VIEWER)
def savings_csv() -> Response:
    """The same as a file, a line each host."""
    return csv_file("savings", _COLUMNS, ([name, *asdict(saved).values()] for name, saved in _report().hosts))


def _report() -> SavingsReport:
    until = moment_given("until") or datetime.fromtimestamp(now_s(), UTC)
    since = moment_given("since") or until - _LENGTH
    if since >= until:
        raise RequestRefused(422, "since: it is not before until")
    costs = {name: _cost(name, bounds) for name, bounds in COST_RANGES.items()}
    model = model_of(costs)
    names = [host["name"] for host in rest.every("/hosts")]
    uses = [_use(name, since, until) for name in names[:_MOST_HOSTS]]
    return SavingsReport(
        since, until, costs, model, _each(uses, model), saved_by(uses, model), max(len(names) - _MOST_HOSTS, 0)
    )


def _use(name: str, since: datetime, until: datetime) -> HostUse:
    path = rest.at("hosts", name, "history")
    return use_of_history(name, rest.get(path, since=since.isoformat(), until=until.isoformat(), points=_POINTS))


def _each(uses: Sequence[HostUse], model: CostModel) -> tuple[tuple[str, Savings], ...]:
    return tuple((use.host, saved) for use in uses if (saved := saved_by([use], model)) is not None)


def _cost(name: str, bounds: tuple[float, float]) -> float:
    """A cost of the URL, or the study's. Raises RequestRefused."""
    text = request.args.get(name, "")
    if not text:
        return STUDY_COSTS[name]
    least, most = bounds
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not least <= value <= most:
        raise RequestRefused(422, f"{name}: {text!r} is refused; use {least:g} to {most:g}")
    return value
