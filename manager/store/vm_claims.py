"""VMs that hosts report: each is accepted only from the host that runs it."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple

from sqlalchemy import Integer, Select, Update, bindparam, case, delete, or_, select, update
from sqlalchemy.orm import Session

from manager.control.claim_rules import Foul, HeldVm, RegisteredVm, claim_text, foul, is_alarm
from manager.model.records import Severity
from manager.store.by_driver import rows_of
from manager.store.database import insert_for
from manager.store.event_records import store_events
from manager.store.host_models import ClaimRow
from manager.store.hosts import put_statuses
from manager.store.models import HostRow, VmRow, VmStatusRow
from manager.store.row_writes import among, has_arrays
from manager.store.silent_hosts import host_event

CLAIMED = "vm-claimed"
"""Kind of the event about a VM reported by a host that does not run it."""
MOVED = "vm-moved"
"""Kind of the event about a VM that runs on another host than before."""

_AGAIN = timedelta(minutes=10)

_UNREGISTERED = RegisteredVm(None, None)
_NOBODY = (None, None)


@dataclass(frozen=True, slots=True)
class Reported:
    """A VM that a host reports: its name, its domain's UUID, and the columns for ``put_statuses``."""

    vm: str
    uuid: str
    columns: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class RefusedVm:
    """A refused VM with the reason; ``other`` is the host that runs it; ``migrates``: from there to this host."""

    vm: str
    why: Foul
    text: str
    other: str | None
    migrates: bool = False


@dataclass(frozen=True, slots=True)
class TakenStatuses:
    """The refused VMs; and the VMs of which a host now has a status."""

    refused: Sequence[RefusedVm]
    here: frozenset[str]


def take_statuses(
    session: Session,
    host: HostRow,
    reported: Sequence[Reported],
    now: datetime,
    live: timedelta,
    *,
    whole: bool,
    known: Mapping[str, RegisteredVm] | None = None,
) -> TakenStatuses:
    """Store the statuses of the VMs that belong to this host; events may follow for the others, which are refused.

    ``whole``: the host runs no other VMs. A host that has not reported for ``live`` loses its VMs to another that
    reports them. An unregistered VM counts as registered for no host: it may just have been removed. ``known``: how VMs
    are registered now, as far as the caller knows.
    """
    names = frozenset(status.vm for status in reported)
    registered = {**_registered(session, names - (known or {}).keys())[0], **(known or {})}
    there = _statuses(session, host, names)
    before = frozenset(status.vm for status in there if status.host_id == host.id)
    elsewhere = {status.vm: status for status in there if status.host_id != host.id}
    holders = {vm: (status.host, held_vm(status.body)) for vm, status in elsewhere.items() if status.lives(now, live)}
    refused: list[RefusedVm] = []
    taken: list[Reported] = []
    for status in reported:
        registration, (holder, held) = registered.get(status.vm, _UNREGISTERED), holders.get(status.vm, _NOBODY)
        why = foul(registration, host.name, status.uuid, holder)
        if why is None:
            taken.append(status)
        else:
            other = holder if why is Foul.RUNS_ELSEWHERE else registration.host
            text = claim_text(why, status.vm, host.name, other, registration, status.uuid, held)
            migrates = why is Foul.RUNS_ELSEWHERE and held is not None and held.migrates_to({status.uuid})
            refused.append(RefusedVm(status.vm, why, text, other, migrates))
    not_here = {status.vm for status in refused}
    accepted = {status.vm for status in taken}
    left = sorted(before - accepted if whole else before & not_here)
    if left:
        session.execute(delete(VmStatusRow).where(VmStatusRow.host_id == host.id, VmStatusRow.vm.in_(left)))
    put_statuses(session, host, [status.columns for status in taken], now)
    moved = [(vm, status.host_id) for vm, status in elsewhere.items() if vm in accepted]
    note_left(session, [*((vm, host.id) for vm in left), *moved], now)
    _tell_moved(session, host, accepted - before, now)
    _forget(session, host, not_here if whole else accepted, whole=whole)
    changed_at = _registered(session, not_here)[1] if not_here else {}
    _store_events(session, host, refused, changed_at, now)
    return TakenStatuses(refused, before - set(left) | accepted)


def _registered(session: Session, names: Collection[str]) -> tuple[dict[str, RegisteredVm], dict[str, datetime]]:
    """The registrations of the VMs, and when they changed."""
    if not names:
        return {}, {}
    query = select(VmRow.name, VmRow.host, VmRow.libvirt_uuid, VmRow.updated_at).where(VmRow.name.in_(names))
    rows = session.execute(query).all()
    return {row.name: RegisteredVm(row.host, row.libvirt_uuid) for row in rows}, {row.name: row[3] for row in rows}


class _Status(NamedTuple):
    """A status of a VM: its host, when that reported last, and the status itself where it is another host's."""

    vm: str
    host_id: int
    host: str
    seen_at: datetime | None
    body: str

    def lives(self, now: datetime, live: timedelta) -> bool:
        return self.seen_at is not None and abs(now - self.seen_at) <= live


def _statuses(session: Session, host: HostRow, names: Collection[str]) -> list[_Status]:
    """The statuses of the VMs of a host, and of VMs of these names."""
    rows = rows_of(session, _status_query(has_arrays(session)), {"here": host.id, "names": sorted(names)})
    return [_Status(*row) for row in rows]


@cache
def _status_query(arrays: bool) -> Select[*tuple[Any, ...]]:
    here = bindparam("here", type_=Integer())
    body = case((VmStatusRow.host_id != here, VmStatusRow.body))
    columns = VmStatusRow.vm, VmStatusRow.host_id, HostRow.name, HostRow.last_seen_at, body
    query = select(*columns).join(HostRow, HostRow.id == VmStatusRow.host_id)
    return query.where(or_(VmStatusRow.host_id == here, among(VmStatusRow.vm, "names", arrays)))


def held_vm(body: str) -> HeldVm:
    """The VM of a stored status."""
    status = json.loads(body)
    return HeldVm(str(status["libvirt_uuid"]), status.get("migrating") is True)


def _tell_moved(session: Session, host: HostRow, names: Collection[str], now: datetime) -> None:
    """Store an event for each of these VMs, new on a host, that was on another one before."""
    if not names:
        return
    query = select(ClaimRow.vm, HostRow.name).join(HostRow, HostRow.id == ClaimRow.host_id)
    query = query.where(ClaimRow.vm.in_(names), ClaimRow.left_at.is_not(None))
    query = query.order_by(ClaimRow.left_at, ClaimRow.host_id == host.id)  # at the same time: it has not moved
    left = {vm: name for vm, name in session.execute(query)}  # noqa: C416 - the last one counts
    events = [
        host_event(host.name, now, Severity.INFO, MOVED, f"{vm} moved from {name} to {host.name}") | {"vm": vm}
        for vm, name in sorted(left.items())
        if name != host.name
    ]
    store_events(session, events)


def note_left(session: Session, places: Sequence[tuple[str, int]], now: datetime) -> None:
    """Record that VMs, by name and their host's row number, left their hosts. Unregistered VMs are left out."""
    if not places:
        return
    registered_names = set(session.scalars(select(VmRow.name).where(VmRow.name.in_([vm for vm, _ in places]))))
    rows = [{"vm": vm, "host_id": number, "left_at": now} for vm, number in sorted(places) if vm in registered_names]
    if rows:
        insert = insert_for(session, ClaimRow)
        update = {"left_at": insert.excluded.left_at}
        session.execute(insert.on_conflict_do_update(index_elements=["vm", "host_id"], set_=update), rows)


def drop_status_elsewhere(session: Session, vm: str, host: str, now: datetime) -> None:
    """Drop the status of a VM registered for ``host`` from another host."""
    query = select(VmStatusRow.host_id).join(HostRow, HostRow.id == VmStatusRow.host_id)
    elsewhere = session.scalars(query.where(VmStatusRow.vm == vm, HostRow.name != host)).one_or_none()
    if elsewhere is not None:
        session.execute(delete(VmStatusRow).where(VmStatusRow.vm == vm))
        note_left(session, [(vm, elsewhere)], now)


def _forget(session: Session, host: HostRow, names: Collection[str], *, whole: bool) -> None:
    """End the claims of a host to VMs of these names; ``whole``: to all but these."""
    rows_of(session, _forgetting(has_arrays(session), whole), {"here": host.id, "names": sorted(names)})


@cache
def _forgetting(arrays: bool, whole: bool) -> Update:
    named = among(ClaimRow.vm, "names", arrays)
    of_host = ClaimRow.host_id == bindparam("here", type_=Integer()), ClaimRow.refused_at.is_not(None)
    return update(ClaimRow).where(*of_host, ~named if whole else named).values(refused_at=None)


def _store_events(
    session: Session, host: HostRow, refused: Sequence[RefusedVm], changed_at: Mapping[str, datetime], now: datetime
) -> None:
    """Store an event for both hosts when a claim persists, repeated every ``_AGAIN``."""
    refused = [refusal for refusal in refused if refusal.vm in changed_at]
    if not refused:
        return
    insert = insert_for(session, ClaimRow).on_conflict_do_nothing(index_elements=["vm", "host_id"])
    session.execute(insert, [{"vm": vm, "host_id": host.id} for vm in sorted(refusal.vm for refusal in refused)])
    by_name = {refusal.vm: refusal for refusal in refused}
    events: list[dict[str, object]] = []
    for row in session.scalars(select(ClaimRow).where(ClaimRow.host_id == host.id, ClaimRow.vm.in_(by_name))):
        refusal = by_name[row.vm]
        row.refused_at = now if refusal.migrates else row.refused_at or now
        alarm = is_alarm(refusal.why, changed_at[row.vm], row.refused_at, now)
        if not alarm or (row.told_at is not None and abs(now - row.told_at) < _AGAIN):
            continue
        row.told_at = now
        severity = Severity.WARNING if refusal.why is Foul.RUNS_ELSEWHERE else Severity.ERROR
        hosts = dict.fromkeys([host.name, refusal.other or host.name])
        events += [host_event(name, now, severity, CLAIMED, refusal.text) | {"vm": row.vm} for name in hosts]
    store_events(session, events)
