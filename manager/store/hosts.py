"""Hosts, and the reports of their agents on them and their VMs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cache
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy import (
    JSON,
    ColumnElement,
    Integer,
    Select,
    String,
    Update,
    and_,
    bindparam,
    cast,
    delete,
    func,
    literal,
    or_,
    select,
    tuple_,
    update,
)
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased, defer, undefer

from manager.model.fields import fields_of
from manager.model.host_health import TickHealth
from manager.model.registration import HostIn, HostSpec
from manager.store.by_driver import rows_of
from manager.store.database import insert_for, is_postgresql, lock_registrations
from manager.store.host_models import DomainRow, FindingsRow, ServicesRow
from manager.store.last_ticks import json_text
from manager.store.models import HostRow, Json, UtcDateTime, VmRow, VmStatusRow
from manager.store.registrations import (
    Precondition,
    by_name,
    get,
    has_in_name,
    refuse_bad_host,
    replace,
    touch,
)
from manager.store.revisions import note_registration
from manager.store.row_writes import has_arrays, upsert
from manager.store.vm_shares import StoredShares, changed_shares, read_shares


def put_host(session: Session, spec: HostSpec, now: datetime, precondition: Precondition) -> tuple[HostRow, bool]:
    """Register the settings of a host; see ``registrations.replace``."""
    refuse_bad_host("name", spec.name)
    return replace(session, HostRow, spec.name, fields_of(HostIn, spec), now, precondition)


def adopt_host(session: Session, name: str, now: datetime) -> HostRow:
    """Adopt externally modified settings of a host itself. Raises NotFound."""
    row = get(session, HostRow, name)
    row.adoptions += 1
    touch(row, now)
    return row


def reporting_host(session: Session, defaults: HostSpec, now: datetime) -> HostRow:
    """The host whose agent is reporting, its row locked; registered with ``defaults`` if it is new."""
    query, wanted = _reporting_query(), {"name": defaults.name}
    row = session.scalars(query, wanted).one_or_none()
    if row is None:
        lock_registrations(session)
        row = session.scalars(query, wanted).one_or_none()  # another request may have registered it meanwhile
    if row is None:
        row, _ = put_host(session, defaults, now, lambda _etag: None)
        note_registration(session, {defaults.name})
    return row


@cache
def _reporting_query() -> Select[HostRow]:
    query = select(HostRow).where(HostRow.name == bindparam("name", type_=String())).with_for_update()
    # These are reported anew, and settings are for the assignment.
    unread = "tick", "capabilities", *(field.name for field in fields(HostIn))
    return query.options(*(defer(getattr(HostRow, name)) for name in unread), undefer(HostRow.glances))


@dataclass(frozen=True, slots=True)
class HostReport:
    """What is new in a host's row with a report; None: it stays. Texts but the version are JSON."""

    at: datetime
    agent_version: str
    clock_ahead_s: float | None
    capabilities: str | None
    tick: str | None
    health: TickHealth
    shares: str | None
    glances: bytes | None


def note_report(session: Session, host: HostRow, report: HostReport) -> None:
    """Write what is new in a host's row by one statement. The object is not changed."""
    given = {
        "host": host.id,
        "now": report.at,
        "reported_version": report.agent_version,
        "ahead": report.clock_ahead_s,
        "reported_capabilities": report.capabilities,
        "reported_tick": report.tick,
        **report.health._asdict(),
        "reported_shares": report.shares,
        "reported_glances": report.glances,
    }
    rows_of(session, _noting(has_arrays(session)), given)


@cache
def _noting(arrays: bool) -> Update:
    row = HostRow

    def reported(column: InstrumentedAttribute[Json | None]) -> ColumnElement[Any]:
        text = bindparam(f"reported_{column.key}", type_=String())
        return func.coalesce(cast(text, JSON()) if arrays else text, column)

    health = {name: getattr(row, name) for name in TickHealth._fields}
    changed = {
        "last_seen_at": bindparam("now", type_=UtcDateTime()),
        "agent_version": bindparam("reported_version", type_=String()),
        "clock_ahead_s": func.coalesce(bindparam("ahead", type_=row.clock_ahead_s.type), row.clock_ahead_s),
        "capabilities": reported(row.capabilities),
        "tick": reported(row.tick),
        **{name: func.coalesce(bindparam(name, type_=known.type), known) for name, known in health.items()},
        "shares": func.coalesce(bindparam("reported_shares", type_=String()), row.shares),
        "glances": func.coalesce(bindparam("reported_glances", type_=row.glances.type), row.glances),
    }
    return update(HostRow).where(row.id == bindparam("host", type_=Integer())).values(changed)


def put_statuses(session: Session, host: HostRow, statuses: Iterable[Mapping[str, Any]], now: datetime) -> None:
    """Store statuses of VMs on a host: mappings with the columns ``vm``, ``cpu_share``, ``run_delay_share``, ``body``.

    A VM that another host reported before (it was migrated) is now on this host.
    """
    rows = [{"host_id": host.id, "at": now, **status} for status in sorted(statuses, key=itemgetter("vm"))]
    if rows:
        upsert(session, VmStatusRow, rows, ["vm"])


def shares_on(
    session: Session,
    host: HostRow,
    shares: Mapping[str, tuple[float, float]],
    now: datetime,
    here: frozenset[str] | None = None,
) -> tuple[str, bool]:
    """The CPU shares and run-queue delays of the VMs on a host, by name, as its row keeps them.

    And whether the host has statuses of these VMs and no others. ``here``: those that it has; None: not known.
    """
    if here is None:
        here = frozenset(vm for (vm,) in rows_of(session, _vms_on(), {"here": host.id}))
    return changed_shares(host, shares, here - shares.keys(), now), here == shares.keys()


@cache
def _vms_on() -> Select[str]:
    return select(VmStatusRow.vm).where(VmStatusRow.host_id == bindparam("here", type_=Integer()))


def statuses_on(session: Session, host: HostRow) -> list[str]:
    """The statuses of the VMs on a host as JSON text, by name of the VM."""
    columns = VmStatusRow.vm, VmStatusRow.at, VmStatusRow.cpu_share, VmStatusRow.run_delay_share, VmStatusRow.body
    rows = session.execute(select(*columns).where(VmStatusRow.host_id == host.id).order_by(VmStatusRow.vm))
    shares = read_shares(host.shares)
    return [shares.newest(vm, StoredShares(at, used, waited)).status(body) for vm, at, used, waited, body in rows]


def replace_domains(session: Session, host: HostRow, names: Mapping[str, str]) -> None:
    """Store all domains that run on a host, as libvirt names by UUID."""
    session.execute(delete(DomainRow).where(DomainRow.host_id == host.id))
    if names:
        rows = [{"host_id": host.id, "libvirt_uuid": uuid, "libvirt_name": name} for uuid, name in names.items()]
        session.execute(insert_for(session, DomainRow), rows)


def is_reporting() -> ColumnElement[bool]:
    """Whether a host's agent reports."""
    return and_(HostRow.last_seen_at.is_not(None), HostRow.silent.is_(False))


class ListedHost(NamedTuple):
    """A host: the columns of its row by name, its last tick as JSON text, and what tells its capabilities from others.

    None: never reported.
    """

    columns: dict[str, Any]
    tick: str | None
    digest: str | None


def list_hosts(
    session: Session,
    names: Sequence[str],
    after: str | None,
    limit: int,
    search: str | None,
    wanted: Sequence[ColumnElement[bool]],
) -> list[ListedHost]:
    """A page of the hosts that are ``wanted``, by name; with ``search`` in their names.

    ``names`` are those of the columns that are read: making objects would take longer than reading them.
    """
    query = select(json_text(HostRow.tick), _digest(session), *(getattr(HostRow, name) for name in names))
    query = query.where(*wanted, *([has_in_name(HostRow, search)] if search else []))
    rows = session.execute(by_name(query, HostRow, after, limit))
    return [ListedHost(dict(zip(names, columns, strict=True)), tick, digest) for tick, digest, *columns in rows]


def capabilities_by_digest(session: Session, hosts: Collection[str]) -> dict[str, str]:
    """The capabilities of these hosts as JSON text, by the digest of ``ListedHost``."""
    query = select(_digest(session), json_text(HostRow.capabilities)).where(HostRow.name.in_(hosts))
    return {digest: text for digest, text in session.execute(query) if digest is not None and text is not None}


def _digest(session: Session) -> ColumnElement[str | None]:
    """Of capabilities, which are long and the same for many hosts. SQLite, within the process, has them themselves."""
    text = json_text(HostRow.capabilities)
    return func.encode(func.sha256(func.convert_to(text, "UTF8")), "hex") if is_postgresql(session) else text


def list_domains(
    session: Session,
    host: str | None,
    registered: bool | None,
    after: tuple[str, str] | None,
    limit: int,
    search: str | None = None,
) -> Sequence[Any]:
    """At most ``limit`` running domains by host and UUID: ``host``, ``libvirt_uuid``, ``libvirt_name``, and the VM it
    is ``registered_as``.

    None means any host, registered or not, from the first, whatever its name; ``search`` is a part of the libvirt name.
    A UUID takes precedence over a name, as in the agents.
    """
    by_uuid, by_name = aliased(VmRow), aliased(VmRow)
    vm = func.coalesce(by_uuid.name, by_name.name)
    query = (
        select(HostRow.name.label("host"), DomainRow.libvirt_uuid, DomainRow.libvirt_name, vm.label("registered_as"))
        .join(HostRow, HostRow.id == DomainRow.host_id)
        .outerjoin(
            by_uuid,
            and_(
                by_uuid.libvirt_uuid == DomainRow.libvirt_uuid,
                or_(by_uuid.host == HostRow.name, by_uuid.host.is_(None)),
            ),
        )
        .outerjoin(
            by_name,
            and_(
                by_name.libvirt_uuid.is_(None),
                by_name.libvirt_name == DomainRow.libvirt_name,
                or_(by_name.host == HostRow.name, by_name.host.is_(None)),
            ),
        )
    )
    if host is not None:
        query = query.where(HostRow.name == host)
    if registered is not None:
        query = query.where(vm.is_not(None) if registered else vm.is_(None))
    if search:
        query = query.where(DomainRow.libvirt_name.icontains(search, autoescape=True))
    place = (HostRow.name, DomainRow.libvirt_uuid)
    if after is not None:
        query = query.where(tuple_(*place) > tuple_(*map(literal, after)))
    return session.execute(query.order_by(*place).limit(limit)).all()


def shared_names(session: Session, names: Collection[str]) -> set[str]:
    """Those of these libvirt names that several running domains have, or that is the name of a registered VM."""
    if not names:
        return set()
    several = select(DomainRow.libvirt_name).where(DomainRow.libvirt_name.in_(names)).group_by(DomainRow.libvirt_name)
    registered = select(VmRow.name).where(VmRow.name.in_(names))
    return {*session.scalars(several.having(func.count() > 1)), *session.scalars(registered)}


def put_findings(session: Session, host: HostRow, body: str) -> None:
    """Store the doctor's findings on a host, as JSON text."""
    upsert(session, FindingsRow, [{"host_id": host.id, "body": body}], ["host_id"])


def get_findings(session: Session, host: str) -> str | None:
    """The latest findings on a host, as JSON text; None: never reported. Raises NotFound."""
    row = session.get(FindingsRow, get(session, HostRow, host).id)
    return None if row is None else row.body


def put_services(session: Session, host: HostRow, body: str, now: datetime) -> None:
    """Store the services in the domains of a host, as JSON text."""
    upsert(session, ServicesRow, [{"host_id": host.id, "at": now, "body": body}], ["host_id"])


def get_services(session: Session, host: str) -> tuple[datetime, str] | None:
    """When the services of a host were last reported, and what, as JSON text; None: never. Raises NotFound."""
    row = session.get(ServicesRow, get(session, HostRow, host).id)
    return None if row is None else (row.at, row.body)
