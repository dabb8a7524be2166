"""Schemas of proposals to migrate VMs."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from manager.api.queries import PageQuery
from manager.model.fields import Count, Name, Schema, Share, Text
from manager.model.migration import MigrationState, MovePrediction


class ProposalPath(Schema):
    """The number of a proposal."""

    number: Annotated[int, Field(ge=1, le=2**53)]


class ProposalQuery(PageQuery):
    """Which proposals."""

    host: Name | None = Field(default=None, description="from this host, or to it")
    state: MigrationState | None = None


class ProposalOut(Schema):
    """A proposal to migrate a VM, and what came of it; see docs/how-to/balance.md."""

    number: Count = Field(validation_alias="id")
    at: AwareDatetime
    state: MigrationState
    vm: Name
    source: Name
    destination: Name
    application: Name = Field(description="whose SLA is violated on the source")
    reason: Text
    predictions: list[MovePrediction]
    unpredicted: Text = Field(description="why a prediction is missing; empty: none is")
    decided_by: Text | None = Field(description="who approved or dismissed it; null: nobody yet")
    decided_at: AwareDatetime | None
    begun_at: AwareDatetime | None = Field(description="when the migration began; null: it has not")
    ended_at: AwareDatetime | None
    copied: Share | None = Field(description="part of the VM's memory that was copied; null: not known")
    detail: Text = Field(description="why it failed; empty: it did not")
