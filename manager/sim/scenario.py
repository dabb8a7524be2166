"""What is simulated: a host, applications with their load, batch VMs, noise and faults."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from manager.model.cache import BandwidthUnit
from manager.model.fields import Name, SomeCpus, Weight
from manager.model.law import Law
from manager.model.registration import (
    LEAST_LIMIT_PCPUS,
    MOST_LIMIT_PCPUS,
    Application,
    Assignment,
    CacheControl,
    HostSpec,
    Mode,
    Sharing,
    Sla,
    Tier,
    VmClass,
    VmSpec,
)
from manager.model.rules import PlacementRules

HOST_NAME = "simulated"

# Bounds of what files say; what is computed may be beyond them, such as times without end.
Seconds = Annotated[float, Field(ge=0.001, le=1e7)]
Moment = Annotated[float, Field(ge=0, le=1e7)]
Rate = Annotated[float, Field(ge=0, le=1e5)]
HalfWaveMs = Annotated[float, Field(ge=0.1, le=1e6)]
PauseMs = Annotated[float, Field(ge=1, le=1e7)]
Vms = Annotated[int, Field(ge=1, le=100)]
Vcpus = Annotated[int, Field(ge=1, le=256)]


class Shape(StrEnum):
    """Distribution of the CPU time of a request."""

    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"
    DETERMINISTIC = "deterministic"


@dataclass(frozen=True, slots=True)
class ServiceTime:
    """CPU time of one request in one tier; ``cv`` is the coefficient of variation of a lognormal one."""

    mean_ms: Annotated[float, Field(ge=0.001, le=100_000)]
    shape: Shape = Shape.EXPONENTIAL
    cv: Annotated[float, Field(ge=0, le=20)] = 1.0


@dataclass(frozen=True, slots=True)
class Constant:
    """Requests at a constant rate for ``for_s`` seconds. Several of them in a row are steps."""

    rate_rps: Rate
    for_s: Seconds = math.inf

    @property
    def peak_rps(self) -> float:
        """The largest rate of the segment."""
        return self.rate_rps

    def rate_at(self, at_s: float) -> float:  # noqa: ARG002 - the same at any time
        """The rate ``at_s`` seconds after the segment began."""
        return self.rate_rps


@dataclass(frozen=True, slots=True)
class Ramp:
    """A rate that changes evenly from ``rate_rps`` to ``to_rps``."""

    rate_rps: Rate
    to_rps: Rate
    for_s: Seconds

    @property
    def peak_rps(self) -> float:
        """The largest rate of the segment."""
        return max(self.rate_rps, self.to_rps)

    def rate_at(self, at_s: float) -> float:
        """The rate ``at_s`` seconds after the segment began."""
        return self.rate_rps + (self.to_rps - self.rate_rps) * at_s / self.for_s


@dataclass(frozen=True, slots=True)
class Sine:
    """A rate that swings by ``swing_rps`` around ``rate_rps`` once in ``period_s``, beginning at the mean, rising."""

    rate_rps: Rate
    swing_rps: Rate
    period_s: Seconds
    for_s: Seconds = math.inf

    @property
    def peak_rps(self) -> float:
        """The largest rate of the segment."""
        return self.rate_rps + self.swing_rps

    def rate_at(self, at_s: float) -> float:
        """The rate ``at_s`` seconds after the segment began; never below 0."""
        return max(0.0, self.rate_rps + self.swing_rps * math.sin(2 * math.pi * at_s / self.period_s))


Segment = Constant | Ramp | Sine


class SampleRoute(StrEnum):
    """How response times come to the agent: from a source of its own, or posted to the manager."""

    LOCAL = "local"
    MANAGER = "manager"


class MissCurve(StrEnum):
    """How the part of accesses that miss falls with what a VM has of the cache."""

    EXPONENTIAL = "exponential"
    LINEAR = "linear"
    CLIFF = "cliff"


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """What a VM does with the cache and the memory; see ``manager.sim.memory_bus``.

    ``penalty``: where every access misses, and nobody else uses the memory, its work takes 1 + ``penalty`` times as
    long. ``traffic_gbps``: then a pCPU moves so many GB a second of what its work would take with no miss.
    """

    working_set_bytes: float
    penalty: Annotated[float, Field(ge=0.01, le=1000)]
    traffic_gbps: Annotated[float, Field(ge=0.001, le=1000)]
    curve: MissCurve = MissCurve.EXPONENTIAL

    def misses(self, cache_bytes: float) -> float:
        """Part of the accesses that miss with so much of the cache."""
        fits = cache_bytes / self.working_set_bytes
        if self.curve is MissCurve.EXPONENTIAL:
            return math.exp(-3 * fits)
        if self.curve is MissCurve.LINEAR:
            return max(0.0, 1 - fits)
        return 0.0 if fits > 1 - 1e-6 else 1.0


@dataclass(frozen=True, slots=True)
class CacheSpec:
    """The host's last-level cache and memory, in each of ``domains``, among which the pCPUs are divided in order.

    ``shareable_ways``: the highest ones, which other hardware uses too. ``mba`` None: bandwidth cannot be limited.
    ``rmids`` 0: nothing is measured.
    """

    ways: Annotated[int, Field(ge=2, le=32)]
    way_bytes: float
    bandwidth_gbps: Annotated[float, Field(ge=0.01, le=100_000)]
    domains: Annotated[int, Field(ge=1, le=16)] = 1
    minimum_ways: int = 1
    shareable_ways: int = 0
    closids: Annotated[int, Field(ge=1, le=256)] = 16
    mba: BandwidthUnit | None = BandwidthUnit.PERCENT
    rmids: Annotated[int, Field(ge=0, le=1024)] = 64


@dataclass(frozen=True, slots=True)
class TierSpec:
    """One tier: ``vms`` VMs alike, which take turns, each with ``vcpus`` vCPUs that serve one request at a time."""

    name: Name
    service: ServiceTime
    vms: Vms = 1
    vcpus: Vcpus = 1
    memory: MemoryUse | None = None


@dataclass(frozen=True, slots=True)
class AppSpec:
    """An application. A request visits the tiers in order; ``load`` starts again when it is over.

    A request that waited longer than ``timeout_s`` when its turn comes is not served and counts with that time.
    ``outside_ms``: what each response takes beside, such as network and disk, without a vCPU.
    """

    name: Name
    sla: Sla
    tiers: tuple[TierSpec, ...]
    load: tuple[Segment, ...]
    sharing: Sharing | None = None
    timeout_s: Annotated[float, Field(ge=0.001, le=1000)] = 30.0
    route: SampleRoute = SampleRoute.LOCAL
    cache: str | None = None
    outside_ms: Annotated[float, Field(ge=0, le=100_000)] = 0.0


@dataclass(frozen=True, slots=True)
class BatchPhase:
    """For ``for_s`` seconds, a vCPU wants to run for the part ``duty`` of each period."""

    duty: Annotated[float, Field(ge=0, le=1)]
    for_s: Seconds


@dataclass(frozen=True, slots=True)
class BatchSpec:
    """``vms`` batch VMs, always runnable; or, with ``on_ms``, each vCPU for that long, then not for ``off_ms``.

    ``phases``, in place of these, are played in turn and repeated, in periods of ``period_ms``. ``critical``: these VMs
    are registered as critical ones, though nothing is known of their requests.
    """

    name: Name
    vms: Vms = 1
    vcpus: Vcpus = 1
    on_ms: HalfWaveMs | None = None
    off_ms: HalfWaveMs = 0.0
    memory: MemoryUse | None = None
    phases: tuple[BatchPhase, ...] = ()
    period_ms: Annotated[float, Field(ge=1, le=10_000)] = 100.0
    critical: bool = False

    @property
    def duty(self) -> float:
        """Share of the time in which its vCPUs are runnable."""
        if self.phases:
            length_s = sum(phase.for_s for phase in self.phases)
            return sum(phase.duty * phase.for_s for phase in self.phases) / length_s
        return 1.0 if self.on_ms is None else self.on_ms / (self.on_ms + self.off_ms)

    def duty_at(self, at_s: float) -> tuple[float, float]:
        """The duty of the phase at a time, and for how many seconds from then; only where there are phases."""
        at_s %= sum(phase.for_s for phase in self.phases)
        for phase in self.phases:
            if at_s < phase.for_s:
                return phase.duty, phase.for_s - at_s
            at_s -= phase.for_s
        return self.phases[0].duty, self.phases[0].for_s  # rounded to the very end


@dataclass(frozen=True, slots=True)
class VmSettings:
    """How a VM is registered beyond its class, and ``initial_weight``: what it has before anything is decided."""

    vm: Name
    weight: Weight | None = None
    pin: bool | None = None
    cpus: SomeCpus | None = None
    max_pcpus: Annotated[float, Field(ge=LEAST_LIMIT_PCPUS, le=MOST_LIMIT_PCPUS)] | None = None
    mode: Mode | None = None
    initial_weight: Weight | None = None


@dataclass(frozen=True, slots=True)
class Noise:
    """Something outside the VMs takes ``share`` of every pCPU for exponential times of mean ``on_ms``, then pauses."""

    share: Annotated[float, Field(ge=0, le=0.95)]
    on_ms: PauseMs
    off_ms: PauseMs


class FaultKind(StrEnum):
    """What may go wrong; see docs/how-to/simulator.md."""

    SOURCE_SILENT = "source_silent"
    VM_RESTART = "vm_restart"
    MANAGER_AWAY = "manager_away"
    AGENT_RESTART = "agent_restart"
    WRITE_ERROR = "write_error"
    READ_ERROR = "read_error"
    LIBVIRT_AWAY = "libvirt_away"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong from ``at_s`` for ``for_s`` seconds; ``target`` is an application or a VM."""

    kind: FaultKind
    at_s: Moment
    for_s: Seconds
    target: str = ""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The scheduler's times: see ``manager.sim.cpu_sharing``, and ``cpu_quota`` for ``quota_ms``."""

    slice_ms: Annotated[float, Field(ge=0, le=1000)] = 3.0
    tick_ms: Annotated[float, Field(ge=0, le=100)] = 4.0
    balance_ms: Annotated[float, Field(ge=1, le=10_000)] = 100.0
    quota_ms: Annotated[float, Field(ge=1, le=10_000)] = 100.0


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that is simulated. The same scenario and seed give the same result."""

    name: str
    pcpus: Vcpus
    applications: tuple[AppSpec, ...]
    batch: tuple[BatchSpec, ...] = ()
    summary: str = ""
    cgroup: Annotated[int, Field(ge=1, le=2)] = 2
    interval_s: Annotated[float, Field(ge=0.05, le=300)] = 5.0
    duration_s: Annotated[float, Field(ge=1, le=1e7)] = 1200.0
    settle_s: Moment = 60.0
    seed: Annotated[int, Field(ge=0, le=2**63)] = 1
    pinning: bool = False
    law: Law = field(default_factory=Law)
    noise: Noise | None = None
    faults: tuple[Fault, ...] = ()
    scheduler: Scheduler = Scheduler()
    cache: CacheSpec | None = None
    batch_idle: bool = False
    mode: Mode = Mode.ENFORCE
    placement: PlacementRules = field(default_factory=PlacementRules)
    settings: tuple[VmSettings, ...] = ()

    @property
    def vms(self) -> tuple[VmSpec, ...]:
        """The VMs as they are registered."""
        classes = [
            (vm, VmClass.CRITICAL) for app in self.applications for tier in app.tiers for vm in tier_vms(app, tier)
        ]
        for group in self.batch:
            vm_class = VmClass.CRITICAL if group.critical else VmClass.BATCH
            classes += [(vm, vm_class) for vm in batch_vms(group)]
        return tuple(self._spec(vm, vm_class) for vm, vm_class in classes)

    def settings_of(self, vm: str) -> VmSettings:
        """Those of a VM, or the defaults."""
        return next((settings for settings in self.settings if settings.vm == vm), VmSettings(vm))

    def _spec(self, vm: str, vm_class: VmClass) -> VmSpec:
        own = self.settings_of(vm)
        return VmSpec(
            vm,
            vm_class,
            libvirt_name=vm,
            weight=own.weight,
            pin=own.pin,
            cpus=own.cpus,
            max_pcpus=own.max_pcpus,
            mode=own.mode,
        )

    def assignment(self, policy: str, published: bool = False) -> Assignment:
        """What an agent would be assigned, under ``policy``, with the law as printed or as the scenario has it."""
        law = replace(self.law, published=True) if published else self.law
        applications = tuple(
            Application(
                app.name,
                tuple(Tier(tier.name, tier_vms(app, tier)) for tier in app.tiers),
                app.sla,
                sharing=app.sharing,
                cache=app.cache,
            )
            for app in self.applications
        )
        cache = CacheControl.ON if self.cache else CacheControl.OFF
        host = HostSpec(
            HOST_NAME,
            self.mode,
            policy=policy,
            pinning=self.pinning,
            batch_idle=self.batch_idle,
            law=law,
            cache=cache,
            placement=self.placement,
        )
        return Assignment(host, self.vms, applications, slot_s=self.interval_s)


def tier_vms(app: AppSpec, tier: TierSpec) -> tuple[str, ...]:
    """Names of the VMs of a tier: ``shop-web``, or ``shop-web-1``, ``shop-web-2`` where there are several."""
    return _numbered(f"{app.name}-{tier.name}", tier.vms)


def batch_vms(group: BatchSpec) -> tuple[str, ...]:
    """Names of the VMs of a group of batch VMs."""
    return _numbered(group.name, group.vms)


def _numbered(name: str, count: int) -> tuple[str, ...]:
    return (name,) if count == 1 else tuple(f"{name}-{number}" for number in range(1, count + 1))
