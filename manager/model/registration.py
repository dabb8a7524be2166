"""What operators register: VMs, applications, SLAs, and how a host is to be controlled."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.cpus import CpuSet
from manager.model.fields import CLOSED, Name, Percentile
from manager.model.law import DEFAULT_LAW, Law
from manager.model.rules import DEFAULT_RULES, PlacementRules
from manager.model.scheduling import Scheduling
from manager.model.source import Source
from manager.model.warp import DEFAULT_WARP_MAX_US, WarpUse, WarpWish

DEFAULT_BANDWIDTH_WARNING = 0.9
"""See ``HostSpec``."""


class CacheControl(StrEnum):
    """Whether the last-level cache is divided between critical VMs and all others (docs/concepts/cache.md)."""

    OFF = "off"
    ON = "on"


class VmClass(StrEnum):
    """Critical VMs serve requests under an SLA; batch VMs fill what is left."""

    CRITICAL = "critical"
    BATCH = "batch"


class Mode(StrEnum):
    """How far Equipoise goes on a host or for an application.

    ``observe`` runs the whole loop and records what it would do but writes nothing; ``released`` does nothing.
    Entering either from ``enforce`` first puts every changed setting back.
    """

    ENFORCE = "enforce"
    OBSERVE = "observe"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class VmSpec:
    """A registered VM. It may not exist (yet) on any host.

    ``libvirt_uuid`` (canonical lower-case text) or ``libvirt_name`` says which domain it is; ``host`` None means
    wherever it is found. ``weight`` overrides the policy's weight in units of cgroup v1 shares or v2 weight and is
    clamped to the range of the host's version; ``pin`` None means as the host says. ``cpus`` are the pCPUs it may run
    on (None: all) and ``max_pcpus`` the CPU seconds a second that it may use (None: no limit). ``mode`` None means
    as its application and host say. ``adoptions`` counts how often an operator had settings taken back that somebody
    else had changed. ``warp_us`` None means as its application says. ``scheduling`` is that of its vCPU threads, None:
    left alone; who has a real-time one has no warp.
    """

    name: str
    vm_class: VmClass
    libvirt_name: str | None = None
    libvirt_uuid: str | None = None
    host: str | None = None
    weight: int | None = None
    pin: bool | None = None
    cpus: CpuSet | None = None
    max_pcpus: float | None = None
    mode: Mode | None = None
    adoptions: int = 0
    warp_us: WarpWish | None = None
    scheduling: Scheduling | None = None

    @property
    def real_time(self) -> bool:
        """Whether its vCPUs are to be real-time."""
        return self.scheduling is not None and self.scheduling.real_time


@dataclass(frozen=True, slots=True)
class Sla:
    """``percentile`` of response times stays at or below ``response_time_ms`` at up to ``max_rate_rps``."""

    response_time_ms: Annotated[
        float, Field(gt=0, le=100_000, description="the percentile of response times stays at or below it")
    ]
    percentile: Annotated[Percentile, Field(description="95: of 100 requests, 95 are answered in that time")] = 95.0
    max_rate_rps: Annotated[
        Annotated[float, Field(gt=0, le=1e9)] | None,
        Field(description="requests per second up to which the SLA applies; null: at any rate"),
    ] = None
    __pydantic_config__: ClassVar = CLOSED


@dataclass(frozen=True, slots=True)
class Tier:
    """One tier of an application and the names of the registered VMs that serve it."""

    name: Name
    vms: Annotated[tuple[Name, ...], Field(max_length=1000)] = ()
    __pydantic_config__: ClassVar = CLOSED


class Sharing(StrEnum):
    """What an application above its agreed rate gets under a feedback policy.

    ``fair``: help as if it were not; ``isolation``: none, it pays for its load alone.
    """

    FAIR = "fair"
    ISOLATION = "isolation"


@dataclass(frozen=True, slots=True)
class Application:
    """A service with an SLA. ``mode`` None means as the host says, ``sharing`` None as the host's policy does.

    ``warp_us`` None is ``auto`` for its critical VMs if it has an SLA, else none. ``cache``: the part of the last-level
    cache that its critical VMs get for themselves, as ``manager.model.cache.parse_wish`` reads it; None: none.
    """

    name: str
    tiers: tuple[Tier, ...] = ()
    sla: Sla | None = None
    mode: Mode | None = None
    sharing: Sharing | None = None
    sources: tuple[Source, ...] = ()
    warp_us: WarpWish | None = None
    cache: str | None = None

    @property
    def vms(self) -> frozenset[str]:
        """Names of all VMs of all tiers."""
        return frozenset(vm for tier in self.tiers for vm in tier.vms)


@dataclass(frozen=True, slots=True)
class HostSpec:
    """How a host is to be controlled.

    ``pinning`` gives critical vCPUs pCPUs of their own, as ``placement`` says; ``law`` tunes feedback; ``batch_idle``
    puts batch VMs into the kernel's idle class while they have their floor. ``adoptions``: see VmSpec. ``warp``:
    whether VMs get warps; no warp is larger than ``warp_max_us``, nor are they all together, on average over the pCPUs.
    ``cache``: whether the cache is divided; for that resctrl may be mounted where it is not, if ``cache_mount``.
    ``bandwidth_warning``: above this share of the most memory traffic that was measured it is warned of, 0: never.
    """

    name: str
    mode: Mode = Mode.ENFORCE
    policy: str = "priority"
    pinning: bool = True
    law: Law = DEFAULT_LAW
    batch_idle: bool = False
    placement: PlacementRules = DEFAULT_RULES
    adoptions: int = 0
    warp: WarpUse = WarpUse.OFF
    warp_max_us: int = DEFAULT_WARP_MAX_US
    cache: CacheControl = CacheControl.OFF
    cache_mount: bool = False
    bandwidth_warning: float = DEFAULT_BANDWIDTH_WARNING


@dataclass(frozen=True, slots=True)
class Assignment:
    """All that the agent of one host needs to know, as the manager answers it.

    The ``sources`` of its applications are those that run on this host. ``slot_s`` is the length of the slots in which
    response times are counted, the same on all hosts of a manager.
    """

    host: HostSpec
    vms: tuple[VmSpec, ...] = ()
    applications: tuple[Application, ...] = ()
    slot_s: float = 5.0
