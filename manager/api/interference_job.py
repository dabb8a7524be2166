"""The job that keeps interference tables up to date, from the history of applications and hosts."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from time import monotonic

from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.api.vm_demand import pcpus_of
from manager.control.budget import MINUTE_S, Period, Steps, by_step
from manager.control.host_type import host_type
from manager.control.interference_minutes import BatchLimit, HostPast, SortedMinutes, kept_minutes, measured_minutes
from manager.control.interference_table import interference_table
from manager.control.series import host_lines
from manager.model.fields import MAX_TEXT, adapter_of, timestamp
from manager.model.host import Capabilities
from manager.model.registration import Application, VmClass
from manager.protocol.report import VmStatus
from manager.store.applications import applications_of
from manager.store.history import MeasuredPast, classified, hosts_in
from manager.store.interference_tables import InterferenceLook, due_applications, look_of, measured_of, put_tables
from manager.store.jobs import Run
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import find
from manager.store.tick_rollups import read_ticks
from manager.store.vms import VmFilter, list_vms

FIRST = timedelta(days=2)
"""Of so long a history a table is made at first."""
AGAIN = timedelta(minutes=30)
"""A table is brought up to date so often."""
SMALL_AGAIN = timedelta(minutes=5)
"""And where there is none yet, or a small one, so often."""
OVERLAP = timedelta(hours=1)
"""So much is read again each time: agents that were away report late."""
MAX_LOOK_S = 20.0
"""When a run has taken so long no other application is looked at in it."""
_MOST = 500
_ALL = 2**31 - 1

log = logging.getLogger(__name__)


class InterferenceTables:
    """Keeps the tables of all applications that have an SLA. Has no state."""

    def __init__(self, context: ManagerContext) -> None:
        self._context = context

    def look(self, run: Run) -> int:
        """Bring tables up to date that are due, the oldest first; returns how many were. Raises DatabaseUnavailable."""
        until_s = monotonic() + MAX_LOOK_S
        with self._context.database.reading() as session:
            names = due_applications(session, run.now - AGAIN, run.now - SMALL_AGAIN, _MOST)
        count = 0
        for name in names:
            if run.stopped() or monotonic() > until_s:
                break
            count += self._update(name, run.now)
        return count

    def _update(self, name: str, now: datetime) -> int:
        with self._context.database.reading() as session:
            row = find(session, ApplicationRow, name)
            if row is None or row.sla is None:
                return 0
            sla, application = row.sla, applications_of(session, [row])[name]
            before = look_of(session, row)
            size, size_since = _size(session, application), before.size_since if before else None
            if before is not None:
                size = size or before.size
            if before is not None and before.size not in {"", size}:
                before, size_since = None, now
            elif before is not None and before.sla.percentile != sla.percentile:
                before = None
            since, until = _range(before, size_since, self._step_s, now)
            found = self._measured(session, row, application, sla.percentile, since, until)
            kept = measured_of(session, row) if before is not None else {}
        tables = {}
        for kind in kept.keys() | found.by_type.keys():
            minutes = kept_minutes([*kept.get(kind, ()), *found.by_type.get(kind, ())], now.timestamp())
            if minutes:
                tables[kind] = minutes, interference_table(minutes, sla.response_time_ms)
        look = InterferenceLook(now, until, sla, size, size_since, _why(found.left_out, until - since))
        with self._context.database.writing() as session:
            row = find(session, ApplicationRow, name)
            made = 0 if row is None else put_tables(session, row, look, tables)
        log.debug("%s: %d interference tables", name, made)
        return made

    @property
    def _step_s(self) -> float:
        """A minute; where slots are longer, as many as one of these takes."""
        return max(math.ceil(self._context.slot_s / MINUTE_S), 1) * MINUTE_S

    def _measured(
        self,
        session: Session,
        row: ApplicationRow,
        application: Application,
        percentile: float,
        since: datetime,
        until: datetime,
    ) -> SortedMinutes:
        context = self._context
        past = MeasuredPast(session, row, context.slot_length, context.min_samples)
        read = past.periods(since, until, MINUTE_S, context.now())
        steps, unmeasured = _measured_steps(read, since.timestamp(), until.timestamp(), self._step_s)
        if steps.count < 1:
            return measured_minutes((), (), application.vms, percentile, unmeasured)
        periods = by_step(row.name, read, steps, context.clock())
        hosts = [
            of_host
            for name in hosts_in(session, row, application.vms, since)
            if (of_host := self._host(session, name, steps)) is not None
        ]
        return measured_minutes(periods, hosts, application.vms, percentile, unmeasured)

    def _host(self, session: Session, name: str, steps: Steps) -> HostPast | None:
        """A host over these steps; None where it is gone, or its agent never reported."""
        host = find(session, HostRow, name)
        if host is None or host.capabilities is None or not pcpus_of(host):
            return None
        late_s = self._context.slot_s / 2
        since, until = (timestamp(time_s + late_s) for time_s in (steps.first_s, steps.end_s))
        ticks, classes = classified(session, read_ticks(session, name, since, until, 2 * steps.count))
        _, lines = host_lines(name, ticks, classes, steps, late_s)
        limits = {
            vm["name"]: BatchLimit(
                VmStatus.model_validate_json(vm["status"]).vcpus, vm["batch"].alone_pcpus if vm["batch"] else None
            )
            for vm in list_vms(session, VmFilter(host=name, vm_class=VmClass.BATCH), None, _ALL)
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


def _range(
    before: InterferenceLook | None, size_since: datetime | None, step_s: float, now: datetime
) -> tuple[datetime, datetime]:
    """What is to be read, in whole steps: all that is over."""
    until_s = now.timestamp() // step_s * step_s
    since_s = until_s - FIRST.total_seconds()
    if before is not None:
        since_s = max(since_s, (before.until - OVERLAP).timestamp() // step_s * step_s)
    if size_since is not None:
        since_s = max(since_s, math.ceil(size_since.timestamp() / step_s) * step_s)
    return timestamp(min(since_s, until_s)), timestamp(until_s)


def _size(session: Session, application: Application) -> str:
    """The vCPUs of its VMs by tier, such as ``web 4+4, db 8``; empty where one of them does not run."""
    vcpus = {
        vm["name"]: VmStatus.model_validate_json(vm["status"]).vcpus
        for vm in list_vms(session, VmFilter(names=application.vms), None, _ALL)
        if vm["status"] is not None
    }
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
