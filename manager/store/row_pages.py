"""Reading many rows as far as they are needed, in pages.

Not through a cursor of the server: one that is left open, because its reader needed no more, is closed when Python
happens to collect it, and that may be in another transaction of the same connection, which it ends.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from sqlalchemy import Row, Select, literal, tuple_
from sqlalchemy.orm import InstrumentedAttribute, Session


def newest_rows(
    session: Session,
    query: Select[*tuple[Any, ...]],
    place: Sequence[InstrumentedAttribute[Any]],
    page: int,
) -> Iterator[Row[*tuple[Any, ...]]]:
    """The rows of a query in descending order of their ``place``, columns of the query that no two rows share.

    ``page``: how many rows one query reads. All are of one state of the database where the session sees one.
    """
    query = query.order_by(*(column.desc() for column in place)).limit(page)
    older = query
    while True:
        rows = session.execute(older).all()
        yield from rows
        if len(rows) < page:
            return
        last = rows[-1]._mapping
        older = query.where(tuple_(*place) < tuple_(*(literal(last[column], column.type) for column in place)))
