"""Ticks, decisions, events, and decisions as a story, newest first, as agents reported them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime, timedelta
from operator import attrgetter

from pydantic import AwareDatetime, Field, TypeAdapter
from sqlalchemy.orm import Session

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.paging import RECORD, TIME, Page, part, read_cursor
from manager.api.queries import DecisionQuery, EventQuery, NamePath, StoryQuery, TickQuery
from manager.control.story import StoryChange, TimesAround, outcome_of, reasons, sentence
from manager.model.fields import MAX_TEXT, Name, Schema, Text, adapter_of, fields_of, timestamp
from manager.model.records import DecisionRecord, Event, OutcomeKind, TickRecord
from manager.model.registration import Mode, Sla
from manager.model.window import Window, merge
from manager.store.applications import application_with_past, applications_of
from manager.store.decision_packs import DecisionFilter, StoredDecision, newest_decisions
from manager.store.event_records import Position, RecordFilter, newest_events
from manager.store.history import StoryPlace, list_by_tick
from manager.store.models import ApplicationRow, EventRow, HostRow
from manager.store.past_registrations import Past, read_past, serving
from manager.store.registrations import get
from manager.store.tick_packs import list_ticks
from manager.store.watched_hosts import look_at
from manager.store.windows import windows_at

_INTERVALS = 2
"""Intervals between a decision and the later percentile; also the slots that a percentile is read from."""

_STORY = TypeAdapter(StoryPlace)

Windows = Mapping[tuple[int, datetime], Window]


class StoryOut(Schema):
    """The decisions about a VM, or the host itself, in one tick."""

    at: AwareDatetime
    host: Name
    vm: Name | None
    application: Name | None = Field(description="that the VM served")
    policy: Name
    mode: Mode
    outcome: OutcomeKind = Field(description="the worst of its changes")
    reason: Text
    sla: Sla | None
    percentile_ms: float | None = Field(description="the percentile of the SLA at that time; null: no SLA, or unknown")
    violated: bool = Field(description="the SLA was violated at that time")
    later_s: float = Field(description="two intervals, in seconds")
    later_ms: float | None = Field(description="that percentile `later_s` later")
    sentence: str
    changes: list[StoryChange]


def records_api(context: ManagerContext) -> RouteGroup:
    """The routes of ticks, decisions and events."""
    api = RouteGroup("records", "Ticks, decisions with reasons, and events.")
    database = context.database

    @api.at("GET /hosts/<name>/ticks", VIEWER)
    def get_ticks(path: NamePath, query: TickQuery) -> Page[TickRecord]:
        """The ticks of a host, newest first.

        Asking for the newest has its agent report all in each interval for a minute, see `small_fleet`.
        """
        after = read_cursor(query, TIME)
        with database.reading() as session:
            get(session, HostRow, path.name)
            rows = list_ticks(session, path.name, query.since, query.until, query.limit + 1, after, context.latest)
        if query.until is None:
            look_at(database, context.now(), hosts=[path.name])
        read = adapter_of(TickRecord).validate_json
        return part(Page[TickRecord], query, rows, attrgetter("at"), lambda row: read(row.body))

    @api.at("GET /decisions", VIEWER)
    def list_decisions(query: DecisionQuery) -> Page[DecisionRecord]:
        """Decisions about settings, with reason and outcome."""
        wanted = DecisionFilter(query.host, query.vm, query.since, query.until, query.knob)
        after, limit = read_cursor(query, RECORD), query.limit + 1
        with database.reading() as session:
            rows = newest_decisions(session, wanted, after, limit, context.latest)
        return part(Page[DecisionRecord], query, rows, _place, StoredDecision.record)

    @api.at("GET /events", VIEWER)
    def list_events(query: EventQuery) -> Page[Event]:
        """Events, newest first."""
        wanted = RecordFilter(query.host, query.vm, query.since, query.until)
        conditions = [] if query.severity is None else [EventRow.severity == query.severity]
        conditions += [] if query.kind is None else [EventRow.kind == query.kind]
        after, limit = read_cursor(query, RECORD), query.limit + 1
        with database.reading() as session:
            rows = newest_events(session, wanted, after, limit, *conditions, latest=context.latest)
        return part(Page[Event], query, rows, _place, _event)

    @api.at("GET /decisions/story", VIEWER)
    def get_story(query: StoryQuery) -> Page[StoryOut]:
        """The decisions about each VM in each tick, with the response times at that time and after."""
        after, limit = read_cursor(query, _STORY), query.limit + 1
        with database.reading() as session:
            eras = None
            if query.application is not None:
                row = application_with_past(session, query.application)
                eras = read_past(session, query.since, [row.name]).eras(applications_of(session, [row])[row.name])
            wanted = DecisionFilter(query.host, query.vm, query.since, query.until, None, query.outcome, eras)
            groups = list_by_tick(session, wanted, after, limit, context.latest)
            entries = _entries(session, context, groups)
        return part(Page[StoryOut], query, entries, lambda entry: StoryPlace(entry.at, entry.host, entry.vm or ""))

    return api


def _place(row: StoredDecision | EventRow) -> Position:
    return Position(row.at, row.id)


def _event(row: EventRow) -> Event:
    columns = {field.name: getattr(row, field.name) for field in fields(Event) if field.name != "time_s"}
    return Event(time_s=row.at.timestamp(), **columns)


def _entries(session: Session, context: ManagerContext, groups: Sequence[Sequence[StoredDecision]]) -> list[StoryOut]:
    past = read_past(session, min((group[0].at for group in groups), default=context.now()))
    applications = serving(session, past, {(group[0].vm, group[0].at) for group in groups if group[0].vm is not None})
    places = {(row.id, slot) for (_, at), row in applications.items() for slot in _slots(at, context.slot_length)}
    windows = windows_at(session, places, {row.id: row.name for row in applications.values()})
    return [
        _entry(context, group, applications.get((group[0].vm or "", group[0].at)), past, windows) for group in groups
    ]


def _slots(at: datetime, length: timedelta) -> list[datetime]:
    """The two slots that had ended at a time, and the next two."""
    ended_s = at.timestamp() // length.total_seconds() * length.total_seconds()
    return [timestamp(ended_s) + place * length for place in range(-_INTERVALS, _INTERVALS)]


def _entry(
    context: ManagerContext, group: Sequence[StoredDecision], row: ApplicationRow | None, past: Past, windows: Windows
) -> StoryOut:
    first = group[0]
    times = None if row is None else _times(context, first.at, row, past.sla(row, first.at), windows)
    changes = [StoryChange(**fields_of(StoryChange, decision)) for decision in group]
    return StoryOut(
        at=first.at,
        host=first.host,
        vm=first.vm,
        application=row.name if row else None,
        policy=first.policy,
        mode=first.mode,
        outcome=outcome_of(changes),
        reason=reasons(changes)[:MAX_TEXT],
        sla=times.sla if times else None,
        percentile_ms=times.percentile_ms if times else None,
        violated=bool(times and times.sla and times.percentile_ms and times.percentile_ms > times.sla.response_time_ms),
        later_s=_INTERVALS * context.slot_s,
        later_ms=times.later_ms if times else None,
        sentence=sentence(first.host, first.vm, changes, times),
        changes=changes,
    )


def _times(
    context: ManagerContext, at: datetime, row: ApplicationRow, sla: Sla | None, windows: Windows
) -> TimesAround:
    around = [windows.get((row.id, slot)) for slot in _slots(at, context.slot_length)]

    def percentile_ms(slots: Sequence[Window | None]) -> float | None:
        with_data = [slot for slot in slots if slot is not None]
        window = merge(with_data) if with_data else None
        if sla is None or window is None or not window.has_samples(context.min_samples):
            return None
        return window.percentile_ms(sla.percentile)

    before_ms, later_ms = percentile_ms(around[:_INTERVALS]), percentile_ms(around[_INTERVALS:])
    return TimesAround(row.name, sla, before_ms, later_ms, _INTERVALS * context.slot_s)
