"""One more table: proposals to migrate VMs."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Index
from sqlalchemy.orm import Mapped, mapped_column

from manager.model.migration import MigrationState
from manager.store.models import Base, JsonList, Serial, as_words


class ProposalRow(Base):
    """A proposal to migrate ``vm`` from ``source`` to ``destination`` for an application, made ``at``.

    ``predictions`` are those of ``MovePrediction``, ``unpredicted`` says why some are missing. ``decided_by``
    approved or dismissed it. The agent of the source last reported on it at ``reported_at``, when it had copied the
    part ``copied`` of the VM's memory.
    """

    __tablename__ = "proposals"
    __table_args__ = (Index(None, "source", "state"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    at: Mapped[datetime] = mapped_column(index=True)
    state: Mapped[MigrationState] = mapped_column(as_words(MigrationState))
    vm: Mapped[str]
    source: Mapped[str]
    destination: Mapped[str]
    application: Mapped[str]
    reason: Mapped[str]
    predictions: Mapped[JsonList]
    unpredicted: Mapped[str]
    decided_by: Mapped[str | None]
    decided_at: Mapped[datetime | None]
    begun_at: Mapped[datetime | None]
    reported_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    copied: Mapped[float | None]
    detail: Mapped[str]
