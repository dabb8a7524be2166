"""The fleet at a glance: every application against its SLA, every host, in one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from pydantic import Field
from sqlalchemy import select

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.schemas.fleet_shapes import FleetApplication, FleetHost, FleetOut
from manager.control.budget import HOUR_S
from manager.control.error_budget import PERIOD_S, WINDOWS_S, Judged, burning
from manager.control.sla import sla_state, watched_percentile
from manager.model.fields import Name, Schema, timestamp
from manager.model.registration import Mode
from manager.model.window import SlaState, Window
from manager.protocol.report import TickStatus
from manager.store.applications import sla_of
from manager.store.error_budgets import Rolled
from manager.store.models import ApplicationRow, HostRow
from manager.store.recent_percentiles import RecentPercentiles, RecentSlot, serving_hosts
from manager.store.windows import latest_windows

_STEPS = 60
_UNROLLED = timedelta(minutes=10)
"""Slots of this time may not be rolled up yet."""
_WORST_FIRST = (SlaState.MISSED, SlaState.AT_RISK, SlaState.NO_DATA, SlaState.MET)


class FleetQuery(Schema):
    """Which applications, in which order."""

    state: SlaState | None = None
    host: Name | None = Field(default=None, description="a VM of theirs runs there")
    search: Annotated[str, Field(max_length=63)] | None = Field(default=None, description="part of the name")
    sort: Literal["worst", "name", "used", "rate"] = Field(
        default="worst",
        description="worst: by state, then as used; used: measured time by target, highest first; rate: highest first",
    )
    limit: Annotated[int, Field(ge=1, le=1000)] = 100
    offset: Annotated[int, Field(ge=0, le=1_000_000, description="how many to pass over")] = 0
    minutes: Annotated[int, Field(ge=1, le=60, description="how far back `points_ms` goes")] = 10


@dataclass(frozen=True, slots=True)
class _Glance:
    """An application with its latest window."""

    row: ApplicationRow
    state: SlaState
    window: Window | None
    hosts: Sequence[str]

    @property
    def measured_ms(self) -> float | None:
        """The percentile that the SLA is about."""
        return self.window.percentile_ms(watched_percentile(sla_of(self.row))) if self.window else None

    @property
    def used(self) -> float:
        """The measured time by the SLA's target; below 0 where either is unknown."""
        measured_ms, target_ms = self.measured_ms, self.row.sla_response_time_ms
        return -1.0 if measured_ms is None or target_ms is None else measured_ms / target_ms

    @property
    def rate_rps(self) -> float | None:
        """Requests a second."""
        return self.window.rate_rps if self.window else None


_ORDERS: Mapping[str, Callable[[_Glance], tuple[float, ...]]] = {
    "worst": lambda one: (_WORST_FIRST.index(one.state), -one.used),
    "name": lambda _one: (),
    "used": lambda one: (-one.used,),
    "rate": lambda one: (-1.0 if one.rate_rps is None else -one.rate_rps,),
}


def fleet_api(context: ManagerContext) -> APIBlueprint:
    """The route of the fleet."""
    api = blueprint("fleet", "All applications and hosts at a glance.")
    recent = RecentPercentiles()

    @api.get("/fleet", responses=answers((200, FleetOut)))
    @endpoint(VIEWER)
    def get_fleet(query: FleetQuery) -> Response:
        """Every application against its SLA, and every host."""
        now = context.now()
        with context.database.reading() as session:
            rows = session.scalars(select(ApplicationRow).order_by(ApplicationRow.name)).all()
            windows = latest_windows(session, rows, context.slot_length, context.latest)
            hosts = serving_hosts(session)
            known = [_glance(context, row, windows.get(row.name), hosts.get(row.id, ())) for row in rows]
            asked = [one for one in known if _is_asked(one, query)]
            found = [one for one in asked if query.state in {None, one.state}]
            found.sort(key=lambda one: (*_ORDERS[query.sort](one), one.row.name))
            shown = found[query.offset : query.offset + query.limit]
            since = now - timedelta(minutes=query.minutes)
            percentiles = {one.row.id: watched_percentile(sla_of(one.row)) for one in shown}
            series = recent.of(session, percentiles, min(since, now - _UNROLLED), now)
            rolled = context.budgets.of(session, percentiles, now)
            host_rows = session.execute(select(*_HOST_COLUMNS).order_by(HostRow.name)).all()
        step = (now - since) / _STEPS
        return answer(
            FleetOut(
                applications=[
                    _application(
                        context, one, _points(slots, since, step), _windows(context, one, rolled[one.row.id], slots)
                    )
                    for one in shown
                    for slots in [series[one.row.id]]
                ],
                matching=len(found),
                states=dict.fromkeys(SlaState, 0) | Counter(one.state for one in asked),
                attainment_target=context.attainment_target,
                registered=len(rows),
                step_s=step.total_seconds(),
                until=now,
                hosts=[_host(*row) for row in host_rows],
            )
        )

    return api


_HOST_COLUMNS = (
    HostRow.name,
    HostRow.mode,
    HostRow.policy,
    HostRow.last_seen_at,
    HostRow.silent,
    HostRow.agent_version,
    HostRow.tick,
)


def _glance(context: ManagerContext, row: ApplicationRow, window: Window | None, hosts: Sequence[str]) -> _Glance:
    state = sla_state(window, sla_of(row), context.clock(), context.stale_s, context.min_samples)
    return _Glance(row, state, window, hosts)


def _is_asked(one: _Glance, query: FleetQuery) -> bool:
    named = query.search is None or query.search.lower() in one.row.name.lower()
    return named and query.host in {None, *one.hosts}


def _points(slots: Mapping[datetime, RecentSlot], since: datetime, step: timedelta) -> list[float | None]:
    """The slowest slot of each step: percentiles cannot be averaged, and a short miss must be seen."""
    points: list[float | None] = [None] * _STEPS
    for slot, known in slots.items():
        place = min(int((slot - since) / step), _STEPS - 1)
        if known.value_ms is not None and slot >= since:
            points[place] = max(points[place] or 0.0, known.value_ms)
    return points


def _windows(
    context: ManagerContext, one: _Glance, rolled: Rolled, slots: Mapping[datetime, RecentSlot]
) -> dict[float, Judged]:
    """The intervals of each window: those rolled up, and the slots since then."""
    windows, now, sla = dict(rolled.windows), context.now(), sla_of(one.row)
    for slot, known in slots.items():
        if sla and known.value_ms is not None and known.has_samples(context.min_samples):
            judged = Judged(1, int(known.value_ms > sla.response_time_ms))
            for length_s in WINDOWS_S if rolled.until is None or slot >= rolled.until else ():
                if (now - slot).total_seconds() <= length_s:
                    windows[length_s] += judged
    return windows


def _application(
    context: ManagerContext, one: _Glance, points: list[float | None], windows: Mapping[float, Judged]
) -> FleetApplication:
    sla, target = sla_of(one.row), context.attainment_target
    return FleetApplication(
        name=one.row.name,
        sla=sla,
        sla_state=one.state,
        measured_ms=one.measured_ms,
        measured_at=timestamp(one.window.end_s) if one.window else None,
        rate_rps=one.rate_rps,
        attainment=windows[PERIOD_S].attainment,
        budget_remaining=windows[PERIOD_S].budget_remaining(target),
        burn_rate=windows[HOUR_S].burn_rate(target),
        burning=burning(windows, target),
        hosts=list(one.hosts),
        points_ms=points,
    )


def _host(
    name: str,
    mode: Mode,
    policy: str,
    last_seen_at: datetime | None,
    silent: bool,
    agent_version: str | None,
    tick: object,
) -> FleetHost:
    return FleetHost(
        name=name,
        mode=mode,
        policy=policy,
        last_seen_at=last_seen_at,
        silent=silent,
        agent_version=agent_version,
        tick=None if tick is None else TickStatus.model_validate(tick),
    )
