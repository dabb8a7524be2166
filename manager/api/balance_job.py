"""The job that proposes migrations: which VM leaves a host whose SLAs are violated persistently, judged by twins."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from random import Random
from time import monotonic
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.api.history_routes import cause_now
from manager.api.vm_demand import pcpus_of, wanted_pcpus
from manager.api.what_if_routes import TWIN_EFFORT, recorded
from manager.control.balance import (
    BalancedHost,
    BalanceRules,
    LastingViolation,
    MovableVm,
    candidates,
    destinations,
    lasts,
    objections,
    resting,
    sources_of,
)
from manager.control.sla import sla_state, watched_percentile
from manager.errors import NotFound, TwinRefused
from manager.model.migration import MigrationUse, MovePrediction
from manager.model.registration import Mode, VmClass
from manager.model.units import percent
from manager.model.window import SlaState
from manager.protocol.report import VmStatus
from manager.sim.parallel import one_by_one
from manager.sim.twin import Twin, calibrate
from manager.sim.twin_move import predict_arriving, predict_leaving
from manager.store.history import MeasuredPast
from manager.store.jobs import Run
from manager.store.latest_glances import latest_glances
from manager.store.models import ApplicationRow, HostRow
from manager.store.proposals import Proposal, busy_hosts, past_migrations, propose
from manager.store.registrations import find
from manager.store.source_rows import hosts_of
from manager.store.vm_lists import VmFilter, list_vms

HISTORY = timedelta(minutes=30)
"""Of both hosts, from which their twins are made."""
MAX_PLAN_S = 60.0
"""Longest time that one search may have taken when another simulation begins."""
AGAIN = timedelta(minutes=5)
"""After a search without a result the same host is looked at again."""
_ALL = 2**31 - 1

TwinOf = Callable[[str, Callable[[], None]], Twin]
"""The twin of a host; the function is called after each simulation, and ends it by raising. Raises TwinRefused."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _FleetView:
    """All hosts by name, the violations that last, and what rests or is busy."""

    hosts: Mapping[str, BalancedHost]
    violations: Sequence[LastingViolation]
    rest: frozenset[str]
    busy: frozenset[str]


@dataclass(slots=True)
class _Twins:
    """The twins of one search, each made once, and none once the time is over."""

    make: TwinOf
    until_s: float
    made: dict[str, Twin | TwinRefused] = field(default_factory=dict)

    def of(self, host: str) -> Twin:
        """Raises TwinRefused."""
        if host not in self.made:
            try:
                self.made[host] = self.make(host, self.in_time)
            except TwinRefused as error:
                self.made[host] = error
        found = self.made[host]
        if isinstance(found, TwinRefused):
            raise found
        return found

    def in_time(self) -> None:
        """Raises TwinRefused once it takes too long."""
        if monotonic() > self.until_s:
            raise TwinRefused(f"it takes longer than {MAX_PLAN_S:g} s to simulate")


class Balancer:
    """Looks for VMs that should leave their host. Not thread-safe."""

    def __init__(
        self,
        context: ManagerContext,
        rules: BalanceRules = BalanceRules(),  # noqa: B008 - immutable
        twin_of: TwinOf | None = None,
    ) -> None:
        """``twin_of`` None: made of the hosts' history."""
        self._context, self._rules = context, rules
        self._twin_of = twin_of or self._calibrated
        self._looked: dict[str, datetime] = {}

    def look(self, run: Run) -> int:
        """Propose at most one migration a host. Returns how many.

        Raises DatabaseUnavailable.
        """
        database, now = self._context.database, run.now
        with database.reading() as session:
            fleet = self._fleet(session, now)
        count = 0
        for violation in sources_of(fleet.violations, fleet.hosts, fleet.busy):
            looked = self._looked.get(violation.host)
            if run.stopped():
                break
            if looked is not None and timedelta() <= now - looked < AGAIN:
                continue
            self._looked[violation.host] = now
            proposal = self._search(fleet, violation, run.stopped)
            if proposal is not None:
                with database.registering(proposal.source, proposal.destination) as session:
                    approved = _approval(session, proposal)
                    if approved is not None:
                        propose(session, proposal, now, approved=approved)
                        count += 1
        return count

    def _search(self, fleet: _FleetView, violation: LastingViolation, stopped: Callable[[], bool]) -> Proposal | None:
        """The first migration that helps and hurts nobody."""
        source, rules = fleet.hosts[violation.host], self._rules
        draw = Random(f"{violation.host} {violation.application} {violation.since_s:.0f}")  # noqa: S311 - no secret
        rest = fleet.rest | {f"host {name}" for name in fleet.busy}
        twins = _Twins(self._twin_of, monotonic() + MAX_PLAN_S)
        for vm in candidates(source, violation, rest, rules, draw):
            for to in destinations(vm, source, list(fleet.hosts.values()), rest, rules):
                if stopped():
                    return None
                predictions, unpredicted = _predict(twins, source, vm, to, violation.application)
                against = list(objections(predictions, violation.application, rules))
                if unpredicted is None or against:
                    log.info("%s does not move to %s: %s", vm.name, to.name, "; ".join(against) or "not predicted")
                    continue
                reason = _reason(source, vm, to, violation)
                return Proposal(vm.name, source.name, to.name, violation.application, reason, predictions, unpredicted)
        return None

    def _fleet(self, session: Session, now: datetime) -> _FleetView:
        """What is known, which is little to read while no SLA is violated."""
        violated, lasting = self._violated(session, now)
        if not lasting:
            return _FleetView({}, (), frozenset(), frozenset())
        past = past_migrations(session, now - timedelta(seconds=self._rules.remembered_s))
        vms: dict[str, list[MovableVm]] = {}
        rows = {row.name: row for row in session.scalars(select(HostRow)).all()}
        for vm in list_vms(session, VmFilter(), None, _ALL):
            if vm["status_host"] in rows:
                vms.setdefault(vm["status_host"], []).append(_movable(vm, pcpus_of(rows[vm["status_host"]])))
        hosts = {
            name: BalancedHost(
                name,
                pcpus_of(row),
                row.mode,
                row.migrate,
                _reports(row),
                name in violated,
                tuple(vms.get(name, ())),
            )
            for name, row in rows.items()
        }
        return _FleetView(hosts, lasting, resting(past, now.timestamp(), self._rules), busy_hosts(session))

    def _violated(self, session: Session, now: datetime) -> tuple[frozenset[str], list[LastingViolation]]:
        """The hosts of applications whose SLA is violated now, and the violations that last."""
        context = self._context
        rows = [row for row in session.scalars(select(ApplicationRow)).all() if row.sla is not None]
        percentiles = {row.id: watched_percentile(row.sla) for row in rows}
        latest = latest_glances(session, percentiles, context.slot_length, context.latest)
        bad = [
            row
            for row in rows
            if sla_state(latest.get(row.id), row.sla, now.timestamp(), context.stale_s, context.min_samples)
            is SlaState.VIOLATED
        ]
        hosts = hosts_of(session, {row.id: row.name for row in bad})
        lasting = [violation for row in bad if (violation := self._lasting(session, row, now)) is not None]
        return frozenset().union(*hosts.values()), lasting

    def _lasting(self, session: Session, row: ApplicationRow, now: datetime) -> LastingViolation | None:
        context = self._context
        past = MeasuredPast(session, row, context.slot_length, context.min_samples)
        since = now - timedelta(seconds=self._rules.lasting_s)
        slots = past.periods(since, now, context.slot_s, now)
        begun = min((slot.start_s for slot in slots if slot.violated), default=None)
        judged, violated = sum(slot.judged for slot in slots), sum(slot.violated for slot in slots)
        early = begun is not None and begun <= since.timestamp() + self._rules.lasting_s / 4
        if not early or not lasts(judged, violated, self._rules):
            return None
        cause = cause_now(session, context, row)
        if cause is None or cause[1].host is None:
            return None
        violation, verdict = cause
        return LastingViolation(row.name, cause[1].host, violation.start_s, verdict.kind, verdict.vm)

    def _calibrated(self, host: str, on_step: Callable[[], None]) -> Twin:
        try:
            with self._context.database.reading() as session:
                recording = recorded(session, self._context, host, HISTORY)
        except NotFound as error:
            raise TwinRefused(str(error)) from error
        return calibrate(recording, TWIN_EFFORT, one_by_one, on_step)


def _approval(session: Session, proposal: Proposal) -> bool | None:
    """Whether the source's setting approves a proposal; None: it may not be made any more.

    By what is so now: a search takes a minute, in which an operator may have said otherwise.
    """
    source, destination = (find(session, HostRow, name) for name in (proposal.source, proposal.destination))
    if source is None or destination is None or {source.name, destination.name} & busy_hosts(session):
        return None
    if MigrationUse.OFF in {source.migrate, destination.migrate} or destination.mode is not Mode.ENFORCE:
        return None
    vms = list_vms(session, VmFilter(names=frozenset({proposal.vm})), None, 1)
    if not (_reports(source) and _reports(destination)) or [vm["status_host"] for vm in vms] != [source.name]:
        return None
    return source.migrate is MigrationUse.AUTO and source.mode is Mode.ENFORCE and not proposal.unpredicted


def _reports(host: HostRow) -> bool:
    return host.last_seen_at is not None and not host.silent


def _movable(vm: Mapping[str, Any], pcpus: int) -> MovableVm:
    status = VmStatus.model_validate_json(vm["status"])
    bound = (
        "it has pCPUs of its own host" * (vm["cpus"] is not None)
        or "it migrates" * status.migrating
        or "it is not controlled" * (status.mode is not Mode.ENFORCE)
    )
    wants_pcpus = wanted_pcpus(status, vm["batch"], pcpus)
    return MovableVm(vm["name"], vm["vm_class"], status.vcpus, wants_pcpus, vm["application"], bound)


def _predict(
    twins: _Twins, source: BalancedHost, vm: MovableVm, to: BalancedHost, application: str
) -> tuple[tuple[MovePrediction, ...], str | None]:
    """What is predicted, and why something is not; the latter empty: all is, None: too little to propose it."""
    missing: list[str] = []
    leaving: tuple[MovePrediction, ...] = ()
    arriving: tuple[MovePrediction, ...] = ()
    critical = vm.vm_class is VmClass.CRITICAL
    try:
        leaving = predict_leaving(twins.of(source.name), vm.name, one_by_one, twins.in_time)
    except TwinRefused as error:
        if critical:
            return (), None
        missing.append(f"{source.name}: {error}")
    if critical or any(each.vm_class is VmClass.CRITICAL for each in to.vms):
        try:
            twin = twins.of(to.name)
            arriving = predict_arriving(twins.of(source.name), vm.name, twin, one_by_one, twins.in_time)
        except TwinRefused as error:
            if critical:
                return (), None
            missing.append(f"{to.name}: {error}")
    predictions = (*leaving, *arriving)
    if not missing and not any(each.application == application for each in predictions):
        missing.append(f"{application}: its response times are not predicted")
    return predictions, "; ".join(dict.fromkeys(missing))


def _reason(source: BalancedHost, vm: MovableVm, to: BalancedHost, violation: LastingViolation) -> str:
    cause = (
        f"{violation.neighbour} takes CPU time from it"
        if violation.neighbour
        else f"its host is full: VMs want {percent(source.load.total)} of the CPU"
    )
    after = to.load.with_vm(vm.vm_class is VmClass.CRITICAL, vm.wants_pcpus)
    return (
        f"the SLA of {violation.application} is violated persistently, as {cause}; {vm.name} wants {vm.wants_pcpus:.2f}"
        f" pCPUs, and with it VMs of {to.name} would want {percent(after.total)} of its CPU"
    )
