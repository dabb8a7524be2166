"""What happened over a range of time: response times from the rows that are coarse enough, and ticks thinned out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby

from sqlalchemy import ColumnElement, Select, and_, func, or_, select
from sqlalchemy.orm import Session

from manager.control.budget import HOUR_S, MINUTE_S, Period, Span, joined, judge
from manager.model.records import OutcomeKind, TickRecord
from manager.model.registration import VmClass
from manager.model.window import Window, merge
from manager.store.access_models import AuditRow
from manager.store.decision_records import RecordFilter, newest_first
from manager.store.models import (
    ApplicationRow,
    DecisionRow,
    HostRow,
    RollupRow,
    VmRow,
    VmStatusRow,
    WindowRow,
)
from manager.store.past_registrations import Era, read_past
from manager.store.rollups import period_of
from manager.store.source_rows import hosts_of
from manager.store.tick_rollups import tick_of
from manager.store.ticks import list_ticks
from manager.store.windows import list_windows, window_of

MAX_TICKS = 1500
"""Most ticks that are read for one answer: an hour at 2.4 s."""

_MOST_SLOTS = 4000  # MAX_PERIODS in whole steps; of more that are not rolled up yet the newest are read
_MOST_UNROLLED = 2000  # slots that a sum is made of, where they should have been rolled up by now
_BATCH = 500  # ticks looked up by one statement
_END = datetime.max.replace(tzinfo=UTC)
_MOVED = timedelta(days=1)  # decisions so long before a range tell where VMs were


def read_periods(
    session: Session,
    application: ApplicationRow,
    since: datetime,
    until: datetime,
    period_s: float,
    slot_length: timedelta,
    min_samples: int,
    now: datetime,
) -> list[Period]:
    """Response times from ``since`` until before ``until``, oldest first, in periods of ``period_s``.

    That is 3600, 60 or a slot; ``since`` is the begin of such a period. What is not rolled up yet comes in finer ones,
    and of very much of it, as just after an upgrade, only the newest. So does what is not over ``now``: it was rolled
    up by a clock that was ahead.
    """
    periods: list[Period] = []
    for length_s in (HOUR_S, MINUTE_S):
        if length_s > period_s or period_s < MINUTE_S:
            continue
        query = select(RollupRow).where(
            RollupRow.application_id == application.id,
            RollupRow.length_s == int(length_s),
            RollupRow.start >= since,
            RollupRow.start < until,
            RollupRow.start <= now - timedelta(seconds=length_s),
        )
        periods += [period_of(application.name, row) for row in session.scalars(query.order_by(RollupRow.start))]
        if periods:
            since = datetime.fromtimestamp(periods[-1].window.end_s, UTC)
    return periods + _judged(session, application, since, until, slot_length, min_samples)


def read_longest(
    session: Session,
    application: ApplicationRow,
    since: datetime,
    until: datetime,
    slot_length: timedelta,
    min_samples: int,
    lengths_s: Sequence[float] = (HOUR_S, MINUTE_S),
) -> list[Period]:
    """Response times from ``since`` until before ``until``, oldest first, in the fewest periods there are: for totals.

    Those are hours, and before and after them minutes, and slots. Where very many slots are not rolled up yet, as just
    after an upgrade, only the newest are read.
    """
    if since >= until:
        return []
    if not lengths_s:
        return _judged(session, application, since, until, slot_length, min_samples, _MOST_UNROLLED)
    length_s, *shorter_s = lengths_s
    query = select(RollupRow).where(
        RollupRow.application_id == application.id,
        RollupRow.length_s == int(length_s),
        RollupRow.start.between(since, until - timedelta(seconds=length_s)),
    )
    rows = session.scalars(query.order_by(RollupRow.start)).all()

    def shorter(begin: datetime, end: datetime) -> list[Period]:
        return read_longest(session, application, begin, end, slot_length, min_samples, shorter_s)

    if not rows:
        return shorter(since, until)
    rolled = [period_of(application.name, row) for row in rows]
    return [
        *shorter(since, rows[0].start),
        *rolled,
        *shorter(rows[-1].start + timedelta(seconds=length_s), until),
    ]


def latest_violation(
    session: Session,
    application: ApplicationRow,
    until: datetime,
    within: timedelta,
    slot_length: timedelta,
    min_samples: int,
) -> Span | None:
    """The latest violation that began in the time ``within`` before ``until``; None without any."""
    since = until - within
    missed = select(RollupRow).where(
        RollupRow.application_id == application.id,
        RollupRow.length_s == int(MINUTE_S),
        RollupRow.start.between(since, until),
    )
    newest = session.scalars(missed.order_by(RollupRow.start.desc()).limit(1)).one_or_none()
    rolled = since if newest is None else newest.start + timedelta(seconds=newest.length_s)
    periods = _judged(session, application, rolled, until, slot_length, min_samples)
    spans = joined(span for period in periods for span in period.violations)
    if spans:
        return spans[-1]
    # Of the minute in which ``until`` lies, the violations may all have begun later.
    bad = session.scalars(missed.where(RollupRow.missed > 0).order_by(RollupRow.start.desc()).limit(2))
    violations = (span for row in bad for span in reversed(period_of(application.name, row).violations))
    return next((span for span in violations if span.start_s < until.timestamp()), None)


def first_measured(session: Session, application: ApplicationRow) -> datetime | None:
    """The begin of the oldest slot, minute or hour that is kept of an application, the finest there is of that time."""
    rolled = select(func.min(RollupRow.start)).where(RollupRow.application_id == application.id)
    slots = select(func.min(WindowRow.slot)).where(WindowRow.application_id == application.id)
    queries = (slots, *(rolled.where(RollupRow.length_s == int(length_s)) for length_s in (MINUTE_S, HOUR_S)))
    moments = [first for first in map(session.scalar, queries) if first is not None]
    return next((first for first in moments if first < min(moments) + timedelta(seconds=HOUR_S)), None)


def windows_at(
    session: Session, places: Collection[tuple[int, datetime]], names: dict[int, str]
) -> dict[tuple[int, datetime], Window]:
    """The windows of slots, given by row number of the application and begin, merged over all origins."""
    parts: dict[tuple[int, datetime], list[Window]] = {}
    wanted = sorted(places)
    for first in range(0, len(wanted), _BATCH):
        some = wanted[first : first + _BATCH]
        slots = {slot for _, slot in some}
        query = select(WindowRow).where(
            WindowRow.application_id.in_({number for number, _ in some}), WindowRow.slot.in_(slots)
        )
        for row in session.scalars(query):
            parts.setdefault((row.application_id, row.slot), []).append(window_of(names[row.application_id], row))
    return {place: merge(windows) for place, windows in parts.items() if place in places}


def newest_ticks(session: Session, host: str, since: datetime, until: datetime, most: int) -> list[TickRecord]:
    """The newest ticks of a host from ``since`` until before ``until``, at most so many, oldest first."""
    return [tick_of(row.body) for row in reversed(list_ticks(session, host, since, until, most))]


def hosts_in(session: Session, application: ApplicationRow, vms: Collection[str], since: datetime) -> list[str]:
    """The hosts of an application, and those where VMs are or, by decisions from a day before ``since`` on, were."""
    moved = select(DecisionRow.host).where(DecisionRow.vm.in_(vms), DecisionRow.at >= since - _MOVED).distinct()
    seen = select(HostRow.name).join(VmStatusRow, VmStatusRow.host_id == HostRow.id).where(VmStatusRow.vm.in_(vms))
    [now] = hosts_of(session, {application.id: application.name}).values()
    return sorted(now.union(*map(session.scalars, (moved, seen))))


def vm_classes(session: Session) -> dict[str, VmClass]:
    """The classes of all VMs by name, also of those that were removed, as far as the audit knows them."""
    gone = select(AuditRow.object, AuditRow.before).where(AuditRow.action == "vm.delete").order_by(AuditRow.id)
    removed = {row[0]: VmClass(row[1]["class"]) for row in session.execute(gone) if row[1]}
    return removed | {row[0]: row[1] for row in session.execute(select(VmRow.name, VmRow.vm_class))}


@dataclass(frozen=True, slots=True)
class StoryPlace:
    """A place in the order of the story: newest first, then by host and VM, that of the host itself first."""

    at: datetime
    host: str
    vm: str


def list_by_tick(
    session: Session,
    wanted: RecordFilter,
    eras: Sequence[Era] | None,
    outcome: OutcomeKind | None,
    after: StoryPlace | None,
    limit: int,
    latest: datetime = _END,
) -> list[list[DecisionRow]]:
    """At most ``limit`` groups of decisions, those of one tick about one VM, that come after a place.

    ``eras`` and ``outcome`` None mean all; else those of the VMs of each era, oldest first. The decisions of a group
    are in the order in which they were made. What is dated ``latest`` or later, by a clock that was ahead, comes after
    all else.
    """
    query = select(DecisionRow)
    if wanted.host is not None:
        query = query.where(DecisionRow.host == wanted.host)
    if wanted.vm is not None:
        query = query.where(DecisionRow.vm == wanted.vm)
    if eras is not None:
        begins = (None, *(era.until for era in eras))
        query = query.where(or_(*(_in_era(era, begin) for era, begin in zip(eras, begins, strict=False))))
    if outcome is not None:
        query = query.where(DecisionRow.outcome == outcome)
    groups: list[list[DecisionRow]] = []
    if after is None or after.at < latest:
        until = latest if wanted.until is None else min(wanted.until, latest)
        groups = _by_tick(session, newest_first(query, DecisionRow, wanted.since, until, None), after, limit)
        after = None
    if len(groups) < limit and latest < _END:
        since = latest if wanted.since is None else max(wanted.since, latest)
        ahead = newest_first(query, DecisionRow, since, wanted.until, None)
        groups += _by_tick(session, ahead, after, limit - len(groups))
    return groups


def _by_tick(
    session: Session, ordered: Select[DecisionRow], after: StoryPlace | None, limit: int
) -> list[list[DecisionRow]]:
    if after is not None:
        ordered = ordered.where(DecisionRow.at <= after.at)
    found: list[list[DecisionRow]] = []
    rows = session.scalars(ordered.execution_options(yield_per=_BATCH))
    for at, of_tick in groupby(rows, lambda row: row.at):
        groups: dict[tuple[str, str], list[DecisionRow]] = {}
        for row in of_tick:
            groups.setdefault((row.host, row.vm or ""), []).append(row)
        for place, group in sorted(groups.items()):
            if after is None or at < after.at or place > (after.host, after.vm):
                found.append(group[::-1])
        if len(found) >= limit:
            break
    rows.close()
    return found[:limit]


def _judged(
    session: Session,
    application: ApplicationRow,
    since: datetime,
    until: datetime,
    length: timedelta,
    min_samples: int,
    most: int = _MOST_SLOTS,
) -> list[Period]:
    """The slots of an application, oldest first, each judged by the SLA that was in force when it began."""
    past, slot_s = read_past(session, since, application.name), length.total_seconds()
    slots = reversed(list_windows(session, application, since, until, most))
    return [judge(window, slot.timestamp(), slot_s, past.sla(application, slot), min_samples) for slot, window in slots]


def _in_era(era: Era, begin: datetime | None) -> ColumnElement[bool]:
    times: list[ColumnElement[bool]] = [DecisionRow.vm.in_(era.vms)]
    times += [] if begin is None else [DecisionRow.at >= begin]
    times += [] if era.until is None else [DecisionRow.at < era.until]
    return and_(*times)
