"""Hosts, and what their agents report of themselves and their VMs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from manager.model.law import Law
from manager.model.registration import HostSpec
from manager.store.database import insert_for, lock_registrations
from manager.store.models import HostRow, VmStatusRow
from manager.store.registered import Precondition, replace


def put_host(session: Session, spec: HostSpec, now: datetime, precondition: Precondition) -> tuple[HostRow, bool]:
    """Register how a host is to be controlled; see ``registered.replace``."""
    usual = asdict(Law())
    # Only what was set: what was left at its default follows that when a later version changes it.
    law = {name: value for name, value in asdict(spec.law).items() if value != usual[name]}
    values = {"mode": spec.mode, "policy": spec.policy, "pinning": spec.pinning, "law": law or None}
    return replace(session, HostRow, spec.name, values, now, precondition)


def law_of(row: HostRow) -> Law:
    """The settings of a host's feedback law."""
    return Law(**row.law) if row.law else Law()


def reporting_host(session: Session, defaults: HostSpec, now: datetime) -> HostRow:
    """The host whose agent is reporting, its row locked; registered with ``defaults`` if it is new."""
    query = select(HostRow).where(HostRow.name == defaults.name).with_for_update()
    row = session.scalars(query).one_or_none()
    if row is None:
        lock_registrations(session)
        row = session.scalars(query).one_or_none()  # meanwhile somebody else may have registered it
    if row is None:
        row, _ = put_host(session, defaults, now, lambda _etag: None)
    return row


def replace_statuses(session: Session, host: HostRow, statuses: Mapping[str, str], now: datetime) -> None:
    """Take the statuses of the VMs on a host, as JSON text by VM name, for all there are.

    A VM that another host reported before (it was migrated) now is on this one.
    """
    session.execute(delete(VmStatusRow).where(VmStatusRow.host_id == host.id))
    if statuses:
        insert = insert_for(session, VmStatusRow)
        moved = {"host_id": insert.excluded.host_id, "at": insert.excluded.at, "body": insert.excluded.body}
        session.execute(
            insert.on_conflict_do_update(index_elements=[VmStatusRow.vm], set_=moved),
            [{"vm": vm, "host_id": host.id, "at": now, "body": body} for vm, body in sorted(statuses.items())],
        )
