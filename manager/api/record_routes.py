"""Decisions and events, newest first."""

from __future__ import annotations

from dataclasses import fields
from typing import TypeVar

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy import ColumnElement

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.pages import EventPage, RecordPage
from manager.api.paging import cut, read_cursor, record_cursor, record_place
from manager.api.queries import DecisionQuery, EventQuery, RecordQuery
from manager.model.records import DecisionRecord, Event
from manager.store.decision_records import RecordFilter, list_records
from manager.store.models import DecisionRow, EventRow

Kind = TypeVar("Kind", DecisionRow, EventRow)


def records_api(context: ManagerContext) -> APIBlueprint:
    """The routes of decisions and events."""
    api = blueprint("records", "What was decided and why, and what happened.")

    def find(kind: type[Kind], query: RecordQuery, *more: ColumnElement[bool]) -> tuple[list[Kind], str | None]:
        wanted = RecordFilter(query.host, query.vm, query.since, query.until)
        after = read_cursor(query, record_place)
        with context.database.reading() as session:
            rows = list_records(session, kind, wanted, after, query.limit + 1, *more, latest=context.latest)
        items, following = cut(rows, query.limit, lambda row: record_cursor(row.at, row.id))
        return list(items), following

    @api.get("/decisions", responses=answers((200, RecordPage)))
    @endpoint(VIEWER)
    def list_decisions(query: DecisionQuery) -> Response:
        """Decisions about single settings, with reason and outcome."""
        more = [] if query.knob is None else [DecisionRow.knob == query.knob]
        rows, following = find(DecisionRow, query, *more)
        return answer(RecordPage(items=[_record_of(row) for row in rows], next=following))

    @api.get("/events", responses=answers((200, EventPage)))
    @endpoint(VIEWER)
    def list_events(query: EventQuery) -> Response:
        """What an operator may want to know."""
        more = [] if query.severity is None else [EventRow.severity == query.severity]
        more += [] if query.kind is None else [EventRow.kind == query.kind]
        rows, following = find(EventRow, query, *more)
        return answer(EventPage(items=[_event_of(row) for row in rows], next=following))

    return api


def _record_of(row: DecisionRow) -> DecisionRecord:
    names = (field.name for field in fields(DecisionRecord) if field.name not in {"time_s", "index"})
    return DecisionRecord(
        time_s=row.at.timestamp(), index=row.knob_index, **{name: getattr(row, name) for name in names}
    )


def _event_of(row: EventRow) -> Event:
    return Event(row.record_id, row.at.timestamp(), row.host, row.severity, row.kind, row.message, row.vm)
