"""More tables: reports of agents on their hosts, the registrations' revision, jobs, join tokens, and proposals."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, ForeignKey, Index, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from manager.model.migration import MigrationState
from manager.store.models import Base, JsonList, Registered, Serial, as_words


class DomainRow(Base):
    """A domain that runs on a host, registered or not, as that host's agent last reported."""

    __tablename__ = "domains"

    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True)
    libvirt_uuid: Mapped[str] = mapped_column(primary_key=True)
    libvirt_name: Mapped[str]


class ClaimRow(Base):
    """A VM on a host that does not run it.

    ``refused_at``: since when the host reports it nevertheless, or when it last did while the VM migrated to it; null:
    it does not. ``told_at``: time of the last event about that. ``left_at``: when the VM was last on that host.
    """

    __tablename__ = "vm_claims"

    vm: Mapped[str] = mapped_column(primary_key=True)
    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True, index=True)
    refused_at: Mapped[datetime | None]
    told_at: Mapped[datetime | None]
    left_at: Mapped[datetime | None]


class FindingsRow(Base):
    """The doctor's latest findings on a host. ``body`` is JSON text, ready to be answered."""

    __tablename__ = "findings"

    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True)
    body: Mapped[str]


class ServicesRow(Base):
    """The services in the domains of a host, as reported ``at``. ``body`` is JSON text."""

    __tablename__ = "services"

    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True)
    at: Mapped[datetime]
    body: Mapped[str]


class RevisionRow(Base):
    """The revision of all registrations, in a single row. ``assigned``: the last one that hosts' rows know of."""

    __tablename__ = "revision"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
    assigned: Mapped[int] = mapped_column(BigInteger, server_default="0")


class JobRow(Base):
    """A scheduled job: when any manager last began it, and since when it has run on time."""

    __tablename__ = "jobs"

    name: Mapped[str] = mapped_column(primary_key=True)
    began_at: Mapped[datetime]
    since: Mapped[datetime]


class TickRollupRow(Base):
    """The mean of the ``ticks`` of a host in a whole minute or hour (``length_s`` 60 or 3600) that began at ``start``.

    ``at`` is the time of the newest of them; ``body`` is as that of ``ticks``.
    """

    __tablename__ = "tick_rollups"
    __table_args__ = (UniqueConstraint("host", "length_s", "start"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    host: Mapped[str]
    length_s: Mapped[int]
    start: Mapped[datetime] = mapped_column(index=True)
    at: Mapped[datetime]
    ticks: Mapped[int]
    body: Mapped[str]


class JoinTokenRow(Registered):
    """A token that an agent exchanges once for its host's token; ``host`` null: any host that has not joined yet.

    ``replace``: the host may have joined already, and its tokens are replaced. Only the SHA-256 of the 256-bit random
    secret is stored. ``used_by`` is the host that joined with it.
    """

    __tablename__ = "join_tokens"
    kind = "join token"
    assigned = False

    host: Mapped[str | None]
    replace: Mapped[bool] = mapped_column(server_default=false())
    secret_hash: Mapped[str] = mapped_column(unique=True)
    expires_at: Mapped[datetime]
    used_at: Mapped[datetime | None]
    used_by: Mapped[str | None]


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
