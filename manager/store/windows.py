"""Response times of applications, merged into windows of aligned slots.

A slot of length L covers ``(k L, (k + 1) L]`` since the epoch. Samples belong to the slot in which they ended.
The *latest window* of an application is its latest slot merged with the one just before it, if that has samples: so
it always holds at least one slot's worth while samples keep coming, and a state drawn from it does not flap when a new
slot begins. It covers only the time the samples say they cover, so its rate is not diluted by the rest of the slot.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.errors import InvalidRequest
from manager.model.histogram import Histogram
from manager.model.window import Window
from manager.store.models import ApplicationRow, WindowRow
from manager.store.registered import not_found

MAX_COUNT = 2**53
"""Most samples in a window: beyond it JSON readers that know only doubles lose count, and so would a BIGINT."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TICK = timedelta(microseconds=1)


def merge_samples(
    session: Session, application: str, start: datetime, end: datetime, histogram: Histogram, slot_length: timedelta
) -> None:
    """Add response times that ended between ``start`` and ``end``. Call it in ``Database.writing``.

    Raises NotFound for an unknown application, and InvalidRequest for more samples than a window can count.
    """
    # Locking the application makes merging into one of its windows one at a time; KEY SHARE lets others refer to it.
    query = select(ApplicationRow).where(ApplicationRow.name == application).with_for_update(key_share=True)
    row = session.scalars(query).one_or_none()
    if row is None:
        raise not_found(ApplicationRow, application)
    slot = slot_start(end, slot_length)
    window = session.scalars(
        select(WindowRow).where(WindowRow.application_id == row.id, WindowRow.slot == slot)
    ).one_or_none()
    merged = histogram.merge(_histogram(window)) if window else histogram
    if merged.count > MAX_COUNT:
        raise InvalidRequest("buckets", f"{histogram.count} more samples in this window; allowed: {MAX_COUNT} in all")
    if window is None:
        window = WindowRow(application_id=row.id, slot=slot, start_at=start, end_at=end)
        session.add(window)
    window.start_at = min(window.start_at, start)
    window.end_at = max(window.end_at, end)
    window.count = merged.count
    window.buckets = {str(bucket): count for bucket, count in sorted(merged.buckets.items())}
    latest_from = slot - slot_length
    if row.latest_from is None or row.latest_from < latest_from:
        row.latest_from = latest_from


def slot_start(end: datetime, slot_length: timedelta) -> datetime:
    """Start of the slot that a moment belongs to."""
    length = slot_length // _TICK
    return _EPOCH + ((end - _EPOCH) // _TICK - 1) // length * length * _TICK


def latest_windows(session: Session, applications: Iterable[ApplicationRow]) -> dict[str, Window]:
    """The latest window of each application that has one, by name."""
    names = {application.id: application.name for application in applications}
    query = (
        select(WindowRow)
        .join(ApplicationRow, ApplicationRow.id == WindowRow.application_id)
        .where(WindowRow.application_id.in_(names), WindowRow.slot >= ApplicationRow.latest_from)
    )
    found: dict[str, Window] = {}
    for row in session.scalars(query):
        name = names[row.application_id]
        window = window_of(name, row)
        found[name] = _merge(found[name], window) if name in found else window
    return found


def list_windows(
    session: Session, application: ApplicationRow, since: datetime | None, before: datetime | None, limit: int
) -> Sequence[WindowRow]:
    """At most ``limit`` windows, newest first, whose slots begin at ``since`` or later and earlier than ``before``."""
    query = select(WindowRow).where(WindowRow.application_id == application.id)
    if since is not None:
        query = query.where(WindowRow.slot >= since)
    if before is not None:
        query = query.where(WindowRow.slot < before)
    return session.scalars(query.order_by(WindowRow.slot.desc()).limit(limit)).all()


def window_of(application: str, row: WindowRow) -> Window:
    """The value type of a row."""
    return Window(application, row.start_at.timestamp(), row.end_at.timestamp(), _histogram(row))


def _histogram(row: WindowRow) -> Histogram:
    return Histogram({int(bucket): count for bucket, count in row.buckets.items()})


def _merge(one: Window, other: Window) -> Window:
    return Window(
        one.application,
        min(one.start_s, other.start_s),
        max(one.end_s, other.end_s),
        one.histogram.merge(other.histogram),
    )
