"""More tables: what agents report of their hosts, and the number that tells which registrations they know."""

from __future__ import annotations

from sqlalchemy import BigInteger, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from manager.store.models import Base


class DomainRow(Base):
    """A domain that runs on a host, registered or not, as that host's agent last reported."""

    __tablename__ = "domains"

    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True)
    libvirt_uuid: Mapped[str] = mapped_column(primary_key=True)
    libvirt_name: Mapped[str]


class FindingsRow(Base):
    """What a host's agent last found out about it. ``body`` is JSON text, ready to be answered."""

    __tablename__ = "findings"

    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True)
    body: Mapped[str]


class OrdersRow(Base):
    """Counts the changes of all that is registered, in the one row that it has."""

    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    number: Mapped[int] = mapped_column(BigInteger)
