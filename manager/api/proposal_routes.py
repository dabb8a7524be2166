"""Proposals to migrate VMs: read, approved and dismissed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from flask import g, request
from sqlalchemy.orm import Session

from manager.api.auth import OPERATOR, VIEWER
from manager.api.context import ManagerContext
from manager.api.endpoint import RouteGroup
from manager.api.paging import RECORD, Page, part, read_cursor
from manager.api.schemas.proposal_shapes import ProposalOut, ProposalPath, ProposalQuery
from manager.store import audit
from manager.store.event_records import Position
from manager.store.host_models import ProposalRow
from manager.store.models import Json
from manager.store.proposals import approve, dismiss, get_proposal, hosts_of, list_proposals
from manager.store.revisions import note_registration

_Decide = Callable[[Session, int, str, datetime], ProposalRow]


def proposals_api(context: ManagerContext) -> RouteGroup:
    """The routes of proposals."""
    api = RouteGroup("proposals", "Proposals to migrate VMs away from hosts whose SLAs are violated.")
    database = context.database

    def out(row: ProposalRow) -> ProposalOut:
        return ProposalOut.model_validate(row, from_attributes=True)

    @api.at("GET /proposals", VIEWER)
    def list_proposals_(query: ProposalQuery) -> Page[ProposalOut]:
        """Proposals to migrate VMs, newest first."""
        with database.reading() as session:
            after = read_cursor(query, RECORD)
            rows = list_proposals(session, query.host, query.state, after, query.limit + 1)
            return part(Page[ProposalOut], query, rows, lambda row: Position(row.at, row.id), out)

    @api.at("GET /proposals/<number>", VIEWER)
    def get_proposal_(path: ProposalPath) -> ProposalOut:
        """One proposal."""
        with database.reading() as session:
            return out(get_proposal(session, path.number))

    @api.at("POST /proposals/<number>/approve", OPERATOR)
    def approve_proposal(path: ProposalPath) -> ProposalOut:
        """Have the agent of the source migrate the VM; 409 where that cannot be, or it is decided already."""
        return decided(path.number, "proposal.approve", approve)

    @api.at("POST /proposals/<number>/dismiss", OPERATOR)
    def dismiss_proposal(path: ProposalPath) -> ProposalOut:
        """Leave the VM where it is: none is proposed for it or its host during the cool-down."""
        return decided(path.number, "proposal.dismiss", dismiss)

    def decided(number: int, action: str, decide: _Decide) -> ProposalOut:
        actor, now = audit.actor_of(g.principal, request.remote_addr or ""), context.now()
        with database.exclusively() as session:
            before = _described(get_proposal(session, number))
            row = decide(session, number, f"{actor.kind} {actor.name}", now)
            note_registration(session, hosts_of([row]))
            audit.record(session, actor, action, str(number), now, before, _described(row))
            return out(row)

    return api


def _described(row: ProposalRow) -> Json:
    return {"state": row.state, "vm": row.vm, "source": row.source, "destination": row.destination}
