"""Hosts: their settings, and what their agents reported."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from operator import attrgetter, itemgetter
from typing import Any

from flask import Response
from pydantic import AwareDatetime, Field, TypeAdapter
from pydantic_core import to_json
from sqlalchemy.orm import Session

from manager.api.auth import OPERATOR, VIEWER, VIEWER_OR_OWN_HOST, audited
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup, answer
from manager.api.kept_texts import KeptTexts
from manager.api.merge import named, patched
from manager.api.paging import NAME, Page, next_cursor, part, part_by_name, read_cursor
from manager.api.queries import Conditions, DomainQuery, HostQuery, NamePath, PageQuery, ServiceQuery
from manager.api.schemas.registration_shapes import DomainOut, HostOut, MergePatch, ServiceOut
from manager.api.validation import shown
from manager.errors import InvalidRequest, NotFound
from manager.model.fields import Name, Schema, Text, adapter_of, fields_of, json_fields, json_of
from manager.model.finding import Findings
from manager.model.host import Capabilities
from manager.model.registration import HostIn, HostSpec
from manager.model.traffic import HostServices, SeenService
from manager.protocol.report import TickStatus
from manager.store.agent_tenure import replace_agent, rival_of
from manager.store.hosts import (
    ListedHost,
    adopt_host,
    capabilities_by_digest,
    get_findings,
    get_services,
    is_reporting,
    list_domains,
    list_hosts,
    put_host,
    shared_names,
)
from manager.store.models import HostRow, Json
from manager.store.registrations import delete, get, if_asked

_DOMAIN = TypeAdapter(tuple[Text, Text])
"""Cursors of lists by host and UUID."""


_SERVICE: TypeAdapter[tuple[str, int]] = TypeAdapter(tuple[Text, int])
"""Cursors of services by UUID of the domain and port."""
_MOST_DOMAINS = 5000
_MOST_CAPABILITIES = 1024  # of some kilobytes each
_REPORTED = {"tick", "capabilities"}
_COLUMNS = [*(field.name for field in fields(HostOut) if field.name not in _REPORTED), "rival_at"]


class ServicesPage(Page[ServiceOut]):
    """A page of the services in the domains of a host, and what the agent reported with them."""

    at: AwareDatetime | None = Field(default=None, description="when they were reported; null: never")
    problem: Text = Field(default="", description="why services cannot be seen, or not all; empty: they can")
    simulated: bool = Field(default=False, description="figures of a simulated host")


class HostCapabilities(Schema):
    """A host and its capabilities; null: its agent never reported."""

    host: Name
    capabilities: Capabilities | None


def _registered(columns: Mapping[str, Any], now: datetime) -> HostOut:
    """A host without its last tick and capabilities, from ``_COLUMNS``."""
    shown = {**columns}
    shown["rival_instance"] = rival_of(shown["rival_instance"], shown.pop("rival_at"), now)
    return HostOut(**shown)


def _host_json(host: ListedHost, capabilities: Mapping[str, bytes], now: datetime) -> bytes:
    """A HostOut as JSON, from ``_COLUMNS``; ``capabilities`` are JSON by digest."""
    registered = adapter_of(HostOut).dump_json(_registered(host.columns, now), by_alias=True, exclude=_REPORTED)
    tick = b"null" if host.tick is None else json_of(TickStatus.model_validate_json(host.tick))
    of_host = b"null" if host.digest is None else capabilities[host.digest]
    return b'%b,"tick":%b,"capabilities":%b}' % (registered[:-1], tick, of_host)


def _capabilities(session: Session, hosts: Iterable[ListedHost], unknown: Collection[str]) -> dict[str, bytes]:
    """Those of listed hosts as JSON by digest, if they are unknown. Few hosts have others: one of each is read."""
    names = {host.digest: host.columns["name"] for host in hosts if host.digest in unknown}
    read = capabilities_by_digest(session, names.values())
    return {digest: json_of(adapter_of(Capabilities).validate_json(text)) for digest, text in read.items()}


def hosts_api(context: ManagerContext) -> RouteGroup:
    """The routes of hosts."""
    api = RouteGroup("hosts", "KVM machines, each with one agent.")
    database = context.database
    known: KeptTexts[str] = KeptTexts(_MOST_CAPABILITIES)

    def host_out(row: HostRow) -> HostOut:
        capabilities = None if row.capabilities is None else adapter_of(Capabilities).validate_python(row.capabilities)
        tick = None if row.tick is None else TickStatus.model_validate(row.tick)
        columns = {name: getattr(row, name) for name in _COLUMNS}
        return replace(_registered(columns, context.now()), tick=tick, capabilities=capabilities)

    def answered(row: HostRow, created: bool = False) -> Response:
        return answer(host_out(row), 201 if created else 200, row.etag)

    @api.at("GET /hosts", VIEWER, Page[HostOut])
    def list_hosts_(query: HostQuery) -> Response:
        """All hosts by name."""
        after, wanted = read_cursor(query, NAME), if_asked(is_reporting(), query.reporting)
        with database.reading() as session:
            hosts = list_hosts(session, _COLUMNS, after, query.limit + 1, query.search, wanted)
            digests = {host.digest for host in hosts if host.digest}
            capabilities = known.of(digests, lambda unknown: _capabilities(session, hosts, unknown))
        following, now = next_cursor(query, hosts, lambda host: host.columns["name"]), context.now()
        items = b",".join(_host_json(host, capabilities, now) for host in hosts[: query.limit])
        return answer(b'{"items":[%b],"next":%b}' % (items, to_json(following)))

    @api.at("GET /hosts/<name>", VIEWER_OR_OWN_HOST, HostOut)
    def get_host(path: NamePath) -> Response:
        """One host."""
        with database.reading() as session:
            return answered(get(session, HostRow, path.name))

    @api.at("PUT /hosts/<name>", OPERATOR, HostOut, 200, 201)
    def put_host_(path: NamePath, header: Conditions, body: HostIn) -> Response:
        """Register a host; its agent need not have reported yet."""
        refuse_unknown_policy(body.policy, context.policies)
        with audited(context, "host.put", HostRow, path.name, _described) as session:
            return answered(*put_host(session, named(HostSpec, path.name, body), context.now(), header.check))

    @api.at("PATCH /hosts/<name>", OPERATOR, HostOut)
    def patch_host(path: NamePath, header: Conditions, body: MergePatch) -> Response:
        """Change fields of a host."""
        with audited(context, "host.patch", HostRow, path.name, _described) as session:
            current = _body(get(session, HostRow, path.name))
            wanted = patched(current, body)
            # A policy that is no longer installed must not prevent the release of its host.
            if wanted.policy != current.policy:
                refuse_unknown_policy(wanted.policy, context.policies)
            row, _ = put_host(session, named(HostSpec, path.name, wanted), context.now(), header.check)
            return answered(row)

    @api.at("DELETE /hosts/<name>", OPERATOR)
    def delete_host(path: NamePath, header: Conditions) -> None:
        """Remove a host. It is registered again with the default settings when its agent reports."""
        with audited(context, "host.delete", HostRow, path.name, _described) as session:
            delete(session, HostRow, path.name, header.check)

    @api.at("POST /hosts/<name>/adopt", OPERATOR, HostOut)
    def adopt_host_(path: NamePath) -> Response:
        """Adopt externally modified settings of the host itself: its agent controls them again."""
        with audited(context, "host.adopt", HostRow, path.name, _described) as session:
            return answered(adopt_host(session, path.name, context.now()))

    @api.at("POST /hosts/<name>/replace-agent", OPERATOR, HostOut)
    def replace_host_agent(path: NamePath) -> Response:
        """Let the agent that was refused last serve the host instead of the current one; 409: none was refused."""
        with audited(context, "host.replace", HostRow, path.name, _described) as session:
            return answered(replace_agent(session, path.name, context.now()))

    return api


def refuse_unknown_policy(name: str, installed: Collection[str]) -> None:
    """Raises InvalidRequest for a policy that is not installed."""
    if name not in installed:
        raise InvalidRequest("policy", f"{shown(name)} is not installed; allowed: {', '.join(sorted(installed))}")


def _body(row: HostRow) -> HostIn:
    return HostIn(**fields_of(HostIn, row))


def _described(_session: Session, row: HostRow) -> Json:
    return json_fields(_body(row))


def _domain(row: Any, shared: Collection[str]) -> DomainOut:
    """A domain of ``list_domains``; ``shared`` are the names that tell none from another."""
    return DomainOut(**row._mapping, name_shared=row.registered_as is None and row.libvirt_name in shared)


def reported_api(context: ManagerContext) -> RouteGroup:
    """The routes of what agents reported: capabilities, domains, and the doctor's findings."""
    api = RouteGroup("reported", "Reports of agents on their hosts.")
    database = context.database

    @api.at("GET /hosts/<name>/capabilities", VIEWER_OR_OWN_HOST)
    def get_host_capabilities(path: NamePath) -> Capabilities:
        """The capabilities of a host, as its agent last reported."""
        with database.reading() as session:
            row = get(session, HostRow, path.name)
        if row.capabilities is None:
            raise NotFound(f"the agent of host {path.name!r} never reported")
        return adapter_of(Capabilities).validate_python(row.capabilities)

    def domains(query: DomainQuery, host: str | None) -> Page[DomainOut]:
        with database.reading() as session:
            if host is not None:
                get(session, HostRow, host)
            after, most = read_cursor(query, _DOMAIN), query.limit + 1
            rows = list_domains(session, host, query.registered, after, most, query.search)
            shared = shared_names(session, {row.libvirt_name for row in rows if row.registered_as is None})
        return part(Page[DomainOut], query, rows, itemgetter(0, 1), lambda row: _domain(row, shared))

    @api.at("GET /hosts/<name>/domains", VIEWER_OR_OWN_HOST)
    def get_host_domains(path: NamePath, query: DomainQuery) -> Page[DomainOut]:
        """The domains that run on a host, by UUID. Unregistered domains are never touched."""
        return domains(query, path.name)

    @api.at("GET /domains", VIEWER)
    def list_domains_(query: DomainQuery) -> Page[DomainOut]:
        """The domains that run on all hosts, by host and UUID."""
        return domains(query, None)

    @api.at("GET /hosts/<name>/findings", VIEWER_OR_OWN_HOST)
    def get_host_findings(path: NamePath) -> Findings:
        """The doctor's findings on a host, as its agent last reported."""
        with database.reading() as session:
            body = get_findings(session, path.name)
        if body is None:
            raise NotFound(f"the agent of host {path.name!r} never reported findings")
        return adapter_of(Findings).validate_json(body)

    @api.at("GET /hosts/<name>/services", VIEWER_OR_OWN_HOST)
    def get_host_services(path: NamePath, query: ServiceQuery) -> ServicesPage:
        """The services in the domains that run on a host, registered or not, by UUID and port."""
        with database.reading() as session:
            reported = get_services(session, path.name)
            rows = list_domains(session, path.name, None, None, _MOST_DOMAINS)
        if reported is None:
            return ServicesPage(items=[])
        at, body = reported
        host = adapter_of(HostServices).validate_json(body)
        services = _services(host, rows, query.vm, read_cursor(query, _SERVICE))
        page = part(Page[ServiceOut], query, services, attrgetter("libvirt_uuid", "port"))
        return ServicesPage(items=page.items, next=page.next, at=at, problem=host.problem, simulated=host.simulated)

    @api.at("GET /capabilities", VIEWER)
    def list_capabilities(query: PageQuery) -> Page[HostCapabilities]:
        """The capabilities of all hosts, by name."""
        return part_by_name(
            Page[HostCapabilities],
            query,
            database,
            HostRow,
            lambda row: HostCapabilities.model_validate({"host": row.name, "capabilities": row.capabilities}),
        )

    return api


def _services(
    host: HostServices, rows: Sequence[Any], vm: str | None, after: tuple[str, int] | None
) -> list[ServiceOut]:
    """The services in the domains of ``rows``, those of ``vm`` alone if it is given, ``after`` a UUID and port."""
    domains = {row.libvirt_uuid: row for row in rows if vm is None or row.registered_as == vm}
    services = {
        (service.libvirt_uuid, service.port): service for service in host.services if service.libvirt_uuid in domains
    }
    return [
        ServiceOut(
            **fields_of(SeenService, service),
            libvirt_name=domains[uuid].libvirt_name,
            registered_as=domains[uuid].registered_as,
        )
        for (uuid, port), service in sorted(services.items(), key=itemgetter(0))
        if after is None or (uuid, port) > after
    ]
