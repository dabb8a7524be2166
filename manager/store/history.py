"""What happened over a range of time: response times by slot, minute or hour, ticks, and decisions by tick."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from manager.control.budget import HOUR_S, MINUTE_S, Period, Violation, joined, judge
from manager.model.fields import Moment, Text
from manager.model.records import TickRecord
from manager.model.registration import VmClass
from manager.model.window import Window
from manager.store.access_models import AuditRow
from manager.store.decision_packs import DecisionFilter, StoredDecision, deciding_hosts, read_decisions
from manager.store.event_records import END, ranges
from manager.store.models import (
    ApplicationRow,
    HostRow,
    RollupRow,
    VmRow,
    VmStatusRow,
    WindowRow,
)
from manager.store.past_registrations import Past, read_past
from manager.store.rollups import PERIOD_COLUMNS, period_of
from manager.store.row_writes import is_one_of
from manager.store.source_rows import hosts_of
from manager.store.tick_packs import list_ticks
from manager.store.tick_rollups import tick_of
from manager.store.window_minutes import oldest_of_minutes
from manager.store.window_packs import oldest_packed
from manager.store.windows import list_windows, windows_of_each

MAX_TICKS = 1500
"""Most ticks that are read for one answer: an hour at 2.4 s."""

_MOST_SLOTS = 4000  # MAX_PERIODS in whole steps; of more that are not rolled up yet the newest are read
_SOON_ROLLED_UP = timedelta(minutes=15)  # minutes are rolled up when they have been over for half of that
_MOST_UNROLLED = 2000  # slots that a sum is made of, where they should have been rolled up by now
_STEP = timedelta(microseconds=1)
_MOVED = timedelta(days=1)  # decisions so long before a range tell where VMs were


@dataclass(frozen=True, slots=True)
class MeasuredPast:
    """The stored response times of an application, in slots of ``slot_length`` of which ``min_samples`` are judged."""

    session: Session
    application: ApplicationRow
    slot_length: timedelta
    min_samples: int

    def periods(self, since: datetime, until: datetime, period_s: float, now: datetime) -> list[Period]:
        """Response times from ``since`` until before ``until``, oldest first, in periods of ``period_s``.

        That is 3600, 60 or a slot; ``since`` is the start of such a period. What is not rolled up yet comes in finer
        ones, and of very much of it, as just after an upgrade, only the newest. So does what is not over ``now``: it
        was rolled up by a clock that was ahead.
        """
        periods: list[Period] = []
        for length_s in (HOUR_S, MINUTE_S):
            if period_s >= MINUTE_S and length_s <= period_s:
                over = RollupRow.start <= now - timedelta(seconds=length_s)
                periods += self._rolled(length_s, RollupRow.start >= since, RollupRow.start < until, over)
                since = _time(periods[-1].window.end_s) if periods else since
        return periods + self._judged(since, until)

    def fewest_periods(
        self, since: datetime, until: datetime, lengths_s: Sequence[float] = (HOUR_S, MINUTE_S)
    ) -> list[Period]:
        """Response times from ``since`` until before ``until``, oldest first, in as few periods as there are.

        Those are hours, and before and after them minutes, and slots. Where very many slots are not rolled up yet, as
        just after an upgrade, only the newest are read.
        """
        if since >= until:
            return []
        if not lengths_s:
            return self._judged(since, until, _MOST_UNROLLED)
        length_s, *shorter_s = lengths_s
        rolled = self._rolled(length_s, RollupRow.start.between(since, until - timedelta(seconds=length_s)))
        if not rolled:
            return self.fewest_periods(since, until, shorter_s)
        first, last = _time(rolled[0].start_s), _time(rolled[-1].window.end_s)
        return [
            *self.fewest_periods(since, first, shorter_s),
            *rolled,
            *self.fewest_periods(last, until, shorter_s),
        ]

    def latest_violation(self, until: datetime, within: timedelta) -> Violation | None:
        """The latest violation that began in the time ``within`` before ``until``; None without any."""
        minutes = self._query(MINUTE_S, RollupRow.start.between(until - within, until)).order_by(RollupRow.start.desc())
        newest = self.session.execute(minutes.limit(1)).one_or_none()
        rolled = newest.start + timedelta(seconds=newest.length_s) if newest else until - within
        spans = joined(span for period in self._judged(rolled, until) for span in period.violations)
        if spans:
            return spans[-1]
        # Of the minute in which ``until`` lies, the violations may all have begun later.
        violated = self.session.execute(minutes.where(RollupRow.violated > 0).limit(2))
        violations = (span for row in violated for span in reversed(period_of("", row).violations))
        return next((span for span in violations if span.start_s < until.timestamp()), None)

    def _query(self, length_s: float, *conditions: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
        of_application = RollupRow.application_id == self.application.id
        return select(*PERIOD_COLUMNS).where(of_application, RollupRow.length_s == int(length_s), *conditions)

    def _rolled(self, length_s: float, *conditions: ColumnElement[bool]) -> list[Period]:
        rows = self.session.execute(self._query(length_s, *conditions).order_by(RollupRow.start))
        return [period_of(self.application.name, row) for row in rows]

    def _judged(self, since: datetime, until: datetime, most: int = _MOST_SLOTS) -> list[Period]:
        """The slots of an application, oldest first, each judged by the SLA that was in force when it began."""
        past = read_past(self.session, since, [self.application.name])
        return self.judged(past, reversed(list_windows(self.session, self.application, since, until, most)))

    def judged(self, past: Past, windows: Iterable[tuple[datetime, Window]]) -> list[Period]:
        """Windows with the starts of their slots, each judged by the SLA that was in force then."""
        slot_s = self.slot_length.total_seconds()
        return [
            judge(window, slot.timestamp(), slot_s, past.sla(self.application, slot), self.min_samples)
            for slot, window in windows
        ]


def minutes_of_each(
    session: Session, pasts: Sequence[MeasuredPast], since: datetime, until: datetime, now: datetime
) -> dict[int, list[Period]]:
    """``MeasuredPast.periods`` of minutes for several applications at once, by row number."""
    rows = {past.application.id: past.application for past in pasts}
    of_minutes = RollupRow.length_s == int(MINUTE_S), is_one_of(session, RollupRow.application_id, sorted(rows))
    over = RollupRow.start <= now - timedelta(seconds=MINUTE_S)
    query = select(RollupRow.application_id, *PERIOD_COLUMNS).where(
        *of_minutes, RollupRow.start >= since, RollupRow.start < until, over
    )
    periods: dict[int, list[Period]] = {number: [] for number in rows}
    for row in session.execute(query.order_by(RollupRow.application_id, RollupRow.start)):
        periods[row.application_id].append(period_of(rows[row.application_id].name, row))
    begins = {number: _time(minutes[-1].window.end_s) if minutes else since for number, minutes in periods.items()}
    # Windows of the others, which should have been rolled up by now, are not read together: there are too many.
    few = {number: begin for number, begin in begins.items() if until - begin <= _SOON_ROLLED_UP}
    names = {number: rows[number].name for number in few}
    slots = windows_of_each(session, few, until, names)
    changes = read_past(session, min(few.values(), default=until), names.values())
    for past in pasts:
        number = past.application.id
        if number in few:
            periods[number] += past.judged(changes, slots[number])
        else:
            periods[number] = past.periods(since, until, MINUTE_S, now)
    return periods


def first_measured(session: Session, application: ApplicationRow) -> datetime | None:
    """The start of the oldest slot, minute or hour that is kept of an application, the finest there is of that time."""
    rolled = select(func.min(RollupRow.start)).where(RollupRow.application_id == application.id)
    slots = select(func.min(WindowRow.slot)).where(WindowRow.application_id == application.id)
    younger = session.scalar(slots), oldest_of_minutes(session, application.id)
    slot = min(filter(None, (*younger, oldest_packed(session, application.id))), default=None)
    lengths = (rolled.where(RollupRow.length_s == int(length_s)) for length_s in (MINUTE_S, HOUR_S))
    moments = [first for first in (slot, *map(session.scalar, lengths)) if first is not None]
    return next((first for first in moments if first < min(moments) + timedelta(seconds=HOUR_S)), None)


def newest_ticks(session: Session, host: str, since: datetime, until: datetime, most: int) -> list[TickRecord]:
    """The newest ticks of a host from ``since`` until before ``until``, at most so many, oldest first."""
    return [tick_of(row.body) for row in reversed(list_ticks(session, host, since, until, most))]


def hosts_in(session: Session, application: ApplicationRow, vms: Collection[str], since: datetime) -> list[str]:
    """The hosts of an application, and those where VMs are or, by decisions from a day before ``since`` on, were."""
    return hosts_of_each(session, {application.id: vms}, since)[application.id]


def hosts_of_each(session: Session, vms: Mapping[int, Collection[str]], since: datetime) -> dict[int, list[str]]:
    """``hosts_in`` for applications at once: their row numbers with the VMs of each."""
    every = {vm for of_application in vms.values() for vm in of_application}
    seen = select(VmStatusRow.vm, HostRow.name).join(HostRow, VmStatusRow.host_id == HostRow.id)
    places = {tuple(row) for row in session.execute(seen.where(VmStatusRow.vm.in_(every)))}
    hosts: dict[str, set[str]] = {}
    for vm, host in places.union(deciding_hosts(session, every, since - _MOVED)):
        hosts.setdefault(vm, set()).add(host)
    now = hosts_of(session, {number: str(number) for number in vms})
    return {
        number: sorted(now[str(number)].union(*(hosts.get(vm, ()) for vm in of_application)))
        for number, of_application in vms.items()
    }


def vm_classes(session: Session, names: Collection[str]) -> dict[str, VmClass]:
    """The classes of these VMs by name, also of those that were removed, as far as the audit knows them."""
    registered = select(VmRow.name, VmRow.vm_class).where(VmRow.name.in_(names))
    classes = {row[0]: row[1] for row in session.execute(registered)} if names else {}
    gone = [name for name in names if name not in classes]
    if not gone:
        return classes
    deleted = AuditRow.action == "vm.delete", AuditRow.object_kind == "vm", AuditRow.object.in_(gone)
    audited = session.execute(select(AuditRow.object, AuditRow.before).where(*deleted).order_by(AuditRow.id))
    return classes | {row[0]: VmClass(row[1]["class"]) for row in audited if row[1]}


def classified(session: Session, ticks: Iterable[TickRecord]) -> tuple[Iterator[TickRecord], Mapping[str, VmClass]]:
    """The ticks, and the classes of the VMs in those that were passed on so far: many ticks are never held together."""
    classes: dict[str, VmClass] = {}

    def passed() -> Iterator[TickRecord]:
        asked: set[str] = set()
        for tick in ticks:
            if new := {vm.vm for vm in tick.vms} - asked:
                asked |= new
                classes.update(vm_classes(session, new))
            yield tick

    return passed(), classes


@dataclass(frozen=True, slots=True)
class StoryPlace:
    """A place in the order of the story: newest first, then by host and VM, that of the host itself first."""

    at: Moment
    host: Text
    vm: Text


def list_by_tick(
    session: Session, wanted: DecisionFilter, after: StoryPlace | None, limit: int, latest: datetime = END
) -> list[list[StoredDecision]]:
    """At most ``limit`` groups of decisions, those of one tick about one VM, that come after a place.

    The decisions of a group are in the order in which they were made, the groups in ``ranges``.
    """
    groups: list[list[StoredDecision]] = []
    for begin, end, is_after in ranges(wanted.since, wanted.until, latest, after.at if after else None):
        if len(groups) < limit:
            place = after if is_after else None
            before = end if place is None else min(end, place.at + _STEP)
            groups += _by_tick(read_decisions(session, wanted, begin, before), place, limit - len(groups))
    return groups


def _by_tick(decisions: Iterable[StoredDecision], after: StoryPlace | None, limit: int) -> list[list[StoredDecision]]:
    listed: list[list[StoredDecision]] = []
    for at, of_tick in groupby(decisions, lambda decision: decision.at):
        groups: dict[tuple[str, str], list[StoredDecision]] = {}
        for decision in of_tick:
            groups.setdefault((decision.host, decision.vm or ""), []).append(decision)
        for place, group in sorted(groups.items()):
            if after is None or at < after.at or place > (after.host, after.vm):
                listed.append(group[::-1])
        if len(listed) >= limit:
            break
    return listed[:limit]


def _time(time_s: float) -> datetime:
    return datetime.fromtimestamp(time_s, UTC)
