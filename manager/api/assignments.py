"""Assignments: what is registered for a host, and the response times that other hosts measured."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property

from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.control.claim_rules import RegisteredVm
from manager.control.sla import watched_percentile
from manager.control.source_rules import sources_in_force, sources_on
from manager.model.fields import fields_of, json_of
from manager.model.migration import MigrationOrder
from manager.model.registration import Application, HostSpec, VmSpec
from manager.model.window import AssignedWindow
from manager.protocol.assignment import AssignedApplication, AssignmentOut, SlotsOut
from manager.store.applications import applications_for_host, applications_of
from manager.store.models import HostRow
from manager.store.proposals import orders_of
from manager.store.registrations import get
from manager.store.revisions import assignment_revision
from manager.store.serving_hosts import named_hosts
from manager.store.silent_hosts import ranks_of
from manager.store.source_rows import hosts_of
from manager.store.vms import vms_for_host
from manager.store.window_packs import PUSHED
from manager.store.windows import POSTED_LATELY, measured_by_others, recent_windows

_SLOTS = 4
"""Slots of response times in an assignment; the agent remembers earlier ones."""

Hosts = Mapping[str, frozenset[str]]
"""The hosts of each application's VMs, by its name."""


@dataclass(frozen=True)
class _Registered:
    """What is registered for a host as of a revision (``number``); applications by row number."""

    number: int
    host: HostSpec
    vms: tuple[VmSpec, ...]
    applications: Mapping[int, Application]
    orders: tuple[MigrationOrder, ...]

    @cached_property
    def names(self) -> dict[int, str]:
        return {number: application.name for number, application in self.applications.items()}

    @cached_property
    def percentiles(self) -> dict[int, float]:
        """By which the applications are judged."""
        return {number: watched_percentile(application.sla) for number, application in self.applications.items()}

    @cached_property
    def here(self) -> dict[str, RegisteredVm]:
        """The VMs that are registered for this host, by name."""
        return {vm.name: RegisteredVm(vm.host, vm.libvirt_uuid) for vm in self.vms if vm.host == self.host.name}

    @cached_property
    def served(self) -> frozenset[int]:
        """The applications that this host serves by registration: those with a VM or a source here."""
        return frozenset(
            number
            for number, application in self.applications.items()
            if any(vm in self.here for vm in application.vms)
            or any(source.host == self.host.name for source in application.sources)
        )

    @cached_property
    def alone(self) -> frozenset[int]:
        """The applications all of whose VMs are registered for this host."""
        applications = self.applications.items()
        return frozenset(number for number, one in applications if one.vms and all(vm in self.here for vm in one.vms))


@dataclass(frozen=True, slots=True)
class _Assigned:
    """The assignment without response times.

    ``placement`` is what it was made from: hosts of VMs, hosts that operators registered, ranks of hosts, and which
    applications without a source are measured at taps.
    """

    registered: _Registered
    placement: tuple[Hosts, Hosts, Mapping[str, int], frozenset[int]]
    body: AssignmentOut


@dataclass(frozen=True, slots=True)
class _Now:
    """An assignment, and the applications (row numbers) of which others than its host measured anything ``since``."""

    assigned: _Assigned
    since: datetime
    others: Collection[int]


@dataclass(frozen=True, slots=True)
class SettledHost:
    """What a host that serves its applications alone is answered while the registrations are of this ``revision``.

    ``numbers``: of the rows of its applications, by name; ``percentiles``: by which these are judged, by row number.
    """

    revision: int
    numbers: Mapping[str, int]
    percentiles: Mapping[int, float]
    orders: tuple[MigrationOrder, ...]
    slots: SlotsOut


@dataclass(frozen=True, slots=True)
class ReportingHost:
    """What is registered of a host that reports: the row numbers of the applications that concern it.

    ``registered``: all of it, as it is now; None: that is not known.
    """

    applications: Collection[int]
    registered: _Registered | None = None

    @property
    def served(self) -> frozenset[int]:
        """Applications (row numbers) of which this host may report response times by registration, as far as known."""
        return self.registered.served if self.registered else frozenset()

    @property
    def vms(self) -> Mapping[str, RegisteredVm]:
        """The VMs that are registered for this host, by name, as far as known."""
        return self.registered.here if self.registered else {}

    @property
    def percentiles(self) -> Mapping[int, float]:
        """By which the applications (row numbers) are judged, as far as known."""
        return self.registered.percentiles if self.registered else {}

    @property
    def orders(self) -> tuple[MigrationOrder, ...]:
        """VMs to be migrated from this host, as far as known."""
        return self.registered.orders if self.registered else ()


class Assignments:
    """The assignments of all hosts. Thread-safe.

    They are cached by the revision of the registrations: agents ask in every interval, registrations change rarely.
    """

    def __init__(self, context: ManagerContext) -> None:
        self._context = context
        self._registered: dict[str, _Registered] = {}
        self._assigned: dict[str, _Assigned] = {}

    def reporter(self, session: Session, host: str) -> ReportingHost:
        """What is registered of a host that reports. For writers: what is read here is not cached."""
        registered = self._registered.get(host)
        if registered is not None and registered.number == assignment_revision(session, host):
            return ReportingHost(registered.applications.keys(), registered)
        return ReportingHost([row.id for row in applications_for_host(session, host)])

    def settled(self, host: str, taps: bool) -> SettledHost | None:
        """What is known of a host all of whose applications have all of their VMs here; None: it is not so, or unknown.

        It holds as long as nobody else measures one of them. ``taps`` as for ``whole``.
        """
        registered, assigned = self._registered.get(host), self._assigned.get(host)
        if registered is None or assigned is None or assigned.registered is not registered:
            return None
        applications = registered.applications
        here = frozenset({host})
        with_sources = {number for number, application in applications.items() if application.sources}
        at_taps = frozenset(applications.keys() - with_sources) if taps else frozenset()
        hosts = dict.fromkeys(registered.names.values(), here)
        named = {registered.names[number]: here for number in with_sources}
        if applications.keys() != registered.alone or assigned.placement != (hosts, named, {}, at_taps):
            return None
        numbers = {name: number for number, name in registered.names.items()}
        slots = SlotsOut(digest=assigned.body.digest, windows={}, shared=False)
        return SettledHost(registered.number, numbers, registered.percentiles, registered.orders, slots)

    def whole(self, session: Session, host: str, taps: bool = False) -> tuple[AssignmentOut, int]:
        """The whole assignment, and the revision it is made from. ``taps``: its agent can have sources of that type.

        Raises NotFound.
        """
        now = self._now(session, host, taps)
        windows = self._windows(session, host, now.assigned.registered.names)
        applications = tuple(
            replace(application, windows=windows.get(application.name, ()))
            for application in now.assigned.body.applications
        )
        return replace(now.assigned.body, applications=applications), now.assigned.registered.number

    def slots(
        self,
        session: Session,
        host: str,
        taps: bool,
        reporter: ReportingHost | None = None,
        measured: Mapping[int, datetime] | None = None,
    ) -> tuple[SlotsOut, int]:
        """The part of the assignment that changes all the time; ``taps`` as for ``whole``. Raises NotFound.

        ``measured``: until when ``reporter`` has just reported response times, by row number of the application.
        """
        now = self._now(session, host, taps, reporter)
        hosts, *_ = now.assigned.placement
        # Where nobody else measured anything lately, the latest slots hold nothing but what this host measured.
        oldest = now.since + self._context.slot_length * (_SLOTS + 1)
        by_itself = {number for number, end in (measured or {}).items() if end >= oldest and number not in now.others}
        names = {number: name for number, name in now.assigned.registered.names.items() if number not in by_itself}
        slots = SlotsOut(
            digest=now.assigned.body.digest,
            windows=self._windows(session, host, names) if names else {},
            shared=any(others - {host} for others in hosts.values()),
        )
        return slots, now.assigned.registered.number

    def _windows(self, session: Session, host: str, names: Mapping[int, str]) -> dict[str, tuple[AssignedWindow, ...]]:
        context = self._context
        return {**recent_windows(session, names, context.slot_length, _SLOTS, without=host, until=context.latest)}

    def _now(self, session: Session, host: str, taps: bool, reporter: ReportingHost | None = None) -> _Now:
        registered = reporter.registered if reporter else None
        if registered is None:
            registered = self._of(session, host, assignment_revision(session, host))
        names = registered.names
        alone = {name: frozenset({host}) for number, name in names.items() if number in registered.alone}
        together = {number: name for number, name in names.items() if name not in alone}
        hosts = {**(hosts_of(session, together) if together else {}), **alone}
        now = self._context.now()
        applications = registered.applications.items()
        with_sources = {number: application.name for number, application in applications if application.sources}
        named = named_hosts(session, with_sources, now) if with_sources else {}
        several = frozenset().union(*(choice for choice in named.values() if len(choice) > 1))
        without = registered.applications.keys() - with_sources.keys() if taps else frozenset()
        since = now - POSTED_LATELY
        others = measured_by_others(session, registered.applications.keys(), host, since)
        posted = {number for number, origins in others.items() if PUSHED in origins}
        at_taps = frozenset(without) - posted
        placement = hosts, named, ranks_of(session, several, now) if several else {}, at_taps
        assigned = self._assigned.get(host)
        if assigned is None or assigned.registered is not registered or assigned.placement != placement:
            assigned = self._assigned[host] = _Assigned(registered, placement, self._body(registered, *placement))
        return _Now(assigned, since, others.keys())

    def _of(self, session: Session, host: str, number: int) -> _Registered:
        """What is registered for a host; as of ``number``, or later."""
        registered = self._registered.get(host)
        if registered is None or registered.number != number:
            self._registered.pop(host, None)
            row = get(session, HostRow, host)
            rows = applications_for_host(session, host)
            applications = applications_of(session, rows)
            registered = self._registered[host] = _Registered(
                number,
                HostSpec(**fields_of(HostSpec, row)),
                tuple(vms_for_host(session, host)),
                {row.id: applications[row.name] for row in rows},
                orders_of(session, host),
            )
        return registered

    def _body(
        self,
        registered: _Registered,
        hosts: Hosts,
        named: Hosts,
        ranks: Mapping[str, int],
        at_taps: frozenset[int],
    ) -> AssignmentOut:
        here = registered.host.name
        applications = []
        for number, application in registered.applications.items():
            name = application.name
            in_force = sources_in_force(application.sources, application.sla, number not in at_taps)
            sources = sources_on(here, in_force, hosts[name], named.get(name, ()), ranks)
            applications.append(AssignedApplication(**fields_of(Application, application) | {"sources": sources}))
        body = AssignmentOut(registered.host, registered.vms, tuple(applications), self._context.slot_s)
        return replace(body, digest=hashlib.sha256(json_of(body)).hexdigest())
