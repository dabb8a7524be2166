"""More tables: ticks and decisions of a host, and windows of an application, many in a row."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import ClassVar

from sqlalchemy import BigInteger, Index, UniqueConstraint
from sqlalchemy.orm import Mapped, declared_attr, mapped_column

from manager.store.models import Base, Serial

QUARTER = timedelta(minutes=15)
"""What older ticks and windows of a row are of: the longer, the fewer bytes, and the more are read for a few."""


class PackRow(Base):
    """Common columns. All that is in a row happened within ``longest``, at ``last_at`` the newest of it.

    ``claimed_from`` and ``claimed_until``: when the oldest and the newest happened by the host's clock, which may have
    been ahead, see ``manager.control.dating``; by that a repeated report is found again. ``body``: see
    ``manager.model.packed_records``.
    """

    __abstract__ = True
    longest: ClassVar[timedelta] = timedelta(minutes=1)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    host: Mapped[str]
    last_at: Mapped[datetime] = mapped_column(index=True)
    claimed_from: Mapped[datetime]
    claimed_until: Mapped[datetime]
    body: Mapped[bytes]

    @declared_attr.directive
    def __table_args__(cls) -> tuple[Index, ...]:  # noqa: N805 - a class
        return Index(None, "host", "last_at"), Index(None, "host", "claimed_until")


class TickPackRow(PackRow):
    """Ticks of a host, of a minute or, where they are older, of a quarter of an hour."""

    __tablename__ = "tick_packs"
    longest = QUARTER + PackRow.longest  # rows of a minute that ends in the quarter are joined whole


class DecisionPackRow(PackRow):
    """Decisions of a host. ``about``: their VMs, knobs and outcomes, see ``manager.store.decision_packs``."""

    __tablename__ = "decision_packs"

    about: Mapped[str]


class DecidedVmRow(Base):
    """A VM about which a host decided anything on a day (UTC), given by its start."""

    __tablename__ = "decided_vms"
    __table_args__ = (UniqueConstraint("vm", "host", "day"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    vm: Mapped[str]
    host: Mapped[str]
    day: Mapped[datetime] = mapped_column(index=True)


class WindowPackRow(Base):
    """The older windows of an application of a quarter of an hour that began at ``start``, of all origins.

    Rows that came before revision 0014 have those of a minute.

    ``body``: see ``manager.model.packed_windows``.
    """

    __tablename__ = "window_packs"
    __table_args__ = (UniqueConstraint("application_id", "start"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    application_id: Mapped[int]
    start: Mapped[datetime] = mapped_column(index=True)
    body: Mapped[bytes]


class WindowMinuteRow(Base):
    """Windows of an application of one minute that a host, the ``origin``, brought together in its history.

    ``newest``: start of the newest slot. ``digest`` of ``body`` shows that the same came before; for ``body`` see
    ``manager.model.packed_windows``.
    """

    __tablename__ = "window_minutes"
    __table_args__ = (UniqueConstraint("application_id", "newest", "origin", "digest"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    application_id: Mapped[int]
    newest: Mapped[datetime]
    origin: Mapped[str]
    digest: Mapped[int] = mapped_column(BigInteger)
    body: Mapped[bytes]
