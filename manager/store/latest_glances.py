"""The latest windows of all applications at a glance: from what hosts' rows keep, where that is all there is.

Reading a fleet's windows takes most of the time of a list that is sorted by the state of SLAs. Hosts' rows keep what
the windows of their reports show, and mostly that is all. The windows of all other applications are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from functools import cache

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CompoundSelect,
    bindparam,
    column,
    func,
    literal_column,
    select,
    text,
    true,
    union,
)
from sqlalchemy.orm import Session

from manager.model.glanced_window import GlancedWindow, glance_at
from manager.model.packed_records import microseconds, moment_of
from manager.store.by_driver import rows_of
from manager.store.kept_glances import kept_glances
from manager.store.models import UtcDateTime, WindowRow
from manager.store.pack_models import WindowMinuteRow
from manager.store.rollup_queue import MINUTE
from manager.store.row_writes import has_arrays
from manager.store.window_packs import YOUNG
from manager.store.windows import recent_windows


def latest_glances(
    session: Session, percentiles: Mapping[int, float], slot_length: timedelta, until: datetime
) -> dict[int, GlancedWindow]:
    """At the latest window of each application that has one, of those given by row number, each with its percentile.

    ``until`` as for ``recent_windows``.
    """
    length_us, until_us = slot_length // timedelta(microseconds=1), microseconds(until)
    kept = {
        number: glance
        for number, glance in kept_glances(session).items()
        # Else the SLA was another one.
        if glance.placed.slot_us <= until_us and percentiles.get(number) == glance.placed.window.percentile
    }
    # What is stored of its slot, or of the one before, is part of the latest window, too.
    since_us = {number: glance.placed.slot_us - length_us for number, glance in kept.items()}
    outdated = {
        number
        for number, origin in _measured_since(session, since_us, until)
        # What its own host brought was compared with the glance then, if that covers both.
        if origin != kept[number].host or not kept[number].placed.covers_slot_before(length_us)
    }
    glances = {number: glance.placed.window for number, glance in kept.items() if number not in outdated}
    names = {number: str(number) for number in percentiles if number not in glances}
    recent = recent_windows(session, names, slot_length, 2, until=until) if names else {}
    return glances | {int(name): glance_at(slots, percentiles[int(name)]) for name, slots in recent.items()}


def _measured_since(session: Session, since_us: Mapping[int, int], until: datetime) -> Iterator[tuple[int, str]]:
    """Those of these applications, by row number, of which a slot is stored from a moment of each to ``until``.

    Each with the origins of such slots. Where some of a minute are stored that began later, that counts.
    """
    if has_arrays(session):
        first = moment_of(min(since_us.values(), default=0))
        given = {"numbers": [*since_us], "since_us": [*since_us.values()], "first": first}
        yield from rows_of(session, _since(), {**given, "until": until, "end": until + MINUTE})
        return
    alike: dict[int, list[int]] = {}
    for number, moment_us in since_us.items():
        alike.setdefault(moment_us, []).append(number)
    for moment_us, numbers in alike.items():
        for (kind, moment), end in zip(YOUNG, (until, until + MINUTE), strict=True):
            query = select(kind.application_id, kind.origin).where(kind.application_id.in_(numbers))
            rows = session.execute(query.where(moment.between(moment_of(moment_us), end)).distinct())
            yield from ((number, origin) for number, origin in rows)


@cache
def _since() -> CompoundSelect[int, str]:
    """One look at each table for each application, however many moments there are."""
    names = "numbers", "since_us"
    given = (bindparam(name, type_=ARRAY(BigInteger(), dimensions=1)) for name in names)
    kept = func.unnest(*given).table_valued(*(column(name, BigInteger()) for name in names)).render_derived()
    first, until, end = (bindparam(name, type_=UtcDateTime()) for name in ("first", "until", "end"))
    since = text("timestamptz 'epoch'") + kept.c.since_us * text("interval '1 microsecond'")
    row, minute = WindowRow, WindowMinuteRow
    # Mostly there are few rows, which an index finds by their slots.
    newer = (row.application_id == kept.c.numbers) & (row.slot >= since)
    rows = select(kept.c.numbers, row.origin).join_from(kept, row, newer).where(row.slot.between(first, until))
    # OFFSET keeps PostgreSQL from reading the whole table once in place of the index for each application.
    stored = select(minute.origin).where(minute.application_id == kept.c.numbers, minute.newest >= since)
    found = stored.where(minute.newest <= end).offset(literal_column("0")).lateral()
    return union(rows, select(kept.c.numbers, found.c.origin).join_from(kept, found, true()))
