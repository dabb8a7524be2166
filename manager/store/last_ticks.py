"""The last ticks of hosts, which are JSON in their rows, and fields of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from sqlalchemy import Boolean, ColumnClause, ColumnElement, Double, Integer, Select, String, Text, cast, func, true
from sqlalchemy.orm import InstrumentedAttribute, Session

from manager.store.database import is_postgresql
from manager.store.models import HostRow, Json

Columns: TypeAlias = Select[*tuple[Any, ...]]


def with_tick(session: Session, query: Columns, *fields: ColumnClause[Any]) -> Columns:
    """A query of hosts, with these fields of their last ticks as further columns; null where there is none."""
    if not is_postgresql(session):
        return query.add_columns(*map(_on_sqlite, fields))
    # Once for all fields: ``->>`` would parse the whole tick for each of them.
    tick = func.json_to_record(HostRow.tick).table_valued(*fields).render_derived(with_types=True).lateral()
    return query.add_columns(*tick.c).outerjoin(tick, true())


def json_text(column: InstrumentedAttribute[Json | None]) -> ColumnElement[str | None]:
    """A column of JSON as text; None where there is nothing, be it as JSON."""
    return func.nullif(cast(column, Text), "null")


def _on_sqlite(field: ColumnClause[Any]) -> ColumnElement[Any]:
    value = HostRow.tick[field.name]
    kinds: dict[type, Callable[[], ColumnElement[Any]]] = {
        Boolean: value.as_boolean,
        Integer: value.as_integer,
        Double: value.as_float,
        String: value.as_string,
    }
    typed: ColumnElement[Any] = kinds.get(type(field.type), value.as_json)()
    return typed.label(field.name)
