"""Paged lists, with cursors that stay valid while rows are added.

A cursor is the position of the last item in the order of the list, in opaque encoding.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Generic, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement

from manager.api.queries import PageQuery, SearchQuery
from manager.api.validation import shown
from manager.errors import InvalidRequest
from manager.model.fields import Moment, Schema, Text, json_of
from manager.store.database import Database
from manager.store.event_records import Position
from manager.store.registrations import Row, page

Item = TypeVar("Item")
Place = TypeVar("Place")
Listed = TypeVar("Listed")

NAME: TypeAdapter[str] = TypeAdapter(Text)
"""Cursors of lists by name."""
TIME = TypeAdapter(Moment)
"""Cursors of lists by time."""
RECORD = TypeAdapter(Position)
"""Cursors of lists by time and number."""


class Page(Schema, Generic[Item]):
    """A page of a list. ``next`` is the ``cursor`` of the next page; null: this is the last page."""

    items: list[Item]
    next: str | None = None


def read_cursor(query: PageQuery, places: TypeAdapter[Place]) -> Place | None:
    """The position after which the page begins. Raises InvalidRequest for an invalid cursor."""
    if query.cursor is None:
        return None
    try:
        return places.validate_json(base64.b64decode(query.cursor, altchars=b"-_", validate=True))
    except ValueError:
        message = f"{shown(query.cursor)} is refused; allowed: `next` of an earlier answer to the same request"
        raise InvalidRequest("cursor", message) from None


def part(
    kind: type[Page[Item]],
    query: PageQuery,
    rows: Sequence[Listed],
    place: Callable[[Listed], object],
    item: Callable[[Listed], Item] | None = None,
) -> Page[Item]:
    """A page of up to ``limit + 1`` rows, with the cursor of the next page.

    Without ``item``, items are made from the attributes of the rows.
    """
    on_page = rows[: query.limit]
    items = on_page if item is None else [item(row) for row in on_page]
    return kind.model_validate({"items": items, "next": next_cursor(query, rows, place)}, from_attributes=True)


def next_cursor(query: PageQuery, rows: Sequence[Listed], place: Callable[[Listed], object]) -> str | None:
    """The cursor of the page after up to ``limit + 1`` rows: the position of its last item; None: no more pages."""
    if len(rows) <= query.limit:
        return None
    return base64.b64encode(json_of(place(rows[query.limit - 1])), altchars=b"-_").decode("ascii")


def part_by_name(
    kind: type[Page[Item]],
    query: PageQuery,
    database: Database,
    table: type[Row],
    item: Callable[[Row], Item] | None = None,
    wanted: Sequence[ColumnElement[bool]] = (),
) -> Page[Item]:
    """A page of the registered objects of a kind that are ``wanted``, by name; a ``SearchQuery`` asks for a part."""
    search = query.search if isinstance(query, SearchQuery) else None
    with database.reading() as session:
        rows = page(session, table, read_cursor(query, NAME), query.limit + 1, search, wanted)
    return part(kind, query, rows, attrgetter("name"), item)
