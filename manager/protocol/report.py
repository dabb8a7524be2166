"""Shapes of what agents report."""

from __future__ import annotations

from binascii import a2b_base64, b2a_base64
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field

from manager.model.decision import MOST_AGE_S, MOST_FALL
from manager.model.energy import HostPower
from manager.model.fields import (
    WIRE,
    Count,
    DomainName,
    Moment,
    Name,
    Schema,
    Share,
    Text,
    Uuid,
    fields_of,
    written_as,
)
from manager.model.finding import Findings
from manager.model.histogram import Histogram
from manager.model.host import Capabilities
from manager.model.host_health import TickHealth
from manager.model.job import BatchVm
from manager.model.knobs import Knob
from manager.model.migration import MigrationReport
from manager.model.packed_histogram import MOST_BYTES, UnreadHistogram, as_packed
from manager.model.packed_ticks import MOST_TICKS
from manager.model.records import DecisionRecord, Event, KnobIndex, TickRecord
from manager.model.registration import Mode
from manager.model.resource_use import ResourceUse
from manager.model.source import SourceStatus
from manager.model.traffic import HostServices
from manager.model.warp import Mechanism
from manager.model.window import BUCKETS, Window

Rate = Annotated[float, Field(ge=0, le=1e15)]


class KnobStatus(Schema):
    """One knob of a running VM: what it holds, what it held before, and who owns it.

    ``knob`` is kept as text: an agent writes hundreds of these each second, and pydantic asks each enum for its value.
    """

    model_config = ConfigDict(use_enum_values=True)

    knob: Knob
    index: KnobIndex
    value: Text
    original: Text | None = Field(default=None, description="value before the first change; null: never changed")
    owned: bool = False
    external: bool = Field(default=False, description="another tool changed it, so it is left alone")


class KnobChange(Schema):
    """One setting and what it would be instead."""

    knob: Knob
    index: KnobIndex
    current: Text
    planned: Text
    reason: Text


class VmStatus(Schema):
    """A managed VM as its agent last saw it."""

    vm: Name
    libvirt_name: DomainName
    libvirt_uuid: Uuid
    pid: int = Field(ge=1, le=2**31)
    vcpus: int = Field(ge=0, le=8192)
    cpu_share: Share = Field(description="CPU time used in the last interval, as a fraction of the whole host")
    run_delay_share: float = Field(ge=0, description="time its vCPUs waited for a pCPU, per second of the interval")
    knobs: list[KnobStatus] = Field(default_factory=list)
    mode: Mode | None = Field(default=None, description="in force: the most cautious of host, application and VM")
    observed: list[KnobChange] = Field(default_factory=list, description="what is not written because of mode observe")
    warp_us: Count | None = Field(default=None, description="warp in force, in microseconds; null: none")
    migrating: bool = Field(default=False, description="libvirt migrates its domain from here to another host")


class DomainBody(Schema):
    """A domain that runs on a host, registered or not."""

    libvirt_name: DomainName
    libvirt_uuid: Uuid


class WarpStatus(Schema):
    """By which mechanism warps are given."""

    mechanism: Mechanism
    detail: Text = Field(description="why that one")
    can: Text
    cannot: Text
    vms: Count = Field(description="VMs whose warp is in force, read back")
    counters: dict[Name, Count] = Field(
        default_factory=dict, description="what our sched_ext scheduler counted since it was loaded"
    )


class PowerControlStatus(Schema):
    """What is changed so that pCPUs with critical vCPUs answer sooner."""

    pcpus: Count = Field(description="pCPUs that may take no longer to resume from idle than is set")
    clocks: Count = Field(description="cpufreq policies whose governor is set")


class CachePart(Schema):
    """The ways of a group in one domain of the cache, which mostly is a socket."""

    domain: Count
    ways: Count
    mask: Annotated[str, Field(pattern="^[0-9a-f]{1,16}$", description="in hexadecimal, bit 0 is the first way")]


class CacheGroup(Schema):
    """A group of resctrl: ours, or the default one, which all is in that is nowhere else."""

    name: Text = Field(description="empty: the default group")
    applications: list[Name] = Field(default_factory=list, description="whose critical VMs have it; none: the rest")
    vms: list[Name] = Field(default_factory=list)
    parts: list[CachePart] = Field(default_factory=list)
    external: bool = Field(default=False, description="another tool changed it, so it is left alone")
    bandwidth: Text = Field(default="", description="to which its memory traffic is held, such as 30 %; empty: not")


class CacheTraffic(Schema):
    """What a VM has of one domain: of its cache, and of the memory's bandwidth. Null: not known."""

    domain: Count
    occupancy_bytes: Count | None = None
    bandwidth_total_bytes_per_s: Rate | None = Field(default=None, description="from and to all memory")
    bandwidth_local_bytes_per_s: Rate | None = Field(default=None, description="from and to the domain's own memory")


class CacheVm(Schema):
    """A VM that is measured."""

    vm: Name
    parts: list[CacheTraffic] = Field(default_factory=list)


class CacheMemory(Schema):
    """The memory of one domain of the cache."""

    domain: Count
    bandwidth_bytes_per_s: Rate | None = Field(default=None, description="of all that runs; null: not known now")
    maximum_bytes_per_s: Rate | None = Field(
        default=None, description="the most that lasted since the host started; null: never was much"
    )
    saturated: bool = Field(default=False, description="above `bandwidth_warning` of that for some time")


class CacheStatus(Schema):
    """How the last-level cache is divided, and who has how much of it and of the memory's bandwidth."""

    resource: Text = Field(default="", description="such as L3; empty: this host cannot divide its cache")
    ways: Count = Field(default=0, description="of each domain")
    shareable: Text = Field(default="0", description="mask of the ways that other hardware uses, too")
    groups: list[CacheGroup] = Field(default_factory=list)
    groups_of_others: Count = Field(default=0, description="groups of other tools")
    notes: list[Text] = Field(default_factory=list, description="what is not as it was asked for")
    vms: list[CacheVm] = Field(default_factory=list, description="empty: none is measured")
    memories: list[CacheMemory] = Field(default_factory=list, description="empty: not measured")


class BatchStatus(Schema):
    """The batch VMs of a host beside their floor."""

    cpu_share: Share = Field(description="what they got, averaged over `window_s`")
    floor: Share = Field(description="what they get at least")
    window_s: float = Field(gt=0, description="`law.floor_window_s`, or less while the agent has not seen so much yet")
    raised: bool = Field(description="they got too little: they have more weight, and left the idle class")


class GuardStatus(Schema):
    """What the guard of a host did since its agent started."""

    acts: bool = Field(description="false: it only tells what it would have done")
    holding: bool = Field(description="an episode is under way: batch VMs are held")
    episodes: Count
    held_s: float = Field(ge=0, description="time for which batch VMs were held")
    last: Text = Field(default="", description="the last episode, in words; empty: there was none")


MOST_BUSY_VMS = 32
MOST_VCPUS = 256
MOST_BATCH_VMS = 256
MOST_PCPUS = 8192


PcpuNumber = Annotated[str, Field(pattern="^[0-9]{1,5}$")]
PcpuShare = Annotated[float, Field(ge=0, le=1, description="of the pCPU's time")]


class VcpusStatus(Schema):
    """What each vCPU of a VM did in the last interval, as parts of it; of the first 256."""

    vm: Name
    used: list[Share] = Field(max_length=MOST_VCPUS, description="ran")
    waited: list[Share] = Field(max_length=MOST_VCPUS, description="vCPU wait (steal): wanted to run, but had no pCPU")


class ShownCauseStatus(Schema):
    """A VM that an experiment of the policy has shown to slow an application."""

    vm: Name
    fall: float = Field(ge=0, le=MOST_FALL, description="of ln(percentile) while the VM was held back")
    confidence: float = Field(ge=0, le=1, description="1 minus the probability that a harmless VM is named")
    age_s: float = Field(ge=0, le=MOST_AGE_S, description="how long before the tick the experiment ended")


class ExplanationStatus(Schema):
    """What the policy of a host does for an application, and why."""

    application: Name
    text: Text
    cause: ShownCauseStatus | None = Field(
        default=None,
        exclude_if=lambda cause: cause is None,
        description="who slows the application, shown by experiment; absent: nobody was shown to",
    )


class TickStatus(Schema):
    """The last control interval of an agent."""

    number: Count
    at: Moment
    duration_ms: float = Field(ge=0)
    overruns: Count
    errors: Count
    host_cpu_share: Share = Field(description="busy share of all pCPUs")
    vms_cpu_share: Share = Field(description="share used by managed VMs")
    owned_knobs: Count = Field(description="settings that now differ from their original because of Equipoise")
    mode: Mode
    policy: Name
    libvirt_connected: bool
    critical_cpu_share: Share | None = Field(
        default=None, description="share used by critical VMs; null: the first tick, which measures nothing"
    )
    batch_cpu_share: Share | None = Field(default=None, description="share used by batch VMs; null as above")
    batch: BatchStatus | None = Field(default=None, description="null: no batch VM is controlled")
    batch_vms: list[BatchVm] = Field(
        default_factory=list,
        max_length=MOST_BATCH_VMS,
        exclude_if=lambda vms: not vms,
        description="how batch VMs fare, those with a job first, then the slowest; absent: none is known yet",
    )
    guard: GuardStatus | None = Field(default=None, description="null: it is switched off")
    observed: list[KnobChange] = Field(
        default_factory=list, description="of the host itself: what is not written because of mode observe"
    )
    assignment_revision: Count | None = Field(
        default=None, description="revision of the assignment it acted on; null: unknown"
    )
    warp: WarpStatus | None = Field(default=None, description="null: switched off")
    cache: CacheStatus | None = Field(default=None, description="null: switched off")
    stalled_s: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="for so long no tick has ended, at the last report; null: ticks go on"
    )
    discovery_age_s: float | None = Field(default=None, ge=0, description="since libvirt last listed all domains")
    busy_pcpus: dict[PcpuNumber, PcpuShare] = Field(
        default_factory=dict,
        max_length=MOST_PCPUS,
        description="measured busy share of each managed pCPU in the last interval, by its number; empty: not known,"
        " as at the first tick",
    )
    busy_vcpus: list[VcpusStatus] = Field(
        default_factory=list,
        max_length=MOST_BUSY_VMS,
        description="VMs with a vCPU that wanted to run for 75 % of the interval or more, critical ones first",
    )
    limited: list[Text] = Field(
        default_factory=list, description="what was assigned and is not done: the agent's own settings forbid it"
    )
    explanations: list[ExplanationStatus] = Field(
        default_factory=list, description="by application; empty: the policy gives none"
    )
    resources: ResourceUse | None = Field(
        default=None,
        exclude_if=lambda resources: resources is None,
        description="what is used besides CPU time, of the last round of readings: VMs, disks and uplinks that do"
        " something; absent: not measured yet",
    )
    power: HostPower | None = Field(
        default=None,
        exclude_if=lambda power: power is None,
        description="of processors and their memory, mean of the last round of readings; absent: not readable, or not"
        " yet",
    )
    power_controls: PowerControlStatus | None = Field(
        default=None, exclude_if=lambda controls: controls is None, description="absent: nothing of it is changed"
    )

    @property
    def health(self) -> TickHealth:
        """What it says of the host's health."""
        return TickHealth(self.errors, self.duration_ms, self.libvirt_connected, self.host_cpu_share)


_PackedTicks = Annotated[
    str,
    Field(
        pattern="^[A-Za-z0-9+/]*={0,2}$",
        description="base64 of ticks of less than a minute as the manager stores them: `manager.model.packed_records`",
    ),
]
_PackedText = Annotated[
    str,
    Field(
        max_length=-(-MOST_BYTES // 3) * 4,
        pattern="^[A-Za-z0-9+/]*={0,2}$",
        description="base64 of a histogram as the manager stores it",
    ),
]


def _read_packed(text: str) -> UnreadHistogram:
    return UnreadHistogram(a2b_base64(text, strict_mode=True))


def _write_packed(histogram: UnreadHistogram) -> str:
    return b2a_base64(histogram.packed, newline=False).decode()


def _is_unread(histogram: Histogram) -> bool:
    return isinstance(histogram, UnreadHistogram)


def _is_absent(value: object) -> bool:
    return value is None


NO_BUCKETS = Histogram()
"""The histogram of a window that came with none."""


def _no_buckets() -> Histogram:
    return NO_BUCKETS


@dataclass(frozen=True, slots=True)
class ReportedWindow(Window):
    """A window with ``buckets`` or with ``packed``, which counts where there are both."""

    histogram: Annotated[Histogram, Field(alias="buckets", exclude_if=_is_unread), BUCKETS] = field(
        default_factory=_no_buckets  # not as a default, of which each window would get a copy
    )
    packed: Annotated[
        Annotated[UnreadHistogram, written_as(_PackedText, _read_packed, _write_packed)] | None,
        Field(exclude_if=_is_absent, description="in place of `buckets`: smaller, and cheaper to store"),
    ] = None
    __pydantic_config__: ClassVar[Any] = WIRE

    def __post_init__(self) -> None:
        if self.packed is not None:
            object.__setattr__(self, "histogram", self.packed)


def reported_window(window: Window, *, packed: bool) -> ReportedWindow:
    """A window as it is reported, with its histogram as bytes or as counts."""
    fields = fields_of(Window, window)
    if packed:
        return ReportedWindow(**fields, packed=as_packed(window.histogram))
    return ReportedWindow(**fields | {"histogram": Histogram(window.histogram.buckets)})


class ReportIn(Schema):
    """What an agent tells the manager; repeating it stores nothing twice."""

    agent_version: Text
    capabilities: Capabilities | None = Field(default=None, description="null: unchanged since last time")
    tick: TickStatus | None = None
    vms: list[VmStatus] | None = Field(
        default=None,
        max_length=5000,
        description="null: unchanged since last time, but for their shares: those are of the newest of `ticks`, where"
        " there is one",
    )
    vms_changed_only: bool = Field(default=False, description="whether `vms` leaves out those that did not change")
    sources: list[SourceStatus] | None = Field(
        default=None, max_length=5000, description="null: unchanged since last time"
    )
    domains: list[DomainBody] | None = Field(
        default=None, max_length=5000, description="all that run; null: unchanged since last time"
    )
    findings: Findings | None = Field(default=None, description="null: not looked again since last time")
    services: HostServices | None = Field(default=None, description="null: unchanged, or reported a moment ago")
    windows: list[ReportedWindow] = Field(
        default_factory=list, max_length=1000, description="each replaces what was reported of its slot before"
    )
    ticks: list[TickRecord] = Field(default_factory=list, max_length=MOST_TICKS)
    packed_ticks: list[_PackedTicks] = Field(
        default_factory=list,
        max_length=MOST_TICKS,
        exclude_if=lambda packs: not packs,
        description="in place of `ticks`: smaller, and cheaper to store; absent: none",
    )
    decisions: list[DecisionRecord] = Field(default_factory=list, max_length=1000)
    events: list[Event] = Field(default_factory=list, max_length=1000)
    migrations: list[MigrationReport] = Field(
        default_factory=list,
        max_length=100,
        exclude_if=lambda reports: not reports,
        description="those under way from this host, and ends that were not reported yet; absent: none",
    )
    live: bool = Field(
        default=False, description="`windows` are the newest slots alone, and come again: they need not be kept"
    )
    wants_slots: bool = Field(default=False, description="answer with `slots`, as the route for them does")
