"""The job that keeps interference tables up to date, from the history of applications and hosts."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.api.vm_demand import pcpus_of
from manager.control.budget import MINUTE_S, Period, Steps, by_step
from manager.control.host_type import host_type
from manager.control.interference_minutes import BatchLimit, HostPast, SortedMinutes, kept_minutes, measured_minutes
from manager.control.interference_table import MeasuredMinute, interference_table
from manager.control.series import host_lines
from manager.model.fields import MAX_TEXT, adapter_of, timestamp
from manager.model.host import Capabilities
from manager.model.registration import Application, Sla, VmClass
from manager.protocol.report import VmStatus
from manager.store.applications import applications_of
from manager.store.history import MeasuredPast, classified, hosts_of_each, minutes_of_each
from manager.store.interference_tables import (
    Due,
    InterferenceLook,
    MadeTables,
    count_with_sla,
    due_applications,
    looks_of,
    measured_of,
    put_tables,
)
from manager.store.jobs import Run
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import find
from manager.store.source_rows import hosts_of
from manager.store.tick_rollups import read_ticks
from manager.store.vm_lists import VmFilter, list_vms, vcpus_of

FIRST = timedelta(days=2)
"""Of so long a history a table is made at first."""
AGAIN = timedelta(hours=1)
"""A table is brought up to date so often."""
SMALL_AGAIN = timedelta(minutes=5)
"""And where there is none yet, or a small one, so often."""
IDLE_AGAIN = timedelta(hours=6)
"""And where nothing was measured, so often: minutes that are too old go, and other sizes of VMs are noticed."""
OVERLAP = timedelta(hours=1)
"""So much is read again each time: agents that were away report late."""
MAX_LOOK_S = 20.0
"""When a run has taken so long no other application is looked at in it."""
_ROUND_RUNS = 60
"""A round of all applications takes so many runs at least: none of them keeps requests waiting for long."""
_FEW = 100
"""So many are looked at in one run in any case."""
_TOGETHER = 20  # applications that are looked at within one transaction
_ALL = 2**31 - 1

log = logging.getLogger(__name__)


class InterferenceTables:
    """Keeps the tables of all applications that have an SLA. Has no state."""

    def __init__(self, context: ManagerContext) -> None:
        self._context = context

    def look(self, run: Run) -> int:
        """Bring tables up to date that are due, the oldest first; returns how many were. Raises DatabaseUnavailable.

        Applications of one host are looked at together: so its history is read once. Hosts with few of them share a
        group: a statement takes about as long for twenty applications as for one.
        """
        until_s = monotonic() + MAX_LOOK_S
        now = run.now
        due = Due(now - AGAIN, now - SMALL_AGAIN, now - IDLE_AGAIN, measured_since=now - AGAIN - OVERLAP)
        with self._context.database.reading() as session:
            names = due_applications(session, due, max(_FEW, math.ceil(count_with_sla(session) / _ROUND_RUNS)))
            groups = _by_host(session, names)
        count = 0
        for group in groups:
            if run.stopped() or monotonic() > until_s:
                break
            count += self._update(group, now)
        return count

    def _update(self, names: Sequence[str], now: datetime) -> int:
        with self._context.database.reading() as session:
            known = _known(session, names)
            wanted = [_wanted(each, self._step_s, now) for each in known]
            pasts = _HostPasts(session, self._context, _hosts(session, wanted))
            read = self._read(session, wanted)
            made = [self._made(each, read[each.row.id], pasts, now) for each in wanted]
        with self._context.database.writing() as session:
            count = put_tables(session, made)
        log.debug("%s: %d interference tables", ", ".join(names), count)
        return count

    @property
    def _step_s(self) -> float:
        """A minute; where slots are longer, as many as one of these takes."""
        return max(math.ceil(self._context.slot_s / MINUTE_S), 1) * MINUTE_S

    def _read(self, session: Session, wanted: Sequence[_Wanted]) -> dict[int, list[Period]]:
        """What is to be read of applications, by row number; they mostly are as far as each other."""
        context, now = self._context, self._context.now()
        pasts: dict[tuple[datetime, datetime], list[MeasuredPast]] = {}
        for each in wanted:
            past = MeasuredPast(session, each.row, context.slot_length, context.min_samples)
            pasts.setdefault((each.since, each.until), []).append(past)
        read: dict[int, list[Period]] = {}
        for span, alike in pasts.items():
            read |= minutes_of_each(session, alike, *span, now)
        return read

    def _made(self, wanted: _Wanted, read: Sequence[Period], pasts: _HostPasts, now: datetime) -> MadeTables:
        found = self._measured(wanted, read, pasts)
        tables = {}
        for kind in wanted.kept.keys() | found.by_type.keys():
            minutes = kept_minutes([*wanted.kept.get(kind, ()), *found.by_type.get(kind, ())], now.timestamp())
            if minutes:
                tables[kind] = minutes, interference_table(minutes, wanted.sla.response_time_ms)
        why = _why(found.left_out, wanted.until - wanted.since)
        look = InterferenceLook(now, wanted.until, wanted.sla, wanted.size, wanted.size_since, why)
        return MadeTables(wanted.row.id, look, tables)

    def _measured(self, wanted: _Wanted, read: Sequence[Period], pasts: _HostPasts) -> SortedMinutes:
        context, row, vms = self._context, wanted.row, wanted.application.vms
        steps, unmeasured = _measured_steps(read, wanted.since.timestamp(), wanted.until.timestamp(), self._step_s)
        if steps.count < 1:
            return measured_minutes((), (), vms, wanted.sla.percentile, unmeasured)
        periods = by_step(row.name, read, steps, context.clock(), context.slot_s)
        return measured_minutes(periods, pasts.of(row, steps), vms, wanted.sla.percentile, unmeasured)


@dataclass(frozen=True, slots=True)
class _Known:
    """An application that is due, and what is known of it: the last look, and minutes by type of host.

    ``size``: the vCPUs of its VMs by tier, such as ``web 4+4, db 8``; empty where one of them does not run.
    """

    row: ApplicationRow
    sla: Sla
    application: Application
    before: InterferenceLook | None
    kept: Mapping[str, Sequence[MeasuredMinute]]
    size: str


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What is to be read of an application, in whole steps, and what goes on to count."""

    row: ApplicationRow
    sla: Sla
    application: Application
    kept: Mapping[str, Sequence[MeasuredMinute]]
    size: str
    size_since: datetime | None
    since: datetime
    until: datetime


class _HostPasts:
    """The past of hosts, each read once for all applications that look at the same steps. Not thread-safe."""

    def __init__(self, session: Session, context: ManagerContext, hosts: Mapping[int, Sequence[str]]) -> None:
        """``hosts``: where applications (row numbers) may have run."""
        self._session, self._context, self._hosts = session, context, hosts
        self._read: dict[tuple[str, Steps], HostPast | None] = {}

    def of(self, application: ApplicationRow, steps: Steps) -> list[HostPast]:
        """The hosts of an application over these steps, but those that are gone or whose agent never reported."""
        found = [self._host(name, steps) for name in self._hosts[application.id]]
        return [host for host in found if host is not None]

    def _host(self, name: str, steps: Steps) -> HostPast | None:
        if (name, steps) not in self._read:
            self._read[name, steps] = self._read_host(name, steps)
        return self._read[name, steps]

    def _read_host(self, name: str, steps: Steps) -> HostPast | None:
        host = find(self._session, HostRow, name)
        if host is None or host.capabilities is None or not pcpus_of(host):
            return None
        late_s = self._context.slot_s / 2
        since, until = (timestamp(time_s + late_s) for time_s in (steps.first_s, steps.end_s))
        ticks, classes = classified(self._session, read_ticks(self._session, name, since, until, 2 * steps.count))
        _, lines = host_lines(name, ticks, classes, steps, late_s)
        limits = {
            vm["name"]: BatchLimit(
                VmStatus.model_validate_json(vm["status"]).vcpus, vm["batch"].alone_pcpus if vm["batch"] else None
            )
            for vm in list_vms(self._session, VmFilter(host=name, vm_class=VmClass.BATCH), None, _ALL)
            if vm["status"] is not None
        }
        return HostPast(type_of(host), pcpus_of(host), lines, limits)


def type_of(host: HostRow) -> str:
    """The type of a host whose agent has reported."""
    return host_type(host.name, adapter_of(Capabilities).validate_python(host.capabilities))


def _measured_steps(periods: Sequence[Period], since_s: float, until_s: float, step_s: float) -> tuple[Steps, int]:
    """The steps from the first of these periods on, oldest first, and how many there are before it.

    An application that was registered a minute ago has two days of nothing, in which nobody needs to look at its host.
    """
    before_s = (periods[0].start_s if periods else until_s) - since_s
    unmeasured = max(math.floor(before_s / step_s), 0)
    first_s = since_s + unmeasured * step_s
    return Steps(first_s, step_s, round((until_s - first_s) / step_s), MINUTE_S), unmeasured


def _by_host(session: Session, names: Sequence[str]) -> list[list[str]]:
    """Applications in groups that are looked at together, those of a host in one. That of the first one is first."""
    numbers = session.execute(select(ApplicationRow.id, ApplicationRow.name).where(ApplicationRow.name.in_(names)))
    hosts = hosts_of(session, {row.id: row.name for row in numbers})
    of_host: dict[str, list[str]] = {}
    for name in names:
        of_host.setdefault(min(hosts.get(name, ()), default=""), []).append(name)
    parts = (group[at : at + _TOGETHER] for group in of_host.values() for at in range(0, len(group), _TOGETHER))
    groups: list[list[str]] = []
    for part in parts:
        if groups and len(groups[-1]) + len(part) <= _TOGETHER:
            groups[-1] += part
        else:
            groups.append(part)
    return groups


def _known(session: Session, names: Sequence[str]) -> list[_Known]:
    """Those of the applications that are there and have an SLA."""
    rows = session.scalars(select(ApplicationRow).where(ApplicationRow.name.in_(names)).order_by(ApplicationRow.id))
    slas = {row: row.sla for row in rows}
    numbers = [row.id for row, sla in slas.items() if sla is not None]
    applications, looks = applications_of(session, list(slas)), looks_of(session, numbers)
    measured = measured_of(session, numbers)
    vcpus = vcpus_of(session, {vm for application in applications.values() for vm in application.vms})
    return [
        _Known(
            row,
            sla,
            applications[row.name],
            looks.get(row.id),
            measured[row.id],
            _size(applications[row.name], vcpus),
        )
        for row, sla in slas.items()
        if sla is not None
    ]


def _wanted(known: _Known, step_s: float, now: datetime) -> _Wanted:
    """What goes on to count of what is known, and what is to be read: all that is over."""
    before, size = known.before, known.size
    size_since = before.size_since if before else None
    if before is not None:
        size = size or before.size
    if before is not None and before.size not in {"", size}:
        before, size_since = None, now
    elif before is not None and before.sla.percentile != known.sla.percentile:
        before = None
    kept = known.kept if before is not None else {}
    until_s = now.timestamp() // step_s * step_s
    since_s = until_s - FIRST.total_seconds()
    if before is not None:
        since_s = max(since_s, (before.until - OVERLAP).timestamp() // step_s * step_s)
    if size_since is not None:
        since_s = max(since_s, math.ceil(size_since.timestamp() / step_s) * step_s)
    since, until = timestamp(min(since_s, until_s)), timestamp(until_s)
    return _Wanted(known.row, known.sla, known.application, kept, size, size_since, since, until)


def _hosts(session: Session, wanted: Sequence[_Wanted]) -> dict[int, list[str]]:
    """Where each of the applications (row numbers) may have run."""
    since = min((each.since for each in wanted), default=None)
    if since is None:
        return {}
    return hosts_of_each(session, {each.row.id: each.application.vms for each in wanted}, since)


def _size(application: Application, vcpus: Mapping[str, int]) -> str:
    if not application.vms <= vcpus.keys():
        return ""
    tiers = ((tier.name, sorted(vcpus[vm] for vm in tier.vms)) for tier in application.tiers if tier.vms)
    return ", ".join(f"{name} {'+'.join(map(str, numbers))}" for name, numbers in tiers)


def _why(left_out: Mapping[str, int], length: timedelta) -> str:
    """Which minutes did not count of those that were read last."""
    if not left_out:
        return ""
    counts = sorted(left_out.items(), key=lambda each: -each[1])
    parts = "; ".join(f"{reason}: {count:,}" for reason, count in counts)
    read = f"{length.total_seconds() / MINUTE_S:,.0f}"
    return f"of the last {read} minutes {sum(left_out.values()):,} did not count ({parts})"[:MAX_TEXT]
