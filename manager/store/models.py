"""The tables. Times are aware UTC datetimes on every database; names are as in the REST interface.

``events``, ``vm_status`` and packed records refer to hosts and VMs by name, because they may precede or
outlive a registration.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar

from sqlalchemy import (
    BigInteger,
    DateTime,
    Double,
    Enum,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    UniqueConstraint,
    false,
    text,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import JSON, TypeDecorator, TypeEngine

from manager.model.costs import HostCosts
from manager.model.cpus import CpuSet, format_cpus, parse_cpus
from manager.model.fields import adapter_of, json_fields
from manager.model.histogram import Histogram
from manager.model.job import BatchJob
from manager.model.knobs import Knob
from manager.model.law import Law
from manager.model.migration import MigrationUse
from manager.model.packed_histogram import UnreadHistogram, pack
from manager.model.records import OutcomeKind, Severity
from manager.model.registration import CacheControl, Mode, Sharing, Sla, VmClass
from manager.model.rules import DiskRules, MemoryRules, NetworkRules, PlacementRules
from manager.model.scheduling import Scheduling
from manager.model.warp import WarpUse, WarpWish

Json = dict[str, Any]
JsonList = list[dict[str, Any]]


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, stored as UTC. SQLite has no time zones and stores naive UTC."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To the database. Raises ValueError for a naive datetime, whose meaning would depend on the machine."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:  # noqa: ARG002
        """From the database: faster than ``process_result_value``, for lists with thousands of times.

        SQLite's driver returns text; PostgreSQL's an aware datetime in the session's time zone, which is UTC.
        """
        if dialect.name == "sqlite":
            return lambda text: None if text is None else datetime.fromisoformat(text + "+00:00")
        return None


class PcpuList(TypeDecorator[CpuSet]):
    """pCPUs, stored in the kernel's list format."""

    impl = String
    cache_ok = True

    def process_bind_param(self, value: CpuSet | None, dialect: Dialect) -> str | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else format_cpus(value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> CpuSet | None:  # noqa: ARG002
        """From the database."""
        return None if value is None else parse_cpus(value)


class JsonOf(TypeDecorator[Any]):
    """A value of ``kind``, stored as JSON.

    With ``default`` only the differences are stored (null: none), so that fields left at their default follow it when
    a later version changes it.
    """

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, kind: type, default: object = None) -> None:
        super().__init__()
        self.kind, self.default = kind, default

    def process_bind_param(self, value: object, dialect: Dialect) -> Json | None:  # noqa: ARG002
        """To the database."""
        if value is None:
            return None
        written = json_fields(value)
        if self.default is None:
            return written
        defaults = json_fields(self.default)
        return {name: part for name, part in written.items() if part != defaults[name]} or None

    def process_result_value(self, value: Json | None, dialect: Dialect) -> Any:  # noqa: ARG002
        """From the database."""
        return self.default if value is None else adapter_of(self.kind).validate_python(value)


class PackedHistogram(TypeDecorator[Histogram]):
    """A histogram, stored as few bytes."""

    impl = LargeBinary
    cache_ok = True

    def process_bind_param(self, value: Histogram | None, dialect: Dialect) -> bytes | None:  # noqa: ARG002
        """To the database."""
        return None if value is None else pack(value)

    def process_result_value(self, value: bytes | None, dialect: Dialect) -> Histogram | None:  # noqa: ARG002
        """From the database: it takes little room until its buckets are asked for."""
        return None if value is None else UnreadHistogram(value)


def as_words(kind: type[StrEnum]) -> Enum:
    """A column of an enumeration as plain text, so that a new value needs no migration."""
    return Enum(kind, native_enum=False, length=32, values_callable=lambda members: [word.value for word in members])


def only_where(condition: str) -> dict[str, Any]:
    """Arguments of a partial index with a condition, on every database."""
    return {f"{dialect}_where": text(condition) for dialect in ("sqlite", "postgresql")}


_WORDS = (Knob, OutcomeKind, Severity, Mode, Sharing, VmClass, WarpUse, CacheControl, MigrationUse)

# Row numbers of tables that grow without limit; SQLite numbers rows only in a column of exactly this type.
Serial = BigInteger().with_variant(Integer, "sqlite")


class Base(DeclarativeBase):
    """Base of all tables. Constraints have names, so that a migration can drop them on any database."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[object, TypeEngine[Any]]] = {
        str: String(),
        float: Double(),
        datetime: UtcDateTime(),
        Json: JSON(none_as_null=True),
        JsonList: JSON(none_as_null=True),
        Histogram: PackedHistogram(),
        **{kind: as_words(kind) for kind in _WORDS},
    }


class Registered(Base):
    """Common columns of registered objects. ``version`` counts changes of the registration."""

    __abstract__ = True
    __table_args__: object = {"sqlite_autoincrement": True}  # never reuse an id: the ETag is built from it
    kind: ClassVar[str]
    assigned: ClassVar[bool] = True
    """Whether assignments of hosts depend on it."""

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    version: Mapped[int] = mapped_column(default=1)
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]

    @property
    def etag(self) -> str:
        """Identifies this version of the registration; never reused for another object."""
        return f"{self.id}.{self.version}"


class HostRow(Registered):
    """A host: its settings as in ``HostSpec``, and its agent's last report.

    ``assigned_revision``: see ``manager.store.revisions``.
    ``silent`` and ``clock_off``: according to the latest event it does not report, or its clock is off; ``back_at``:
    when it last reported again after silence. ``clock_ahead_s``: its clock's lead at the last report; null: unknown.
    ``agent_instance`` to ``rival_boot``: see ``Tenure``; ``rival_at``: time of the last event about a rival.
    ``tick_errors`` to ``busy_share`` are those fields of ``tick`` that lists of all hosts read.
    ``shares``: what VMs used since, see ``manager.store.vm_shares``; read only where it is asked for.
    ``watched_until``: see ``manager.store.watched_hosts``; null: nobody ever looked.
    ``live``: windows of its last live report, see ``manager.store.live_plane``, and ``glances``: what lists show of
    them; null: there was none.
    """

    __tablename__ = "hosts"
    kind = "host"

    mode: Mapped[Mode]
    policy: Mapped[str]
    pinning: Mapped[bool]
    batch_idle: Mapped[bool] = mapped_column(server_default=false())
    warp: Mapped[WarpUse] = mapped_column(server_default="off")
    warp_max_us: Mapped[int] = mapped_column(server_default="50000")
    cache: Mapped[CacheControl] = mapped_column(server_default="off")
    cache_mount: Mapped[bool] = mapped_column(server_default=false())
    bandwidth_warning: Mapped[float] = mapped_column(server_default="0.9")
    law: Mapped[Law] = mapped_column(JsonOf(Law, Law()), nullable=True)
    placement: Mapped[PlacementRules] = mapped_column(JsonOf(PlacementRules, PlacementRules()), nullable=True)
    memory: Mapped[MemoryRules] = mapped_column(JsonOf(MemoryRules, MemoryRules()), nullable=True)
    disk: Mapped[DiskRules] = mapped_column(JsonOf(DiskRules, DiskRules()), nullable=True)
    network: Mapped[NetworkRules] = mapped_column(JsonOf(NetworkRules, NetworkRules()), nullable=True)
    migrate: Mapped[MigrationUse] = mapped_column(server_default="propose")
    costs: Mapped[HostCosts] = mapped_column(JsonOf(HostCosts, HostCosts()), nullable=True)
    adoptions: Mapped[int] = mapped_column(default=0, server_default="0")
    assigned_revision: Mapped[int] = mapped_column(BigInteger, server_default="0")
    last_seen_at: Mapped[datetime | None]
    silent: Mapped[bool] = mapped_column(default=False, server_default=false())
    back_at: Mapped[datetime | None]
    clock_ahead_s: Mapped[float | None]
    clock_off: Mapped[bool] = mapped_column(default=False, server_default=false())
    agent_version: Mapped[str | None]
    agent_instance: Mapped[str | None]
    agent_boot: Mapped[str | None]
    former_boot: Mapped[str | None]
    rival_instance: Mapped[str | None]
    rival_boot: Mapped[str | None]
    rival_at: Mapped[datetime | None]
    tick: Mapped[Json | None]
    tick_errors: Mapped[int | None] = mapped_column(BigInteger)
    tick_ms: Mapped[float | None]
    libvirt_connected: Mapped[bool | None]
    busy_share: Mapped[float | None]
    capabilities: Mapped[Json | None]
    shares: Mapped[str | None] = mapped_column(deferred=True)
    watched_until: Mapped[datetime | None]
    live: Mapped[bytes | None] = mapped_column(deferred=True)
    glances: Mapped[bytes | None] = mapped_column(deferred=True)


class VmRow(Registered):
    """A registered VM, which need not exist, as in ``VmSpec``."""

    __tablename__ = "vms"
    __table_args__ = (Index(None, "libvirt_name"), {"sqlite_autoincrement": True})
    kind = "VM"

    vm_class: Mapped[VmClass]
    libvirt_name: Mapped[str | None]
    libvirt_uuid: Mapped[str | None] = mapped_column(unique=True)
    host: Mapped[str | None] = mapped_column(index=True)
    weight: Mapped[int | None]
    pin: Mapped[bool | None]
    cpus: Mapped[CpuSet | None] = mapped_column(PcpuList())
    max_pcpus: Mapped[float | None]
    warp_us: Mapped[WarpWish | None] = mapped_column(JSON(none_as_null=True))
    scheduling: Mapped[Scheduling | None] = mapped_column(JsonOf(Scheduling))
    job: Mapped[BatchJob | None] = mapped_column(JsonOf(BatchJob))
    mode: Mapped[Mode | None]
    adoptions: Mapped[int] = mapped_column(default=0, server_default="0")


class VmStatusRow(Base):
    """The last reported status of a VM: one row per VM, from the host that reported it last.

    ``body`` is the status as JSON text, without the shares, which have columns; newer ones are in ``hosts``.
    """

    __tablename__ = "vm_status"

    vm: Mapped[str] = mapped_column(primary_key=True)
    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), index=True)
    at: Mapped[datetime]
    cpu_share: Mapped[float] = mapped_column(server_default="0")
    run_delay_share: Mapped[float] = mapped_column(server_default="0")
    body: Mapped[str]


class ApplicationRow(Registered):
    """A service with its SLA. ``sources``: as ``model.source.SOURCES`` writes them; null: none."""

    __tablename__ = "applications"
    kind = "application"

    mode: Mapped[Mode | None]
    sla_response_time_ms: Mapped[float | None]
    sla_percentile: Mapped[float | None]
    sla_max_rate_rps: Mapped[float | None]
    sharing: Mapped[Sharing | None]
    warp_us: Mapped[WarpWish | None] = mapped_column(JSON(none_as_null=True))
    cache: Mapped[str | None]
    sources: Mapped[JsonList | None]

    @property
    def sla(self) -> Sla | None:
        """Its SLA; null columns: none."""
        if self.sla_response_time_ms is None or self.sla_percentile is None:
            return None
        return Sla(self.sla_response_time_ms, self.sla_percentile, self.sla_max_rate_rps)


class TierRow(Base):
    """One tier of an application; ``position`` is its place among them."""

    __tablename__ = "tiers"
    __table_args__ = (UniqueConstraint("application_id", "name"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    application_id: Mapped[int] = mapped_column(ForeignKey("applications.id", ondelete="CASCADE"))
    name: Mapped[str]
    position: Mapped[int]


class TierVmRow(Base):
    """A VM of a tier. The VM is the key: it serves at most one tier of one application."""

    __tablename__ = "tier_vms"

    vm_id: Mapped[int] = mapped_column(ForeignKey("vms.id", ondelete="RESTRICT"), primary_key=True)
    tier_id: Mapped[int] = mapped_column(ForeignKey("tiers.id", ondelete="CASCADE"), index=True)
    position: Mapped[int]


class PastApplicationRow(Base):
    """A removed application that still has windows or roll-ups.

    Registered again, it continues with its ``id`` and ``version``, and so with its history. ``sla``: by field; null:
    none.
    """

    __tablename__ = "past_applications"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(unique=True)
    version: Mapped[int]
    removed_at: Mapped[datetime]
    sla: Mapped[Json | None]


class WindowRow(Base):
    """Response times of an application that ended in one slot, from one origin, where no others came with them.

    Those of a host's history are in ``window_minutes``, older ones of all origins in ``window_packs``.

    They outlive the application, see ``PastApplicationRow``; so do roll-ups.
    ``slot`` is the aligned start of the slot; ``start_at`` .. ``end_at`` is the time that the samples cover.
    ``origin`` is the host whose agent counted them, empty for samples posted to the manager. ``histogram``,
    ``requests`` and ``ready`` are as in ``manager.model.window``. ``ahead``: it was in the future when it arrived.
    """

    __tablename__ = "windows"
    __table_args__ = (UniqueConstraint("application_id", "slot", "origin"),)

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    application_id: Mapped[int]
    slot: Mapped[datetime] = mapped_column(index=True)
    origin: Mapped[str]
    start_at: Mapped[datetime]
    end_at: Mapped[datetime]
    count: Mapped[int] = mapped_column(BigInteger)
    histogram: Mapped[Histogram]
    requests: Mapped[float | None]
    ready: Mapped[Json | None]
    ahead: Mapped[bool] = mapped_column(default=False, server_default=false())


class RollupRow(Base):
    """Response times of an application in a whole minute or hour (``length_s`` 60 or 3600) that began at ``start``.

    ``slots`` counts the slots with data, ``judged`` those with enough samples, ``violated`` those that violated the SLA
    in force at the time; ``violations`` are runs of those (``start_s``, ``end_s`` after ``start``, ``violated``),
    null: none. The other columns are as in ``windows``.
    """

    __tablename__ = "rollups"
    __table_args__ = (UniqueConstraint("application_id", "length_s", "start"), Index(None, "length_s", "start"))

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    application_id: Mapped[int]
    length_s: Mapped[int]
    start: Mapped[datetime]
    count: Mapped[int] = mapped_column(BigInteger)
    histogram: Mapped[Histogram]
    requests: Mapped[float | None]
    ready: Mapped[Json | None]
    slots: Mapped[int]
    judged: Mapped[int]
    violated: Mapped[int]
    violations: Mapped[JsonList | None]


class SourceStatusRow(Base):
    """The status of a source of response times on a host, as its agent last reported.

    ``body`` is the status as JSON text, ready to be answered.
    """

    __tablename__ = "source_status"

    application_id: Mapped[int] = mapped_column(ForeignKey("applications.id", ondelete="CASCADE"), primary_key=True)
    source: Mapped[str] = mapped_column(primary_key=True)
    host_id: Mapped[int] = mapped_column(ForeignKey("hosts.id", ondelete="CASCADE"), primary_key=True, index=True)
    at: Mapped[datetime]
    body: Mapped[str]


class EventRow(Base):
    """An event; ``vm`` null: about the host itself.

    ``record_id`` is the agent's UUID, which identifies a repeated report. ``claimed_at``: when it was by the host's
    clock, if that was ahead; see ``manager.control.dating``.
    """

    __tablename__ = "events"
    __table_args__ = tuple(Index(None, *columns, "at", "id") for columns in ((), ("host",), ("vm",)))

    id: Mapped[int] = mapped_column(Serial, primary_key=True)
    record_id: Mapped[str] = mapped_column(unique=True)
    at: Mapped[datetime]
    host: Mapped[str]
    vm: Mapped[str | None]
    claimed_at: Mapped[datetime | None]
    severity: Mapped[Severity]
    kind: Mapped[str]
    message: Mapped[str]
