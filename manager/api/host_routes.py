"""Hosts: how they are to be controlled, and what their agents said of them."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime

from flask import Response
from flask_openapi3.blueprint import APIBlueprint
from sqlalchemy.orm import Session

from manager.api.audit_routes import audited
from manager.api.auth import OPERATOR, VIEWER, VIEWER_OR_OWN_HOST
from manager.api.context import ManagerContext
from manager.api.endpoint import answer, answers, blueprint, endpoint, no_content, written
from manager.api.merge import patched
from manager.api.pages import HostPage
from manager.api.paging import cut, name_place, read_cursor
from manager.api.queries import Conditions, NamePath, PageQuery
from manager.api.schemas.registration_shapes import HostOut, MergePatch
from manager.api.validation import shown
from manager.errors import InvalidRequest
from manager.model.fields import adapter_of
from manager.model.host import Capabilities
from manager.protocol.convert import host_fields, host_spec
from manager.protocol.registration_in import HostIn
from manager.protocol.report import TickStatus
from manager.store.agent_tenure import replace_agent, rival_of
from manager.store.hosts import adopt_host, put_host, spec_of
from manager.store.models import HostRow, Json
from manager.store.registrations import delete, get, page


def hosts_api(context: ManagerContext) -> APIBlueprint:
    """The routes of hosts."""
    api = blueprint("hosts", "KVM machines, each with one agent.")
    database = context.database

    @api.get("/hosts", responses=answers((200, HostPage)))
    @endpoint(VIEWER)
    def list_hosts(query: PageQuery) -> Response:
        """All hosts by name."""
        with database.reading() as session:
            rows = page(session, HostRow, read_cursor(query, name_place), query.limit + 1)
        rows, following = cut(rows, query.limit, lambda row: row.name)
        return answer(HostPage(items=[_host_out(row, context.now()) for row in rows], next=following))

    @api.get("/hosts/<name>", responses=answers((200, HostOut)))
    @endpoint(VIEWER_OR_OWN_HOST)
    def get_host(path: NamePath) -> Response:
        """One host."""
        with database.reading() as session:
            row = get(session, HostRow, path.name)
        return answer(_host_out(row, context.now()), etag=row.etag)

    @api.put("/hosts/<name>", responses=answers((200, HostOut), (201, HostOut)))
    @endpoint(OPERATOR)
    def put_host_(path: NamePath, header: Conditions, body: HostIn) -> Response:
        """Set how a host is to be controlled; its agent need not have reported yet."""
        refuse_unknown_policy(body.policy, context.policies)
        spec = host_spec(path.name, body)
        with audited(context, "host.put", HostRow, path.name, _described) as session:
            row, created = put_host(session, spec, context.now(), header.check)
        return written(_host_out(row, context.now()), created, row.etag)

    @api.patch("/hosts/<name>", responses=answers((200, HostOut)))
    @endpoint(OPERATOR)
    def patch_host(path: NamePath, header: Conditions, body: MergePatch) -> Response:
        """Change single fields of how a host is to be controlled."""
        with audited(context, "host.patch", HostRow, path.name, _described) as session:
            current = HostIn(**host_fields(spec_of(get(session, HostRow, path.name))))
            wanted = patched(current, body)
            # One that is not installed any more must not keep its host from being released.
            if wanted.policy != current.policy:
                refuse_unknown_policy(wanted.policy, context.policies)
            row, _ = put_host(session, host_spec(path.name, wanted), context.now(), header.check)
        return answer(_host_out(row, context.now()), etag=row.etag)

    @api.delete("/hosts/<name>", responses=answers((204, None)))
    @endpoint(OPERATOR)
    def delete_host(path: NamePath, header: Conditions) -> Response:
        """Forget a host. It comes back with the default settings when its agent reports again."""
        with audited(context, "host.delete", HostRow, path.name, _described) as session:
            delete(session, HostRow, path.name, header.check)
        return no_content()

    @api.post("/hosts/<name>/adopt", responses=answers((200, HostOut)))
    @endpoint(OPERATOR)
    def adopt_host_(path: NamePath) -> Response:
        """Adopt externally modified settings of the host itself: its agent controls them again."""
        with audited(context, "host.adopt", HostRow, path.name, _described) as session:
            row = adopt_host(session, path.name, context.now())
        return answer(_host_out(row, context.now()), etag=row.etag)

    @api.post("/hosts/<name>/replace-agent", responses=answers((200, HostOut)))
    @endpoint(OPERATOR)
    def replace_host_agent(path: NamePath) -> Response:
        """Let the agent that was refused last serve the host, in place of the one that does; 409: there is none."""
        with audited(context, "host.replace", HostRow, path.name, _described) as session:
            row = replace_agent(session, path.name, context.now())
        return answer(_host_out(row, context.now()), etag=row.etag)

    return api


def refuse_unknown_policy(name: str, installed: Collection[str]) -> None:
    """Raises InvalidRequest for a policy that nobody installed."""
    if name not in installed:
        raise InvalidRequest("policy", f"{shown(name)} is not installed; allowed: {', '.join(sorted(installed))}")


def _described(_session: Session, row: HostRow) -> Json:
    return HostIn(**host_fields(spec_of(row))).model_dump(mode="json")


def _host_out(row: HostRow, now: datetime) -> HostOut:
    return HostOut(
        name=row.name,
        **host_fields(spec_of(row)),
        created_at=row.created_at,
        updated_at=row.updated_at,
        last_seen_at=row.last_seen_at,
        silent=row.silent,
        clock_ahead_s=row.clock_ahead_s,
        agent_version=row.agent_version,
        agent_instance=row.agent_instance,
        rival_instance=rival_of(row, now),
        tick=None if row.tick is None else TickStatus.model_validate(row.tick),
        capabilities=None if row.capabilities is None else adapter_of(Capabilities).validate_python(row.capabilities),
    )
