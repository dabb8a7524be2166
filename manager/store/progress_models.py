"""More tables: what is still to be rolled up, and when rows arrived by a clock that nobody sets."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Double, UniqueConstraint, false
from sqlalchemy.orm import Mapped, mapped_column

from manager.store.models import Base, Serial


class UnrolledWindowsRow(Base):
    """A minute or hour (``length_s`` 60 or 3600) of an application, to be rolled up: something in it is new.

    ``origin`` is that of the windows, so that hosts which report of one application do not wait for each other; empty
    for hours. ``taken``: it is being rolled up; false again when something came meanwhile.
    """

    __tablename__ = "unrolled_windows"
    __table_args__ = (UniqueConstraint("application_id", "length_s", "start", "origin"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    application_id: Mapped[int]
    length_s: Mapped[int]
    start: Mapped[datetime]
    until: Mapped[datetime]
    origin: Mapped[str]
    taken: Mapped[bool] = mapped_column(default=False, server_default=false())


class UnrolledTicksRow(Base):
    """A minute or hour of a host, to be rolled up: it has ticks that are new. ``id``: in the order of arrival."""

    __tablename__ = "unrolled_ticks"
    __table_args__ = (UniqueConstraint("host", "length_s", "start"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    host: Mapped[str]
    length_s: Mapped[int]
    start: Mapped[datetime]
    until: Mapped[datetime]


class UptimeRow(Base):
    """How long managers have been up in all (``total_s``) when the boot clock of a machine said ``boot_s``.

    ``boot`` names the machine's boot; ``at`` is what its clock said. See ``manager.control.uptime``.
    """

    __tablename__ = "uptimes"

    boot: Mapped[str] = mapped_column(primary_key=True)
    boot_s: Mapped[float] = mapped_column(Double())
    total_s: Mapped[float] = mapped_column(Double())
    at: Mapped[datetime]


class ArrivalRow(Base):
    """The newest row of what is kept (``kept``) when managers had been up for ``total_s``, at ``at`` by their clock."""

    __tablename__ = "arrivals"
    __table_args__ = (UniqueConstraint("kept", "total_s"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    kept: Mapped[str]
    total_s: Mapped[float] = mapped_column(Double())
    at: Mapped[datetime]
    newest_id: Mapped[int] = mapped_column(Serial)
