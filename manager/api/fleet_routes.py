"""The fleet at a glance: all applications with their SLA, and all hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field
from sqlalchemy import select

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.control.budget import HOUR_S
from manager.control.error_budget import PERIOD_S, WINDOWS_S, Judged, burning
from manager.control.sla import sla_state, watched_percentile
from manager.model.fields import Count, Name, Schema, Text, timestamp
from manager.model.registration import Mode, Sla
from manager.model.window import Burn, SlaState, Window
from manager.protocol.report import TickStatus
from manager.store.error_budgets import Rolled
from manager.store.models import ApplicationRow, HostRow
from manager.store.recent_percentiles import RecentPercentiles, RecentSlot, serving_hosts
from manager.store.windows import latest_windows

_STEPS = 60
_UNROLLED = timedelta(minutes=10)
"""Slots of this period may not be rolled up yet."""
_WORST_FIRST = (SlaState.VIOLATED, SlaState.AT_RISK, SlaState.NO_DATA, SlaState.MET)


class FleetQuery(Schema):
    """Filter and order of applications."""

    state: SlaState | None = None
    host: Name | None = Field(default=None, description="one of its VMs runs there")
    search: Annotated[str, Field(max_length=63)] | None = Field(default=None, description="part of the name")
    sort: Literal["worst", "name", "used", "rate"] = Field(
        default="worst",
        description="worst: by state, then as used; used: measured time / target, highest first; rate: highest first",
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    offset: Annotated[int, Field(ge=0, le=1_000_000, description="how many to skip")] = 0
    minutes: Annotated[int, Field(ge=1, le=60, description="how far back `points_ms` goes")] = 10


class FleetApplication(Schema):
    """An application at a glance."""

    name: Name
    sla: Sla | None
    sla_state: SlaState
    measured_ms: float | None = Field(description="the SLA's percentile in the latest window; null: unknown")
    measured_at: AwareDatetime | None = Field(description="end of the latest window; null: no response times yet")
    rate_rps: float | None = Field(description="null: unknown")
    attainment: float | None = Field(
        description="share of intervals of the last 30 days in which the SLA held; null: no data"
    )
    budget_remaining: float | None = Field(
        description="remaining share of the error budget of 30 days, below 0: overspent; null: no data"
    )
    burn_rate: float | None = Field(
        description="of the last hour: share of violated intervals divided by 1 - `attainment_target`; null: no data"
    )
    burning: Burn = Field(description="urgency of the burn rate over several windows: fast, slow or none")
    hosts: list[Name] = Field(description="where its VMs run")
    points_ms: list[float | None] = Field(
        description="the percentile in the last minutes, oldest first: the slowest slot of each step; null: no data"
    )


class FleetHost(Schema):
    """A host at a glance."""

    name: Name
    mode: Mode
    policy: Name
    last_seen_at: AwareDatetime | None
    silent: bool = Field(description="it has not reported for `silent_intervals`")
    agent_version: Text | None
    tick: TickStatus | None


class FleetOut(Schema):
    """The requested applications, their number by state, and all hosts."""

    applications: list[FleetApplication]
    matching: Count = Field(description="applications that match the filter")
    states: dict[SlaState, Count] = Field(description="applications that match the filter except `state`, by state")
    attainment_target: float = Field(description="the setting: 1 minus it is the error budget")
    registered: Count = Field(description="all applications")
    step_s: float = Field(description="length of a step of `points_ms`, in seconds")
    until: AwareDatetime = Field(description="end of the last step")
    hosts: list[FleetHost]


_HOST_COLUMNS = [getattr(HostRow, name) for name in FleetHost.model_fields]


@dataclass(frozen=True, slots=True)
class _Glance:
    """An application with its latest window; ``measured_ms`` is the percentile of its SLA."""

    row: ApplicationRow
    sla: Sla | None
    state: SlaState
    window: Window | None
    hosts: Sequence[str]
    measured_ms: float | None

    @property
    def rate_rps(self) -> float | None:
        """Requests per second."""
        return self.window.rate_rps if self.window else None

    def place(self, sort: str) -> tuple[float | str, ...]:
        """Its sort key; unknown values are last."""
        used = self.measured_ms / self.sla.response_time_ms if self.measured_ms is not None and self.sla else -1.0
        rate = -1.0 if self.rate_rps is None else self.rate_rps
        by = {"worst": (_WORST_FIRST.index(self.state), -used), "name": (), "used": (-used,), "rate": (-rate,)}
        return (*by[sort], self.row.name)


def fleet_api(context: ManagerContext) -> RouteGroup:
    """The route of the fleet."""
    api = RouteGroup("fleet", "All applications and hosts at a glance.")
    recent = RecentPercentiles()

    def look(row: ApplicationRow, window: Window | None, hosts: Sequence[str]) -> _Glance:
        sla = row.sla
        state = sla_state(window, sla, context.clock(), context.stale_s, context.min_samples)
        measured_ms = window.percentile_ms(watched_percentile(sla)) if window else None
        return _Glance(row, sla, state, window, hosts, measured_ms)

    @api.at("GET /fleet", VIEWER)
    def get_fleet(query: FleetQuery) -> FleetOut:
        """All applications with their SLA, and all hosts."""
        now = context.now()
        with context.database.reading() as session:
            rows = session.scalars(select(ApplicationRow).order_by(ApplicationRow.name)).all()
            latest = latest_windows(session, rows, context.slot_length, context.latest)
            hosts = serving_hosts(session)
            glances = [look(row, latest.get(row.name), hosts.get(row.id, ())) for row in rows]
            asked = [glance for glance in glances if _is_asked(glance, query)]
            matching = [glance for glance in asked if query.state in {None, glance.state}]
            matching.sort(key=lambda glance: glance.place(query.sort))
            answered = matching[query.offset : query.offset + query.limit]
            since = now - timedelta(minutes=query.minutes)
            percentiles = {glance.row.id: watched_percentile(glance.sla) for glance in answered}
            series = recent.of(session, percentiles, min(since, now - _UNROLLED), now)
            rolled = context.budgets.of(session, percentiles, now)
            host_rows = session.execute(select(*_HOST_COLUMNS).order_by(HostRow.name)).all()
        step = (now - since) / _STEPS
        applications = []
        for application in answered:
            slots = series[application.row.id]
            windows = _windows(context, application, rolled[application.row.id], slots)
            applications.append(_application(context, application, _points(slots, since, step), windows))
        return FleetOut(
            applications=applications,
            matching=len(matching),
            states=dict.fromkeys(SlaState, 0) | Counter(glance.state for glance in asked),
            attainment_target=context.attainment_target,
            registered=len(rows),
            step_s=step.total_seconds(),
            until=now,
            hosts=[FleetHost.model_validate(row, from_attributes=True) for row in host_rows],
        )

    return api


def _is_asked(glance: _Glance, query: FleetQuery) -> bool:
    named = query.search is None or query.search.lower() in glance.row.name.lower()
    return named and query.host in {None, *glance.hosts}


def _points(slots: Mapping[datetime, RecentSlot], since: datetime, step: timedelta) -> list[float | None]:
    """The slowest slot of each step: percentiles cannot be averaged, and a short violation must be seen."""
    points: list[float | None] = [None] * _STEPS
    for start, slot in slots.items():
        place = min(int((start - since) / step), _STEPS - 1)
        if slot.value_ms is not None and start >= since:
            points[place] = max(points[place] or 0.0, slot.value_ms)
    return points


def _windows(
    context: ManagerContext, glance: _Glance, rolled: Rolled, slots: Mapping[datetime, RecentSlot]
) -> dict[float, Judged]:
    """The intervals of each window: those rolled up, and the slots since then."""
    windows, now, sla = dict(rolled.windows), context.now(), glance.sla
    for start, slot in slots.items():
        if sla and slot.value_ms is not None and slot.has_samples(context.min_samples):
            judged = Judged(1, int(slot.value_ms > sla.response_time_ms))
            for length_s in WINDOWS_S if rolled.until is None or start >= rolled.until else ():
                if (now - start).total_seconds() <= length_s:
                    windows[length_s] += judged
    return windows


def _application(
    context: ManagerContext, glance: _Glance, points: list[float | None], windows: Mapping[float, Judged]
) -> FleetApplication:
    target = context.attainment_target
    return FleetApplication(
        name=glance.row.name,
        sla=glance.sla,
        sla_state=glance.state,
        measured_ms=glance.measured_ms,
        measured_at=timestamp(glance.window.end_s) if glance.window else None,
        rate_rps=glance.rate_rps,
        attainment=windows[PERIOD_S].attainment,
        budget_remaining=windows[PERIOD_S].budget_remaining(target),
        burn_rate=windows[HOUR_S].burn_rate(target),
        burning=burning(windows, target),
        hosts=list(glance.hosts),
        points_ms=points,
    )
