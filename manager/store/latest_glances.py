"""The latest windows of all applications at a glance: from what hosts' rows keep, where that is all there is.

Reading a fleet's windows takes most of the time of a list that is sorted by the state of SLAs. A live report says what
its host's windows show, and mostly nothing newer has come since. The windows of all other applications are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import func, or_, select
from sqlalchemy.orm import Session

from manager.model.glanced_window import GlancedWindow, glance_at
from manager.model.packed_records import microseconds, moment_of
from manager.store.live_plane import live_glances
from manager.store.models import ApplicationRow
from manager.store.rollup_queue import MINUTE
from manager.store.row_writes import is_one_of
from manager.store.window_packs import YOUNG
from manager.store.windows import recent_windows

_GROUPS = 100  # of applications, looked up by one statement


def latest_glances(
    session: Session, percentiles: Mapping[int, float], slot_length: timedelta, until: datetime
) -> dict[int, GlancedWindow]:
    """At the latest window of each application that has one, of those given by row number, each with its percentile.

    ``until`` as for ``recent_windows``.
    """
    length_us, until_us = slot_length // timedelta(microseconds=1), microseconds(until)
    live = {
        number: glance
        for number, glance in live_glances(session).items()
        # Else the SLA was another one.
        if glance.slot_us <= until_us and percentiles.get(number) == glance.window.percentile
    }
    # What history brought of its slot, or of the one before, is part of the latest window, too.
    outdated = _measured_since(session, {number: one.slot_us - length_us for number, one in live.items()}, until)
    glances = {number: glance.window for number, glance in live.items() if number not in outdated}
    names = {number: str(number) for number in percentiles if number not in glances}
    recent = recent_windows(session, names, slot_length, 2, until=until) if names else {}
    return glances | {int(name): glance_at(slots, percentiles[int(name)]) for name, slots in recent.items()}


def _measured_since(session: Session, since_us: Mapping[int, int], until: datetime) -> frozenset[int]:
    """Those of these applications, by row number, of which history brought a slot from a moment of each to ``until``.

    Where it brought some of a minute that began later, that counts.
    """
    alike: dict[int, list[int]] = {}
    for number, moment_us in since_us.items():
        alike.setdefault(moment_us, []).append(number)
    newest = [
        select(func.max(moment)).where(kind.application_id == ApplicationRow.id, moment <= latest).scalar_subquery()
        for (kind, moment), latest in zip(YOUNG, (until, until + MINUTE), strict=True)
    ]
    groups = [
        is_one_of(session, ApplicationRow.id, numbers) & or_(*(slot >= moment_of(moment_us) for slot in newest))
        for moment_us, numbers in alike.items()
    ]
    queries = (
        select(ApplicationRow.id).where(or_(*groups[first : first + _GROUPS]))
        for first in range(0, len(groups), _GROUPS)
    )
    return frozenset(number for query in queries for number in session.scalars(query))
