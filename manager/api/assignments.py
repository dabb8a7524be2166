"""What the agent of a host is told: what is registered for it, and the response times that others measured."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from sqlalchemy.orm import Session

from manager.api.context import ManagerContext
from manager.control.source_rules import sources_on
from manager.model.registration import Application
from manager.protocol.assignment import AssignedHost, AssignedVm, AssignedWindow, AssignmentOut, SlotsOut
from manager.protocol.convert import assigned_application, assigned_window, host_fields
from manager.store.applications import applications_for_host, applications_of
from manager.store.database import registration_revision
from manager.store.hosts import spec_of
from manager.store.models import HostRow
from manager.store.registrations import get
from manager.store.serving_hosts import named_hosts
from manager.store.silent_hosts import ranks_of
from manager.store.source_rows import hosts_of
from manager.store.vms import vms_for_host
from manager.store.windows import recent_windows

_TOLD_SLOTS = 4
"""Slots that an agent is told of; it remembers the earlier ones."""

Hosts = Mapping[str, frozenset[str]]
"""By application, the hosts that have VMs of it."""


@dataclass(frozen=True, slots=True)
class _Registered:
    """What is registered for a host, applications by the numbers of their rows; see ``registration_revision``."""

    number: int
    host: AssignedHost
    vms: list[AssignedVm]
    applications: Mapping[int, Application]

    @property
    def names(self) -> dict[int, str]:
        return {number: application.name for number, application in self.applications.items()}


@dataclass(frozen=True, slots=True)
class _Told:
    """The assignment without response times.

    It was made ``of``: where VMs are, where an operator said so, and which hosts can be relied on.
    """

    registered: _Registered
    of: tuple[Hosts, Hosts, Mapping[str, int]]
    body: AssignmentOut


class Assignments:
    """The assignments of all hosts. Thread-safe.

    What was made of the same registrations is remembered, because agents ask in every interval and somebody registers
    something now and then: a manager that forgets it reads it again.
    """

    def __init__(self, context: ManagerContext) -> None:
        self._context = context
        self._registered: dict[str, _Registered] = {}
        self._told: dict[str, _Told] = {}

    def applications(self, session: Session, host: str) -> Collection[int]:
        """The row numbers of the applications that concern a host. Nothing is remembered of those that write."""
        known = self._registered.get(host)
        if known is not None and known.number == registration_revision(session):
            return known.applications.keys()
        return [row.id for row in applications_for_host(session, host)]

    def whole(self, session: Session, host: str) -> tuple[AssignmentOut, int]:
        """All that an agent is told, and the number of the registrations it is made of. Raises NotFound."""
        told = self._now(session, host)
        windows = self._windows(session, host, told)
        applications = [
            application.model_copy(update={"windows": windows.get(application.name, [])})
            for application in told.body.applications
        ]
        return told.body.model_copy(update={"applications": applications}), told.registered.number

    def slots(self, session: Session, host: str) -> tuple[SlotsOut, int]:
        """Of that only what changes all the time. Raises NotFound."""
        told = self._now(session, host)
        hosts, _, _ = told.of
        found = SlotsOut(
            digest=told.body.digest,
            windows=self._windows(session, host, told),
            shared=any(others - {host} for others in hosts.values()),
        )
        return found, told.registered.number

    def _windows(self, session: Session, host: str, told: _Told) -> dict[str, list[AssignedWindow]]:
        names, context = told.registered.names, self._context
        found = recent_windows(session, names, context.slot_length, _TOLD_SLOTS, without=host, until=context.latest)
        return {name: [assigned_window(slot) for slot in slots] for name, slots in found.items()}

    def _now(self, session: Session, host: str) -> _Told:
        registered = self._of(session, host, registration_revision(session))
        hosts = hosts_of(session, registered.names)
        now = self._context.now()
        going_out = {number: one.name for number, one in registered.applications.items() if one.sources}
        named = named_hosts(session, going_out, now) if going_out else {}
        several = frozenset().union(*(choice for choice in named.values() if len(choice) > 1))
        of = hosts, named, ranks_of(session, several, now) if several else {}
        told = self._told.get(host)
        if told is None or told.registered is not registered or told.of != of:
            told = self._told[host] = _Told(registered, of, self._assigned(registered, *of))
        return told

    def _of(self, session: Session, host: str, number: int) -> _Registered:
        """What is registered for a host; as of ``number``, or later."""
        known = self._registered.get(host)
        if known is None or known.number != number:
            self._registered.pop(host, None)
            row = get(session, HostRow, host)
            rows = applications_for_host(session, host)
            applications = applications_of(session, rows)
            known = self._registered[host] = _Registered(
                number,
                AssignedHost(name=row.name, adoptions=row.adoptions, **host_fields(spec_of(row))),
                [AssignedVm(**vm) for vm in vms_for_host(session, host)],
                {row.id: applications[row.name] for row in rows},
            )
        return known

    def _assigned(self, registered: _Registered, hosts: Hosts, named: Hosts, ranks: Mapping[str, int]) -> AssignmentOut:
        here = registered.host.name
        applications = [
            replace(
                application,
                sources=sources_on(
                    here, application.sources, hosts[application.name], named.get(application.name, ()), ranks
                ),
            )
            for application in registered.applications.values()
        ]
        body = AssignmentOut(
            host=registered.host,
            vms=registered.vms,
            applications=[assigned_application(application) for application in applications],
            slot_s=self._context.slot_s,
        )
        body.digest = hashlib.sha256(body.model_dump_json().encode()).hexdigest()
        return body
