"""More tables: the interference tables of applications."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Double, ForeignKey, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from manager.store.models import Base, Serial

_OF_APPLICATION = "applications.id"


class InterferenceLookRow(Base):
    """How far the interference tables of an application are: its history was read ``until`` then, last ``at``.

    ``percentile`` and ``sla_ms`` are the SLA that they are about. ``size``: the vCPUs of its VMs, by tier, which it has
    had ``size_since`` then (null: as far as is known). ``why``: which minutes did not count.
    """

    __tablename__ = "interference_looks"

    application_id: Mapped[int] = mapped_column(ForeignKey(_OF_APPLICATION, ondelete="CASCADE"), primary_key=True)
    at: Mapped[datetime]
    until: Mapped[datetime]
    percentile: Mapped[float] = mapped_column(Double())
    sla_ms: Mapped[float] = mapped_column(Double())
    size: Mapped[str]
    size_since: Mapped[datetime | None]
    why: Mapped[str]


class InterferenceTableRow(Base):
    """The interference table of an application on hosts of one type, of ``minutes`` from ``since`` until ``until``.

    ``loads`` (of ``LargestLoad``) and ``measured`` (of ``MeasuredMinute``) are JSON text.
    """

    __tablename__ = "interference_tables"
    __table_args__ = (UniqueConstraint("application_id", "host_type"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    application_id: Mapped[int] = mapped_column(ForeignKey(_OF_APPLICATION, ondelete="CASCADE"))
    host_type: Mapped[str]
    since: Mapped[datetime]
    until: Mapped[datetime]
    minutes: Mapped[int]
    peak_rps: Mapped[float] = mapped_column(Double())
    loads: Mapped[str]
    measured: Mapped[str]
