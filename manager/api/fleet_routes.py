"""The fleet at a glance: applications with their SLA, and hosts, the worst of either first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Literal

from pydantic import AwareDatetime, Field
from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.fleet_overview import ApplicationGlance, FleetOverview, Overview, Places
from manager.control.budget import HOUR_S
from manager.control.error_budget import PERIOD_S, WINDOWS_S, Judged, burning
from manager.control.fleet_groups import ApplicationGroup, summarise
from manager.control.host_order import HostFilter, HostGroup, HostSort, count_groups, count_health, ordered
from manager.control.sla import watched_percentile
from manager.model.fields import Count, Name, Schema, Text, timestamp
from manager.model.host_health import GlancedHost, HostHealth
from manager.model.registration import Mode, Sla
from manager.model.window import Burn, SlaState
from manager.protocol.report import TickStatus
from manager.store.application_glances import hosts_of, running_on
from manager.store.error_budgets import Rolled
from manager.store.models import HostRow
from manager.store.past_registrations import Past, read_past
from manager.store.recent_percentiles import RecentPercentiles, RecentSlot

_STEPS = 60
_UNROLLED = timedelta(minutes=10)
"""Slots of this period may not be rolled up yet."""


SearchText = Annotated[str, Field(max_length=63)]
Limit = Annotated[int, Field(ge=1, le=1000)]
Offset = Annotated[int, Field(ge=0, le=1_000_000, description="how many to skip")]


class FleetFilter(Schema):
    """Which applications."""

    state: SlaState | None = None
    host: Name | None = Field(default=None, description="one of its VMs runs there")
    search: SearchText | None = Field(default=None, description="part of the name")


class FleetGroupsQuery(FleetFilter):
    """How applications are grouped."""

    group: ApplicationGroup = Field(description="host, policy: of its running VMs, so it may be in several groups")
    limit: Limit = 100
    offset: Offset = 0


class FleetQuery(FleetFilter):
    """Filter and order of applications."""

    group: ApplicationGroup | None = Field(default=None, description="what `in_group` is a value of")
    in_group: SearchText | None = Field(
        default=None, description="with `group`: only applications of this group; empty: those of none"
    )
    sort: Literal["worst", "name", "used", "rate"] = Field(
        default="worst",
        description="worst: by state, then as used; used: measured time / target, highest first; rate: highest first",
    )
    limit: Limit = 100
    offset: Offset = 0
    hosts_limit: Annotated[int, Field(ge=0, le=1000)] = Field(default=100, description="most hosts, the worst first")
    minutes: Annotated[int, Field(ge=1, le=60, description="how far back `points_ms` goes")] = 10


class FleetGroup(Schema):
    """A group of applications."""

    value: str = Field(description="empty: not running (host, policy), or inherited (mode)")
    worst: SlaState = Field(description="of its applications")
    states: dict[SlaState, Count] = Field(description="its applications, by state")


class FleetGroupsOut(Schema):
    """The requested groups, the worst first."""

    items: list[FleetGroup]
    matching: Count = Field(description="groups that have applications that match the filter")
    applications: Count = Field(description="applications that match the filter")


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
    health: HostHealth = Field(description="silent and no_libvirt need help, errors and slow a look")


class FleetHostQuery(Schema):
    """Filter and order of hosts."""

    health: HostHealth | None = None
    search: SearchText | None = Field(default=None, description="part of the name")
    policy: Name | None = None
    mode: Mode | None = None
    sort: HostSort = Field(default="worst", description="worst: by health; load: busy share of pCPUs, highest first")
    group: HostGroup | None = Field(default=None, description="sort by this first, and count each group")
    limit: Limit = 100
    offset: Offset = 0


class FleetHostsOut(Schema):
    """The requested hosts, and their number by health and group."""

    items: list[FleetHost]
    matching: Count = Field(description="hosts that match the filter")
    health: dict[HostHealth, Count] = Field(description="hosts that match the filter except `health`, by health")
    groups: dict[str, Count] = Field(description="hosts that match the filter, by group; empty without `group`")
    groups_health: dict[str, dict[HostHealth, Count]] = Field(
        description="the same by group and health, the worst first, without zeros"
    )


class FleetOut(Schema):
    """The requested applications and their number by state, and the hosts that need attention before others."""

    applications: list[FleetApplication]
    matching: Count = Field(description="applications that match the filter")
    states: dict[SlaState, Count] = Field(description="applications that match the filter except `state`, by state")
    attainment_target: float = Field(description="the setting: 1 minus it is the error budget")
    registered: Count = Field(description="all applications")
    step_s: float = Field(description="length of a step of `points_ms`, in seconds")
    until: AwareDatetime = Field(description="end of the last step")
    hosts: list[FleetHost] = Field(description="at most `hosts_limit`, the worst first")
    hosts_health: dict[HostHealth, Count] = Field(description="all hosts, by health")


_STORED = [name for name in FleetHost.model_fields if name != "health"]
_HOST_COLUMNS = [getattr(HostRow, name) for name in _STORED]


def fleet_api(context: ManagerContext) -> RouteGroup:
    """The route of the fleet."""
    api = RouteGroup("fleet", "All applications and hosts at a glance.")
    recent, overview = RecentPercentiles(), FleetOverview(context)

    @api.at("GET /fleet", VIEWER)
    def get_fleet(query: FleetQuery) -> FleetOut:
        """Applications with their SLA, and hosts, the worst first."""
        now = context.now()
        with context.database.reading() as session:
            seen = overview.of(session)
            asked = _asked(session, seen, query)
            if query.group is not None and query.in_group is not None:
                members = _members(asked, overview.places(session, seen, query.group), query.group)
                asked = [glance for glance, values in members if query.in_group in (values or ("",))]
            matching = [glance for glance in asked if query.state in {None, glance.state}]
            if query.sort != "worst":  # as they are
                matching.sort(key=lambda glance: glance.place(query.sort))
            answered = matching[query.offset : query.offset + query.limit]
            since = now - timedelta(minutes=query.minutes)
            percentiles = {glance.number: watched_percentile(glance.sla) for glance in answered}
            series = recent.of(session, percentiles, min(since, now - _UNROLLED), now)
            rolled = context.budgets.of(session, percentiles, now)
            past = read_past(session, now - _UNROLLED, [glance.application.name for glance in answered])
            hosts_by_number = hosts_of(session, percentiles)
            hosts = _hosts(session, ordered(seen.hosts, HostFilter())[: query.hosts_limit])
        step = (now - since) / _STEPS
        applications = []
        for glance in answered:
            slots = series[glance.number]
            windows = _windows(context, glance, rolled[glance.number], slots, past)
            points = _points(slots, since, step)
            applications.append(_application(context, glance, hosts_by_number.get(glance.number, ()), points, windows))
        return FleetOut(
            applications=applications,
            matching=len(matching),
            states=dict.fromkeys(SlaState, 0) | Counter(glance.state for glance in asked),
            attainment_target=context.attainment_target,
            registered=len(seen.applications),
            step_s=step.total_seconds(),
            until=now,
            hosts=hosts,
            hosts_health=count_health(seen.hosts, HostFilter()),
        )

    @api.at("GET /fleet/groups", VIEWER)
    def get_fleet_groups(query: FleetGroupsQuery) -> FleetGroupsOut:
        """Groups of applications, the worst first; `/fleet` with `group` and `in_group` has those of one."""
        with context.database.reading() as session:
            seen = overview.of(session)
            asked = [one for one in _asked(session, seen, query) if query.state in {None, one.state}]
            members = _members(asked, overview.places(session, seen, query.group), query.group)
            groups = summarise((glance.state, values) for glance, values in members)
        items = [
            FleetGroup(value=group.value, worst=group.worst, states=dict(group.states))
            for group in groups[query.offset : query.offset + query.limit]
        ]
        return FleetGroupsOut(items=items, matching=len(groups), applications=len(asked))

    @api.at("GET /fleet/hosts", VIEWER)
    def get_fleet_hosts(query: FleetHostQuery) -> FleetHostsOut:
        """Hosts with their health, the worst first."""
        wanted = HostFilter(query.search, query.health, query.policy, query.mode)
        with context.database.reading() as session:
            seen = overview.of(session).hosts
            matching = ordered(seen, wanted, query.sort, query.group)
            items = _hosts(session, matching[query.offset : query.offset + query.limit])
        groups = count_groups(matching, query.group) if query.group else {}
        return FleetHostsOut(
            items=items,
            matching=len(matching),
            health=count_health(seen, wanted),
            groups={value: sum(counts.values()) for value, counts in groups.items()},
            groups_health=groups,
        )

    return api


def _asked(session: Session, seen: Overview, query: FleetFilter) -> list[ApplicationGlance]:
    """The applications that match all but the state."""
    here = None if query.host is None else running_on(session, query.host)
    return [glance for glance in seen.applications if _is_asked(glance, query.search, here)]


def _members(
    asked: Sequence[ApplicationGlance], places: Places, group: ApplicationGroup
) -> Iterator[tuple[ApplicationGlance, Sequence[str]]]:
    """Applications with the groups that they are in."""
    return ((glance, places.groups_of(glance, group)) for glance in asked)


def _is_asked(glance: ApplicationGlance, search: str | None, numbers: Collection[int] | None) -> bool:
    named = search is None or search.lower() in glance.application.name.lower()
    return named and (numbers is None or glance.number in numbers)


def _hosts(session: Session, wanted: Sequence[GlancedHost]) -> list[FleetHost]:
    """All that a glance shows of these hosts, in their order; those that are gone meanwhile are left out."""
    numbers = [host.number for host in wanted]
    rows = {row.id: row for row in session.execute(select(HostRow.id, *_HOST_COLUMNS).where(HostRow.id.in_(numbers)))}
    found = [(host, rows[host.number]) for host in wanted if host.number in rows]
    return [
        FleetHost.model_validate({"health": host.health} | {name: getattr(row, name) for name in _STORED})
        for host, row in found
    ]


def _points(slots: Mapping[datetime, RecentSlot], since: datetime, step: timedelta) -> list[float | None]:
    """The slowest slot of each step: percentiles cannot be averaged, and a short violation must be seen."""
    points: list[float | None] = [None] * _STEPS
    for start, slot in slots.items():
        place = min(int((start - since) / step), _STEPS - 1)
        if slot.value_ms is not None and start >= since:
            points[place] = max(points[place] or 0.0, slot.value_ms)
    return points


def _windows(
    context: ManagerContext,
    glance: ApplicationGlance,
    rolled: Rolled,
    slots: Mapping[datetime, RecentSlot],
    past: Past,
) -> dict[float, Judged]:
    """The intervals of each window: those rolled up, and the slots since then, by the SLA in force when they began.

    Slots of an SLA with another percentile than the present one are left out until they are rolled up.
    """
    windows, now, percentile = dict(rolled.windows), context.now(), watched_percentile(glance.sla)
    judged: list[tuple[float, bool]] = []  # how old each slot is, and whether it violated the SLA
    for start, slot in slots.items():
        if slot.value_ms is None or not slot.has_samples(context.min_samples):
            continue
        sla = past.sla_of(glance.application.name, glance.sla, start)
        if sla is None or sla.percentile != percentile:
            continue
        if rolled.until is None or start >= rolled.until:
            judged.append(((now - start).total_seconds(), slot.value_ms > sla.response_time_ms))
    for length_s in WINDOWS_S:
        within = [violated for age_s, violated in judged if age_s <= length_s]
        windows[length_s] += Judged(len(within), sum(within))
    return windows


def _application(
    context: ManagerContext,
    glance: ApplicationGlance,
    hosts: Sequence[str],
    points: list[float | None],
    windows: Mapping[float, Judged],
) -> FleetApplication:
    target = context.attainment_target
    return FleetApplication(
        name=glance.application.name,
        sla=glance.sla,
        sla_state=glance.state,
        measured_ms=glance.measured_ms,
        measured_at=timestamp(glance.window.end_s) if glance.window else None,
        rate_rps=glance.rate_rps,
        attainment=windows[PERIOD_S].attainment,
        budget_remaining=windows[PERIOD_S].budget_remaining(target),
        burn_rate=windows[HOUR_S].burn_rate(target),
        burning=burning(windows, target) if glance.sla else Burn.NONE,  # what had an SLA has no budget to burn
        hosts=list(hosts),
        points_ms=points,
    )
