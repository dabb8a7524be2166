"""What agents reported of their hosts: what these offer, the domains that run there, and what the doctor found."""

from __future__ import annotations

import json

from flask import Response
from flask_openapi3.blueprint import APIBlueprint

from manager.api.auth import VIEWER, VIEWER_OR_OWN_HOST
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint
from manager.api.pages import CapabilitiesPage, DomainPage, HostCapabilities
from manager.api.paging import cut, name_place, read_cursor
from manager.api.queries import DomainQuery, NamePath, PageQuery
from manager.api.schemas.registration_shapes import DomainOut
from manager.errors import NotFound
from manager.model.fields import adapter_of
from manager.model.finding import Findings
from manager.model.host import Capabilities
from manager.store.hosts import get_findings, list_domains
from manager.store.models import HostRow
from manager.store.registrations import get, page


def reported_api(context: ManagerContext) -> APIBlueprint:
    """The routes of what agents reported of their hosts."""
    api = blueprint("reported", "What agents found on their hosts.")
    database = context.database

    @api.get("/hosts/<name>/capabilities", responses=answers((200, Capabilities)))
    @endpoint(VIEWER_OR_OWN_HOST)
    def get_host_capabilities(path: NamePath) -> Response:
        """What a host offers, as its agent last reported."""
        with database.reading() as session:
            row = get(session, HostRow, path.name)
        if row.capabilities is None:
            raise NotFound(f"the agent of host {path.name!r} never reported")
        return answer(adapter_of(Capabilities).validate_python(row.capabilities))

    def domains(query: DomainQuery, host: str | None) -> DomainPage:
        with database.reading() as session:
            if host is not None:
                get(session, HostRow, host)
            after = read_cursor(query, _domain_place)
            found = list_domains(session, host, query.registered, after, query.limit + 1)
        rows, following = cut(found, query.limit, lambda row: json.dumps(row[:2]))
        names = ("host", "libvirt_uuid", "libvirt_name", "registered_as")
        items = [DomainOut.model_validate(dict(zip(names, row, strict=True))) for row in rows]
        return DomainPage(items=items, next=following)

    @api.get("/hosts/<name>/domains", responses=answers((200, DomainPage)))
    @endpoint(VIEWER_OR_OWN_HOST)
    def get_host_domains(path: NamePath, query: DomainQuery) -> Response:
        """The domains that run on a host, by UUID. Those that are not registered are never touched."""
        return answer(domains(query, path.name))

    @api.get("/domains", responses=answers((200, DomainPage)))
    @endpoint(VIEWER)
    def list_domains_(query: DomainQuery) -> Response:
        """The domains that run on all hosts, by host and UUID."""
        return answer(domains(query, None))

    @api.get("/hosts/<name>/findings", responses=answers((200, Findings)))
    @endpoint(VIEWER_OR_OWN_HOST)
    def get_host_findings(path: NamePath) -> Response:
        """What works on a host, what is missing or ignored, and what to do about it, as its agent last found out."""
        with database.reading() as session:
            body = get_findings(session, path.name)
        if body is None:
            raise NotFound(f"the agent of host {path.name!r} never reported findings")
        return answer(adapter_of(Findings).validate_json(body))

    @api.get("/capabilities", responses=answers((200, CapabilitiesPage)))
    @endpoint(VIEWER)
    def list_capabilities(query: PageQuery) -> Response:
        """What all hosts offer, by name of the host."""
        with database.reading() as session:
            rows = page(session, HostRow, read_cursor(query, name_place), query.limit + 1)
        rows, following = cut(rows, query.limit, lambda row: row.name)
        items = [HostCapabilities.model_validate({"host": row.name, "capabilities": row.capabilities}) for row in rows]
        return answer(CapabilitiesPage(items=items, next=following))

    return api


def _domain_place(text: str) -> tuple[str, str]:
    """A cursor of a list of domains. Raises ValueError."""
    match json.loads(name_place(text)):
        case [str(host), str(uuid)] if (host + uuid).isprintable():
            return host, uuid
    raise ValueError(text)
