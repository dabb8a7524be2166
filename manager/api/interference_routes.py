"""Interference tables: the largest load of an application beside batch VMs, by type of host."""

from __future__ import annotations

from pydantic import AwareDatetime, Field
from sqlalchemy.orm import Session

from manager.api.auth import VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.interference_job import type_of
from manager.api.queries import NamePath
from manager.model.fields import Count, Name, Schema, Text, as_text
from manager.model.interference import LargestLoad
from manager.model.registration import Sla
from manager.store.interference_tables import InterferenceLook, KnownTable, look_of, tables_of
from manager.store.models import ApplicationRow, HostRow
from manager.store.registrations import find, get
from manager.store.source_rows import hosts_of

_NO_SLA = "it has no SLA: without a target no load is too much"
_NOT_YET = "its history has not been looked at yet: that is done within minutes"
_NOTHING = "no minute of its history counts"


class InterferenceTableOut(Schema):
    """How much load an application may have on hosts of one type."""

    host_type: Text
    hosts: list[Name] = Field(description="hosts of this type on which it runs now")
    since: AwareDatetime = Field(description="the oldest minute that counts")
    until: AwareDatetime = Field(description="the newest")
    minutes: Count = Field(description="minutes that count")
    peak_rps: float = Field(ge=0, description="largest load that was measured, req/s")
    rows: list[LargestLoad] = Field(description="by class of batch VMs and by what these may lose")


class InterferenceOut(Schema):
    """The interference tables of an application; see docs/how-to/interference.md."""

    application: Name
    sla: Sla | None
    at: AwareDatetime | None = Field(description="when its history was last looked at; null: not yet")
    size: Text = Field(description="vCPUs of its VMs by tier, to which the tables belong; empty: not known")
    size_since: AwareDatetime | None = Field(
        description="since when it has that size; null: always, as far as is known"
    )
    why: Text = Field(description="why there is no table, or which minutes did not count; empty: all did")
    tables: list[InterferenceTableOut]


def interference_api(context: ManagerContext) -> RouteGroup:
    """The route of interference tables."""
    api = RouteGroup("interference", "How much load an application may have beside batch VMs.")

    @api.at("GET /applications/<name>/interference", VIEWER)
    def get_interference(path: NamePath) -> InterferenceOut:
        """The largest load that meets the SLA beside batch VMs, and lets these lose no more than a bound.

        By type of host, as measured in the history of the application: no load is made.
        """
        with context.database.reading() as session:
            row = get(session, ApplicationRow, path.name)
            look, tables = look_of(session, row), tables_of(session, row)
            hosts = _hosts_by_type(session, row)
            sla = row.sla
        known = look if sla is not None else None
        return InterferenceOut(
            application=path.name,
            sla=sla,
            at=known.at if known else None,
            size=as_text(known.size) if known else "",
            size_since=known.size_since if known else None,
            why=_why(sla, known, tables),
            tables=[_out(table, hosts.get(table.host_type, [])) for table in tables],
        )

    return api


def _hosts_by_type(session: Session, row: ApplicationRow) -> dict[str, list[str]]:
    """The hosts on which an application runs, as far as their agents have reported."""
    by_type: dict[str, list[str]] = {}
    [names] = hosts_of(session, {row.id: row.name}).values()
    for name in sorted(names):
        host = find(session, HostRow, name)
        if host is not None and host.capabilities is not None:
            by_type.setdefault(type_of(host), []).append(name)
    return by_type


def _why(sla: Sla | None, look: InterferenceLook | None, tables: list[KnownTable]) -> str:
    if sla is None:
        return _NO_SLA
    if look is None:
        return _NOT_YET
    if not tables:
        changed = (look.sla.response_time_ms, look.sla.percentile) != (sla.response_time_ms, sla.percentile)
        return _NOT_YET if changed else f"{_NOTHING}; {look.why}" if look.why else _NOTHING
    return look.why


def _out(table: KnownTable, hosts: list[str]) -> InterferenceTableOut:
    return InterferenceTableOut(
        host_type=table.host_type,
        hosts=hosts,
        since=table.since,
        until=table.until,
        minutes=table.minutes,
        peak_rps=table.peak_rps,
        rows=list(table.loads),
    )
