"""Assignments: what is registered for a host, and the response times that other hosts measured."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.control.source_rules import sources_in_force, sources_on
from manager.model.fields import fields_of, json_of
from manager.model.registration import Application, HostSpec, VmSpec
from manager.model.window import AssignedWindow
from manager.protocol.assignment import AssignedApplication, AssignmentOut, SlotsOut
from manager.store.applications import applications_for_host, applications_of
from manager.store.database import registration_revision
from manager.store.models import HostRow
from manager.store.registrations import get
from manager.store.serving_hosts import named_hosts
from manager.store.silent_hosts import ranks_of
from manager.store.source_rows import hosts_of
from manager.store.vms import vms_for_host
from manager.store.windows import POSTED_LATELY, posted_to, recent_windows

_SLOTS = 4
"""Slots of response times in an assignment; the agent remembers earlier ones."""

Hosts = Mapping[str, frozenset[str]]
"""The hosts of each application's VMs, by its name."""


@dataclass(frozen=True, slots=True)
class _Registered:
    """What is registered for a host as of a revision (``number``); applications by row number."""

    number: int
    host: HostSpec
    vms: tuple[VmSpec, ...]
    applications: Mapping[int, Application]

    @property
    def names(self) -> dict[int, str]:
        return {number: application.name for number, application in self.applications.items()}


@dataclass(frozen=True, slots=True)
class _Assigned:
    """The assignment without response times.

    ``placement`` is what it was made from: hosts of VMs, hosts that operators registered, ranks of hosts, and which
    applications without a source are measured at taps.
    """

    registered: _Registered
    placement: tuple[Hosts, Hosts, Mapping[str, int], frozenset[int]]
    body: AssignmentOut


class Assignments:
    """The assignments of all hosts. Thread-safe.

    They are cached by the revision of the registrations: agents ask in every interval, registrations change rarely.
    """

    def __init__(self, context: ManagerContext) -> None:
        self._context = context
        self._registered: dict[str, _Registered] = {}
        self._assigned: dict[str, _Assigned] = {}

    def applications(self, session: Session, host: str) -> Collection[int]:
        """The row numbers of the applications that concern a host. For writers: the result is not cached."""
        registered = self._registered.get(host)
        if registered is not None and registered.number == registration_revision(session):
            return registered.applications.keys()
        return [row.id for row in applications_for_host(session, host)]

    def whole(self, session: Session, host: str, taps: bool = False) -> tuple[AssignmentOut, int]:
        """The whole assignment, and the revision it is made from. ``taps``: its agent can have sources of that type.

        Raises NotFound.
        """
        assigned = self._now(session, host, taps)
        windows = self._windows(session, host, assigned)
        applications = tuple(
            replace(application, windows=windows.get(application.name, ()))
            for application in assigned.body.applications
        )
        return replace(assigned.body, applications=applications), assigned.registered.number

    def slots(self, session: Session, host: str, taps: bool) -> tuple[SlotsOut, int]:
        """The part of the assignment that changes all the time; ``taps`` as for ``whole``. Raises NotFound."""
        assigned = self._now(session, host, taps)
        hosts, *_ = assigned.placement
        slots = SlotsOut(
            digest=assigned.body.digest,
            windows=self._windows(session, host, assigned),
            shared=any(others - {host} for others in hosts.values()),
        )
        return slots, assigned.registered.number

    def _windows(self, session: Session, host: str, assigned: _Assigned) -> dict[str, tuple[AssignedWindow, ...]]:
        names, context = assigned.registered.names, self._context
        return {**recent_windows(session, names, context.slot_length, _SLOTS, without=host, until=context.latest)}

    def _now(self, session: Session, host: str, taps: bool) -> _Assigned:
        registered = self._of(session, host, registration_revision(session))
        hosts = hosts_of(session, registered.names)
        now = self._context.now()
        applications = registered.applications.items()
        with_sources = {number: application.name for number, application in applications if application.sources}
        named = named_hosts(session, with_sources, now) if with_sources else {}
        several = frozenset().union(*(choice for choice in named.values() if len(choice) > 1))
        without = registered.applications.keys() - with_sources.keys() if taps else frozenset()
        at_taps = frozenset(without) - posted_to(session, without, now - POSTED_LATELY)
        placement = hosts, named, ranks_of(session, several, now) if several else {}, at_taps
        assigned = self._assigned.get(host)
        if assigned is None or assigned.registered is not registered or assigned.placement != placement:
            assigned = self._assigned[host] = _Assigned(registered, placement, self._body(registered, *placement))
        return assigned

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
