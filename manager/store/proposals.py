"""Proposals to migrate VMs: made by the manager, decided by people or a host's setting, carried out by agents."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import Session

from manager.control.balance import PastMigration
from manager.errors import Conflict, NotFound
from manager.model.fields import MAX_TEXT, json_fields
from manager.model.migration import (
    OPEN,
    UNDER_WAY,
    MigrationOrder,
    MigrationReport,
    MigrationState,
    MovePrediction,
)
from manager.model.records import Severity
from manager.model.registration import Mode
from manager.store import audit
from manager.store.database import lock_registrations
from manager.store.event_records import Position, store_events
from manager.store.host_models import DomainRow, ProposalRow
from manager.store.models import HostRow, VmRow, VmStatusRow
from manager.store.registrations import find, touch
from manager.store.revisions import note_registration
from manager.store.silent_hosts import host_event

VALID = timedelta(minutes=30)
"""Nobody can approve a proposal that is older: what it was predicted from has changed."""
UNBEGUN = timedelta(minutes=10)
"""A migration that is approved has begun, or goes on being reported, in this time; else it failed."""
UNREPORTED = timedelta(seconds=5)
"""After so long without a report, that the VM arrived counts: the agent's own word comes first, if it has one."""
_EVER = datetime.min.replace(tzinfo=UTC)
BY_SETTING = "the setting migrate"
_BALANCE = audit.Actor(audit.LOCAL, "balance", "", "")


@dataclass(frozen=True, slots=True)
class Proposal:
    """A migration that the manager proposes. ``unpredicted``: why a prediction is missing, empty: none is."""

    vm: str
    source: str
    destination: str
    application: str
    reason: str
    predictions: tuple[MovePrediction, ...]
    unpredicted: str = ""


def propose(session: Session, proposal: Proposal, now: datetime, *, approved: bool = False) -> ProposalRow:
    """Store a proposal and its event; ``approved``: the source's setting approves it at once."""
    row = ProposalRow(
        at=now,
        state=MigrationState.APPROVED if approved else MigrationState.PROPOSED,
        vm=proposal.vm,
        source=proposal.source,
        destination=proposal.destination,
        application=proposal.application,
        reason=proposal.reason[:MAX_TEXT],
        predictions=[json_fields(each) for each in proposal.predictions],
        decided_by=BY_SETTING if approved else None,
        decided_at=now if approved else None,
        unpredicted=proposal.unpredicted[:MAX_TEXT],
        detail="",
    )
    session.add(row)
    session.flush()
    what = "begins" if approved else "is proposed"
    _say(session, row, now, Severity.INFO, "migration-proposed", f"{_move(row)} {what}: {row.reason}")
    return row


def get_proposal(session: Session, number: int) -> ProposalRow:
    """The proposal of that number. Raises NotFound."""
    row = session.get(ProposalRow, number)
    if row is None:
        raise NotFound(f"there is no proposal {number}")
    return row


def list_proposals(
    session: Session, host: str | None, state: MigrationState | None, after: Position | None, limit: int
) -> Sequence[ProposalRow]:
    """At most ``limit`` proposals, the newest first, after a position; of a source or destination ``host``."""
    query = select(ProposalRow).order_by(ProposalRow.id.desc()).limit(limit)
    if host is not None:
        query = query.where((ProposalRow.source == host) | (ProposalRow.destination == host))
    if state is not None:
        query = query.where(ProposalRow.state == state)
    if after is not None:
        query = query.where(ProposalRow.id < after.id)
    return session.scalars(query).all()


def approve(session: Session, number: int, who: str, now: datetime) -> ProposalRow:
    """Let the agent of the source carry it out. Call it in ``Database.registering``. Raises NotFound, Conflict."""
    row = _proposed(session, number, now)
    for name in (row.source, row.destination):
        host = find(session, HostRow, name)
        if host is None or host.silent:
            raise Conflict(f"host {name} does not report: nothing can be migrated")
        if host.mode is not Mode.ENFORCE:
            raise Conflict(f"host {name} is in mode {host.mode}: nothing is migrated; set mode enforce first")
    if _host_of(session, row.vm) != row.source:
        raise Conflict(f"VM {row.vm} does not run on {row.source} any more")
    busy = session.scalars(
        select(ProposalRow.id).where(
            ProposalRow.state.in_(UNDER_WAY),
            ProposalRow.source.in_((row.source, row.destination))
            | ProposalRow.destination.in_((row.source, row.destination)),
        )
    ).first()
    if busy is not None:
        raise Conflict(f"migration {busy} of one of these hosts is not over: approve this one afterwards")
    row.state, row.decided_by, row.decided_at = MigrationState.APPROVED, who, now
    return row


def dismiss(session: Session, number: int, who: str, now: datetime) -> ProposalRow:
    """Leave the VM where it is. Raises NotFound, Conflict."""
    row = _proposed(session, number, now)
    row.state, row.decided_by, row.decided_at, row.ended_at = MigrationState.DISMISSED, who, now, now
    return row


def _proposed(session: Session, number: int, now: datetime) -> ProposalRow:
    row = get_proposal(session, number)
    if row.state is not MigrationState.PROPOSED:
        raise Conflict(f"proposal {number} is {row.state}: only one that is proposed can be decided")
    if now - row.at > VALID:
        raise Conflict(f"proposal {number} is of {row.at}: what it was predicted from has changed")
    return row


def orders_of(session: Session, host: str) -> tuple[MigrationOrder, ...]:
    """What the agent of a host is to migrate."""
    query = select(ProposalRow).where(ProposalRow.source == host, ProposalRow.state.in_(UNDER_WAY))
    rows = session.scalars(query.order_by(ProposalRow.id)).all()
    orders = []
    for row in rows:
        names = _domain(session, row.vm)
        if names is not None:
            begun = row.state is MigrationState.RUNNING
            orders.append(MigrationOrder(row.id, row.vm, *names, row.destination, begun))
    return tuple(orders)


def take_reports(session: Session, host: str, reports: Sequence[MigrationReport], now: datetime) -> None:
    """Store what the agent of a host reports on its migrations; those of other hosts, or that are over, are left out.

    What agents are to do changes only where one begins or ends. Call it first in a transaction.
    """
    known = _under_way(session, host, reports)
    if any(row.state is not report.state for row, report in known):
        lock_registrations(session)
        known = _under_way(session, host, reports)
        moved = [row for row, report in known if row.state is not report.state]
        if moved:
            note_registration(session, hosts_of(moved))
    for row, report in known:
        row.reported_at, row.copied = now, report.copied
        if row.begun_at is None and report.state is not MigrationState.FAILED:
            row.begun_at = now
            _say(session, row, now, Severity.INFO, "migration-begun", f"{_move(row)} has begun")
        if report.state is MigrationState.RUNNING:
            row.state = MigrationState.RUNNING
        elif report.state is MigrationState.DONE:
            _done(session, row, now)
        elif report.state is MigrationState.FAILED and _has_arrived(session, row):
            _done(session, row, now)  # an agent that was restarted does not know what the one before it had begun
        elif report.state is MigrationState.FAILED:
            _failed(session, row, now, report.detail)


def _under_way(
    session: Session, host: str, reports: Sequence[MigrationReport]
) -> list[tuple[ProposalRow, MigrationReport]]:
    """The migrations of a host that are not over, each with what is reported of it."""
    rows = {row.id: row for row in _read(session, ProposalRow.source == host, ProposalRow.state.in_(UNDER_WAY))}
    return [(rows[report.number], report) for report in reports if report.number in rows]


def _read(session: Session, *conditions: ColumnElement[bool]) -> Sequence[ProposalRow]:
    """The proposals that meet all conditions, as they are now: while a lock was waited for they may have changed."""
    query = select(ProposalRow).where(*conditions).order_by(ProposalRow.id)
    return session.scalars(query.execution_options(populate_existing=True)).all()


def close_proposals(session: Session, now: datetime, since: datetime = _EVER) -> int:
    """End migrations whose VM arrived, or of which no report comes, and proposals that nobody decided in time.

    ``since``: silence before then does not count, because no manager ran. Returns how many. What agents are to do
    changes only where there is one. Call it first in a transaction.
    """
    ends = _ends(session, now, since)
    if ends:
        lock_registrations(session)
        ends = _ends(session, now, since)
    if ends:
        note_registration(session, hosts_of(row for row, _ in ends))
    for row, end in ends:
        if end is MigrationState.EXPIRED:
            row.state, row.ended_at = end, now
        elif end is MigrationState.DONE:
            _done(session, row, now)
        else:
            _failed(session, row, now, _why_late(session, row))
    return len(ends)


def _ends(session: Session, now: datetime, since: datetime) -> list[tuple[ProposalRow, MigrationState]]:
    """The open proposals that ended without a report, and how."""
    rows = _read(session, ProposalRow.state.in_(OPEN))
    return [(row, end) for row in rows if (end := _end(session, row, now, since)) is not None]


def _end(session: Session, row: ProposalRow, now: datetime, since: datetime) -> MigrationState | None:
    """How an open proposal ended without a report; None: it is not over."""
    if row.state is MigrationState.PROPOSED:
        return MigrationState.EXPIRED if now - row.at > VALID else None
    silent = now - max(each for each in (row.reported_at, row.decided_at, row.at) if each)
    if row.begun_at is not None and silent > UNREPORTED and _has_arrived(session, row):
        return MigrationState.DONE
    return MigrationState.FAILED if min(silent, now - since) > UNBEGUN else None


def past_migrations(session: Session, since: datetime) -> list[PastMigration]:
    """Those that were carried out, failed or were dismissed since then."""
    ended = (MigrationState.DONE, MigrationState.FAILED, MigrationState.DISMISSED)
    rows = session.scalars(select(ProposalRow).where(ProposalRow.ended_at >= since, ProposalRow.state.in_(ended)))
    return [
        PastMigration(
            row.vm,
            row.source,
            row.destination,
            row.ended_at.timestamp(),
            (row.ended_at - row.begun_at).total_seconds() if row.begun_at else 0.0,
        )
        for row in rows
        if row.ended_at is not None
    ]


def hosts_of(rows: Iterable[ProposalRow]) -> set[str]:
    """Sources and destinations: the hosts to whose assignments proposals belong."""
    return {host for row in rows for host in (row.source, row.destination)}


def busy_hosts(session: Session) -> frozenset[str]:
    """Sources and destinations of proposals that are not over."""
    columns = select(ProposalRow.source, ProposalRow.destination)
    rows = session.execute(columns.where(ProposalRow.state.in_(OPEN)))
    return frozenset(host for row in rows for host in row)


def _has_arrived(session: Session, row: ProposalRow) -> bool:
    """Whether the destination has the VM, and the source not any more.

    An agent reports no VM that is registered for another host, but all domains.
    """
    host = _host_of(session, row.vm)
    return host == row.destination or (host is None and _is_at_destination(session, row))


def _is_at_destination(session: Session, row: ProposalRow) -> bool:
    """Whether a domain of the VM runs there, or is about to."""
    vm = find(session, VmRow, row.vm)
    if vm is None:
        return False
    query = select(DomainRow.libvirt_uuid).join(HostRow, HostRow.id == DomainRow.host_id)
    query = query.where(HostRow.name == row.destination)
    if vm.libvirt_uuid is not None:
        query = query.where(DomainRow.libvirt_uuid == vm.libvirt_uuid)
    else:
        query = query.where(DomainRow.libvirt_name == (vm.libvirt_name or vm.name))
    return session.scalars(query).first() is not None


def _why_late(session: Session, row: ProposalRow) -> str:
    host = _host_of(session, row.vm)
    if host not in {None, row.source}:
        return f"{row.vm} runs on {host}"
    if host is None and row.begun_at is not None:
        return f"{row.vm} left {row.source}, and the agent of {row.destination} does not report it"
    late = f"no report on it came from the agent of {row.source}"
    return f"{late}, and {row.destination} has a domain of this VM" if _is_at_destination(session, row) else late


def _done(session: Session, row: ProposalRow, now: datetime) -> None:
    row.state, row.ended_at, row.copied = MigrationState.DONE, now, 1.0
    vm = find(session, VmRow, row.vm)
    if vm is not None and vm.host == row.source:
        vm.host = row.destination
        touch(vm, now)
        before, after = {"host": row.source}, {"host": row.destination}
        audit.record(session, _BALANCE, "vm.migrate", row.vm, now, before, after)
    took_s = (now - row.begun_at).total_seconds() if row.begun_at else 0.0
    _say(session, row, now, Severity.INFO, "migration-done", f"{_move(row)} is done, after {took_s:.0f} s")


def _failed(session: Session, row: ProposalRow, now: datetime, why: str) -> None:
    row.state, row.ended_at, row.detail = MigrationState.FAILED, now, why
    _say(session, row, now, Severity.WARNING, "migration-failed", f"{_move(row)} failed: {why}")


def _say(session: Session, row: ProposalRow, now: datetime, severity: Severity, kind: str, message: str) -> None:
    store_events(session, [host_event(row.source, now, severity, kind, message[:MAX_TEXT]) | {"vm": row.vm}])


def _move(row: ProposalRow) -> str:
    return f"migration {row.id} of {row.vm} from {row.source} to {row.destination} for {row.application}"


def _host_of(session: Session, vm: str) -> str | None:
    """The host that reports a VM; None: none does."""
    query = select(HostRow.name).join(VmStatusRow, VmStatusRow.host_id == HostRow.id).where(VmStatusRow.vm == vm)
    return session.scalars(query).one_or_none()


def _domain(session: Session, vm: str) -> tuple[str, str] | None:
    """Name and UUID of a VM's domain at libvirt, as last reported."""
    body = session.scalars(select(VmStatusRow.body).where(VmStatusRow.vm == vm)).one_or_none()
    if body is None:
        return None
    status: dict[str, Any] = json.loads(body)
    return status["libvirt_name"], status["libvirt_uuid"]
