"""What sharing hosts saved, as a report to print, and as a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta
from math import nan

from flask import Response, request

from manager.api.auth import VIEWER, allow
from manager.control.savings import (
    ENERGY_WORDS,
    CostedUse,
    HostUse,
    Savings,
    model_of,
    saved_by,
    use_between,
)
from manager.model.costs import COST_RANGES, HostCosts
from manager.model.numbers import digits
from webui import rest
from webui.application_pages import moment_given
from webui.rest import RequestRefused
from webui.site import csv_file, now_s, page, web
from webui.words import label_of

_LENGTH = timedelta(days=30)
_POINTS = 1000
_PAGE_HOSTS = 50
"""Hosts in a report: the history of each is read."""
_COLUMNS = ("host", *(field.name for field in fields(Savings)))
_ASKED = ("since", "until", "search", "after", *COST_RANGES)
"""What the URL may ask for."""


@dataclass(frozen=True, slots=True)
class HostSavings:
    """What a host saved, by these costs."""

    name: str
    costs: HostCosts
    saved: Savings


@dataclass(frozen=True, slots=True)
class SavingsReport:
    """A period, and what each host of a part of their list and these together saved; ``fleet`` None: nothing measured.

    ``costs`` are those that were filled in, which count in place of each host's own. ``matching`` hosts have
    ``search`` in their names; ``after`` is where the part begins, ``next`` where the next does, None after the last.
    """

    since: datetime
    until: datetime
    costs: Mapping[str, float]
    hosts: tuple[HostSavings, ...]
    fleet: Savings | None
    search: str
    matching: int
    after: str
    next: str | None


@web.get("/savings")
@allow(VIEWER)
def savings() -> Response:
    """The report of a period: by default the last 30 days, with each host's own costs."""
    found = _report()
    until_day = (found.until + timedelta(days=1) - timedelta(microseconds=1)).date()
    labels = {name: label_of(f"costs.{name}") for name in COST_RANGES}
    return page(
        "savings.html",
        found=found,
        labels=labels,
        ranges=COST_RANGES,
        until_day=until_day,
        energies=ENERGY_WORDS,
        asked={name: value for name in _ASKED if (value := request.args.get(name))},
    )


@web.get("/savings.csv")
@allow(VIEWER)
def savings_csv() -> Response:
    """The same as a file, a line each host of the same part."""
    return csv_file("savings", _COLUMNS, ([host.name, *asdict(host.saved).values()] for host in _report().hosts))


def _report() -> SavingsReport:
    now = datetime.fromtimestamp(now_s(), UTC)
    until = moment_given("until") or now
    since = moment_given("since") or min(until, now) - _LENGTH
    if since >= until:
        raise RequestRefused(422, "since: it is not before until")
    filled_in = {name: _cost(name, bounds) for name, bounds in COST_RANGES.items() if request.args.get(name)}
    search, after = request.args.get("search", "").strip(), request.args.get("after", "")
    part = rest.get("/hosts", search=search or None, cursor=after or None, limit=_PAGE_HOSTS)
    matching = rest.get("/fleet/hosts", search=search or None, sort="name", limit=1)["matching"]
    costs = {host["name"]: HostCosts(**(host["costs"] | filled_in)) for host in part["items"]}
    uses = [CostedUse(_use(name, since, until), model_of(of_host)) for name, of_host in costs.items()]
    each = tuple(
        HostSavings(host.use.host, costs[host.use.host], saved)
        for host in uses
        if (saved := saved_by([host])) is not None
    )
    return SavingsReport(
        since, until, filled_in, each, saved_by(uses), search=search, matching=matching, after=after, next=part["next"]
    )


def _use(name: str, since: datetime, until: datetime) -> HostUse:
    path = rest.at("hosts", name, "history")
    return use_between(
        name,
        lambda begin, end: rest.get(path, since=begin.isoformat(), until=end.isoformat(), points=_POINTS),
        since,
        until,
    )


def _cost(name: str, bounds: tuple[float, float]) -> float:
    """A cost of the URL. Raises RequestRefused."""
    text = request.args[name]
    least, most = bounds
    try:
        value = float(text)
    except ValueError:
        value = nan
    if not least <= value <= most:
        raise RequestRefused(422, f"{name}: {text!r} is refused; use {digits(least)} to {digits(most)}")
    return value
