"""The latest windows of all applications at a glance: from what hosts' rows keep, where that is all there is.

Reading a fleet's windows takes most of the time of a list that is sorted by the state of SLAs. A live report says what
its host's windows show, and mostly nothing newer has come since. The windows of all other applications are read.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from manager.model.glanced_window import GlancedWindow, glance_at
from manager.model.packed_records import microseconds
from manager.store.live_plane import live_glances
from manager.store.models import ApplicationRow
from manager.store.rollup_queue import MINUTE
from manager.store.row_writes import is_one_of
from manager.store.window_packs import YOUNG
from manager.store.windows import recent_windows


def latest_glances(
    session: Session, percentiles: Mapping[int, float], slot_length: timedelta, until: datetime
) -> dict[int, GlancedWindow]:
    """At the latest window of each application that has one, of those given by row number, each with its percentile.

    ``until`` as for ``recent_windows``.
    """
    length_us, until_us = slot_length // timedelta(microseconds=1), microseconds(until)
    newest_us = _newest_rows_us(session, percentiles, until)
    glances = {
        number: glance.window
        for number, glance in live_glances(session).items()
        # What history brought of its slot, or of the one before, is part of the latest window, too.
        if newest_us.get(number, 0) < glance.slot_us - length_us
        and glance.slot_us <= until_us
        # Else the SLA was another one.
        and percentiles.get(number) == glance.window.percentile
    }
    names = {number: str(number) for number in percentiles if number not in glances}
    recent = recent_windows(session, names, slot_length, 2, until=until) if names else {}
    return glances | {int(name): glance_at(slots, percentiles[int(name)]) for name, slots in recent.items()}


def _newest_rows_us(session: Session, numbers: Collection[int], until: datetime) -> dict[int, int]:
    """When the newest slots up to ``until`` began that history brought, of applications with any, by row number.

    Where it brought some of a minute that began later, that counts.
    """
    newest = (
        select(func.max(moment)).where(kind.application_id == ApplicationRow.id, moment <= latest).scalar_subquery()
        for (kind, moment), latest in zip(YOUNG, (until, until + MINUTE), strict=True)
    )
    query = select(ApplicationRow.id, *newest).where(is_one_of(session, ApplicationRow.id, numbers))
    return {
        number: max(microseconds(slot) for slot in slots if slot is not None)
        for number, *slots in session.execute(query)
        if any(slots)
    }
