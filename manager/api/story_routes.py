"""Decisions as a story, newest first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.pages import StoryPage
from manager.api.paging import cut, read_cursor, time_place
from manager.api.queries import StoryQuery
from manager.api.schemas.history_shapes import StoryChange, StoryOut
from manager.control.story import DecidedChange, TimesAround, outcome_of, reasons, sentence
from manager.model.fields import timestamp
from manager.model.registration import Sla
from manager.model.window import Window, merge
from manager.store.applications import applications_of
from manager.store.decision_records import RecordFilter
from manager.store.history import StoryPlace, list_by_tick, windows_at
from manager.store.models import ApplicationRow, DecisionRow
from manager.store.past_registrations import Past, read_past, serving
from manager.store.registrations import get

_INTERVALS = 2
"""After so many the percentile is told again; a window is as many slots long."""

Windows = Mapping[tuple[int, datetime], Window]


def story_api(context: ManagerContext) -> APIBlueprint:
    """The route of the story."""
    api = blueprint("story", "Decisions as a story.")

    @api.get("/decisions/story", responses=answers((200, StoryPage)))
    @endpoint(VIEWER)
    def get_story(query: StoryQuery) -> Response:
        """What was decided of each VM in each tick, what the response times were then, and what they were after."""
        wanted = RecordFilter(query.host, query.vm, query.since, query.until)
        after = read_cursor(query, _place)
        with context.database.reading() as session:
            eras = None
            if query.application is not None:
                row = get(session, ApplicationRow, query.application)
                eras = read_past(session, query.since, row.name).eras(applications_of(session, [row])[row.name])
            found = list_by_tick(session, wanted, eras, query.outcome, after, query.limit + 1, context.latest)
            groups, following = cut(found, query.limit, _place_text)
            items = _entries(session, context, groups)
        return answer(StoryPage(items=items, next=following))

    return api


def _place(text: str) -> StoryPlace:
    at, host, vm = text.split(" ")
    if not (host + vm).isprintable():
        raise ValueError(text)
    return StoryPlace(time_place(at), host, vm)


def _place_text(group: Sequence[DecisionRow]) -> str:
    return f"{group[0].at.isoformat()} {group[0].host} {group[0].vm or ''}"


def _entries(session: Session, context: ManagerContext, groups: Sequence[Sequence[DecisionRow]]) -> list[StoryOut]:
    past = read_past(session, min((group[0].at for group in groups), default=context.now()))
    applications = serving(session, past, {(group[0].vm, group[0].at) for group in groups if group[0].vm is not None})
    places = {(row.id, slot) for (_, at), row in applications.items() for slot in _slots(at, context.slot_length)}
    windows = windows_at(session, places, {row.id: row.name for row in applications.values()})
    return [
        _entry(context, group, applications.get((group[0].vm or "", group[0].at)), past, windows) for group in groups
    ]


def _slots(at: datetime, length: timedelta) -> list[datetime]:
    """The two slots that had ended at a time, and the two that follow."""
    ended_s = at.timestamp() // length.total_seconds() * length.total_seconds()
    return [timestamp(ended_s) + place * length for place in range(-_INTERVALS, _INTERVALS)]


def _entry(
    context: ManagerContext, group: Sequence[DecisionRow], row: ApplicationRow | None, past: Past, windows: Windows
) -> StoryOut:
    first = group[0]
    times = None if row is None else _times(context, first.at, row, past.sla(row, first.at), windows)
    changes = [
        DecidedChange(one.knob, one.knob_index, one.before, one.after, one.reason, one.outcome, one.detail)
        for one in group
    ]
    return StoryOut(
        at=first.at,
        host=first.host,
        vm=first.vm,
        application=row.name if row else None,
        policy=first.policy,
        mode=first.mode,
        outcome=outcome_of(changes),
        reason=reasons(changes),
        sla=times.sla if times else None,
        time_ms=times.time_ms if times else None,
        violated=bool(times and times.sla and times.time_ms and times.time_ms > times.sla.response_time_ms),
        later_s=_INTERVALS * context.slot_s,
        later_ms=times.later_ms if times else None,
        sentence=sentence(first.host, first.vm, changes, times),
        changes=[
            StoryChange(
                id=one.record_id,
                knob=one.knob,
                index=one.knob_index,
                before=one.before,
                after=one.after,
                reason=one.reason,
                outcome=one.outcome,
                detail=one.detail,
            )
            for one in group
        ],
    )


def _times(
    context: ManagerContext, at: datetime, row: ApplicationRow, sla: Sla | None, windows: Windows
) -> TimesAround:
    slots = _slots(at, context.slot_length)
    known = [windows.get((row.id, slot)) for slot in slots]

    def percentile_ms(parts: Sequence[Window | None]) -> float | None:
        found = [part for part in parts if part is not None]
        window = merge(found) if found else None
        if sla is None or window is None or not window.has_samples(context.min_samples):
            return None
        return window.percentile_ms(sla.percentile)

    return TimesAround(
        row.name,
        sla,
        percentile_ms(known[:_INTERVALS]),
        percentile_ms(known[_INTERVALS:]),
        _INTERVALS * context.slot_s,
    )
