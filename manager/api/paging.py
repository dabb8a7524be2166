"""Lists in parts, with cursors that stay right while rows are added.

A cursor is the place of the last item in the order of the list, encoded so that nobody is tempted to make one up.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from manager.api.queries import PageQuery
from manager.api.validation import shown
from manager.errors import InvalidRequest
from manager.store.decision_records import Position

Item = TypeVar("Item")
Place = TypeVar("Place")


def read_cursor(query: PageQuery, parse: Callable[[str], Place]) -> Place | None:
    """The place after which the list goes on. ``parse`` may raise ValueError or OverflowError.

    Raises InvalidRequest for text that is not one of our cursors.
    """
    if query.cursor is None:
        return None
    try:
        return parse(base64.b64decode(query.cursor, altchars=b"-_", validate=True).decode("ascii"))
    except (ValueError, OverflowError, binascii.Error):
        message = f"{shown(query.cursor)} is refused; allowed: `next` of an earlier answer to the same request"
        raise InvalidRequest("cursor", message) from None


def cut(rows: Sequence[Item], limit: int, place: Callable[[Item], str]) -> tuple[Sequence[Item], str | None]:
    """The items of this part and the cursor of the next, from up to ``limit + 1`` rows."""
    if len(rows) <= limit:
        return rows, None
    items = rows[:limit]
    return items, base64.b64encode(place(items[-1]).encode("ascii"), altchars=b"-_").decode("ascii")


def time_place(text: str) -> datetime:
    """A cursor of a list by time. Raises ValueError or OverflowError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(text)
    return moment.astimezone(UTC)


def record_place(text: str) -> Position:
    """A cursor of a list by time and number, as ``record_cursor`` makes it. Raises ValueError or OverflowError."""
    at, _, number = text.partition(" ")
    if not 0 < int(number) < 2**63:
        raise ValueError(text)
    return Position(time_place(at), int(number))


def record_cursor(at: datetime, number: int) -> str:
    """The place of a record."""
    return f"{at.isoformat()} {number}"


def name_place(text: str) -> str:
    """A cursor of a list by name. Raises ValueError."""
    if not text.isprintable():
        raise ValueError(text)
    return text
