"""From a snapshot to a plan: what a policy sees, what it decides, and what is to be done about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from manager.model.cpus import CpuSet
from manager.model.host import NO_BATCH_GROUP, BatchGroup, Capabilities
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.registration import Application, HostSpec, Mode, VmClass, VmSpec
from manager.model.resource_use import ResourceUse
from manager.model.window import SlaState, Window


@dataclass(frozen=True, slots=True)
class VmView:
    """A registered, running VM as a policy sees it.

    ``cpu_share`` is the CPU time used in the last interval as a fraction of the whole host, 0 .. 1;
    ``run_delay_share`` the seconds its vCPUs waited for a pCPU per second (so up to the number of its vCPUs), and
    ``vcpu_pcpus`` the CPU seconds a second that each vCPU used and ``vcpu_waits`` those that each waited for a pCPU, in
    their order, empty where that is not known. ``weight`` is None where it has none, as in the idle class; ``idle``
    where the kernel has no such class, ``batch_group`` where it cannot be moved into one (see ``VmState``).
    ``memory_bytes_per_s`` is its memory traffic as of the tick before, None where that is not measured. ``pinned``: the
    pCPUs that vCPUs of a critical VM are pinned to one by one.
    """

    spec: VmSpec
    vcpus: int
    cpu_share: float
    run_delay_share: float
    mode: Mode
    weight: int | None
    application: str | None = None
    tier: str | None = None
    vcpu_pcpus: tuple[float, ...] = ()
    vcpu_waits: tuple[float, ...] = ()
    iothreads: tuple[int, ...] = ()
    idle: bool | None = None
    quota_period_us: int | None = None
    batch_group: int | None = None
    memory_bytes_per_s: float | None = None
    pinned: CpuSet = frozenset()

    @property
    def name(self) -> str:
        """The registered name."""
        return self.spec.name

    @property
    def critical(self) -> bool:
        """Whether it serves requests under an SLA."""
        return self.spec.vm_class is VmClass.CRITICAL

    def with_rates(
        self,
        cpu_share: float,
        run_delay_share: float,
        vcpu_pcpus: tuple[float, ...],
        vcpu_waits: tuple[float, ...],
    ) -> VmView:
        """As ``dataclasses.replace``, at a fifth of the cost: there are many."""
        return VmView(
            self.spec,
            self.vcpus,
            cpu_share,
            run_delay_share,
            self.mode,
            self.weight,
            self.application,
            self.tier,
            vcpu_pcpus,
            vcpu_waits,
            self.iothreads,
            self.idle,
            self.quota_period_us,
            self.batch_group,
            self.memory_bytes_per_s,
            self.pinned,
        )


@dataclass(frozen=True, slots=True)
class ApplicationView:
    """An application with its latest window and the state of its SLA.

    ``slots`` are its recent windows, disjoint and oldest first, for policies that need more than the latest.
    """

    application: Application
    window: Window | None
    sla_state: SlaState
    slots: tuple[Window, ...] = ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All that a policy may use, at ``now_s`` (seconds since the epoch). VMs and applications are sorted by name.

    ``now_s`` is the time by which slots are dated, and nothing else: it jumps with the wall clock. What a policy
    remembers ages by ``steady_s``. ``ahead_s``: by how much the clock was set ahead since the agent began.
    ``cache_ways``: how many ways the last-level cache has that may be divided, as of the tick before; 0: it is not.
    ``interrupts`` has the share of its time, 0 .. 1, that each managed pCPU spent on interrupts (irq and softirq) in
    the last interval, by number; those of which that was not measured are not in it. ``resources``: what VMs and the
    host use besides CPU time, as of the last round of readings. ``memory_limits``: the memory bandwidth of batch VMs
    can be limited, and ``ways_trial``: a trial of ways runs (docs/concepts/cache.md), as of the tick before.
    ``resource_knobs``: what VMs have of memory and disks that can be set, by name, and ``divisible_uplinks``: the
    interfaces that can be divided; both only as far as they were read, which the host's settings decide.
    """

    now_s: float
    interval_s: float
    host: HostSpec
    capabilities: Capabilities
    vms: tuple[VmView, ...] = ()
    applications: tuple[ApplicationView, ...] = ()
    ahead_s: float = 0.0
    batch_group: BatchGroup = NO_BATCH_GROUP
    cache_ways: int = 0
    interrupts: Mapping[int, float] = field(default_factory=dict)
    resources: ResourceUse = field(default_factory=ResourceUse)
    memory_limits: bool = False
    ways_trial: bool = False
    resource_knobs: Mapping[str, frozenset[Knob]] = field(default_factory=dict)
    divisible_uplinks: frozenset[str] = frozenset()

    @property
    def steady_s(self) -> float:
        """Seconds that only grow, whatever becomes of the clock: as ``now_s`` would be had nobody set it."""
        return self.now_s - self.ahead_s


@dataclass(frozen=True, slots=True)
class WeightGoal:
    """The CPU weight a VM is to have, in units of the snapshot's ``capabilities.weights``, and why."""

    vm: str
    weight: int
    reason: str


@dataclass(frozen=True, slots=True)
class IdleGoal:
    """Whether a VM is to be in the kernel's idle class, and why."""

    vm: str
    idle: bool
    reason: str


@dataclass(frozen=True, slots=True)
class CpusGoal:
    """The pCPUs that all threads of a VM are to stay on, in place of its placement, and why."""

    vm: str
    cpus: CpuSet
    reason: str


@dataclass(frozen=True, slots=True)
class QuotaGoal:
    """How many CPU seconds a second a VM may use at most, and why."""

    vm: str
    pcpus: float
    reason: str


@dataclass(frozen=True, slots=True)
class WaysGoal:
    """How many ways of the last-level cache a critical application's VMs have for themselves, and why."""

    application: str
    ways: int
    reason: str


@dataclass(frozen=True, slots=True)
class BandwidthGoal:
    """To which part, above 0 and up to 1, a batch VM's memory traffic is limited, and why.

    It is a part of what the host gives where it limits in percent, else of what the VM took when that began.
    """

    vm: str
    share: float
    reason: str


class ResourceControl(StrEnum):
    """What a policy may switch on for memory, disks and uplinks, where the host's settings say ``steps``."""

    MEMORY_PROTECTION = "memory protection"
    MEMORY_CEILING = "memory ceiling"
    DISK_WEIGHTS = "disk weights"
    DISK_CEILING = "disk ceiling"
    UPLINK_SHARES = "uplink shares"


@dataclass(frozen=True, slots=True)
class ResourceGoal:
    """A control of memory, disks or uplinks that is to be in force, and why.

    ``vm``: the critical VM whose memory is protected, or the batch VM that gets a ceiling; empty for weights of disks
    and shares of uplinks, which are of the whole host. How much follows from what is measured and from the host's
    settings, but for a ceiling of a disk: ``requests_per_s``, at least 1, of the disk of this number (makedev(3)).
    """

    control: ResourceControl
    vm: str
    reason: str
    requests_per_s: float = 0.0
    disk: int = 0


@dataclass(frozen=True, slots=True)
class WarpGoal:
    """The warp of a VM, in microseconds, from 1 to MOST_WARP_US."""

    vm: str
    warp_us: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """What an operator should know of an application for as long as it lasts, such as that its data are stale."""

    application: str
    text: str


MOST_FALL, MOST_AGE_S = 100.0, 1e9


@dataclass(frozen=True, slots=True)
class ShownCause:
    """A VM that an experiment of the policy, ``age_s`` seconds ago, has shown to slow an application.

    While it was held back, ln(percentile) was lower by ``fall``; ``confidence``, 0 .. 1: 1 minus the probability that
    a VM that makes no difference is named. Up to MOST_FALL and MOST_AGE_S.
    """

    vm: str
    fall: float
    confidence: float
    age_s: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a policy does for an application, what that brought and cost, and what comes next, in a few sentences.

    It is that of the latest decision, and is shown for as long as it is given. ``cause``: who slows the application,
    where an experiment has shown it.
    """

    application: str
    text: str
    cause: ShownCause | None = None


Memory = object | None
"""What a policy wants to see again at its next call; None at the first. Any immutable value of its own."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants. VMs it does not name keep (or get back) their original settings.

    Each of ``weights``, ``idle``, ``cpus`` and ``quotas`` names a VM at most once, ``ways`` and ``explanations`` an
    application; no two of ``resources`` are of the same control, VM and disk. Where a host lacks a control, what needs
    it is left out. ``pinning`` None: as the host is registered; False: critical VMs float. ``bandwidths`` None: the
    agent holds back noisy neighbours by itself; else these alone, all as far as the least share says: they are one
    group with one limit. ``warps`` None: each VM has the warp that is registered, or by its SLA where nothing is; else
    those that would have one by their SLA have these alone. ``on_trial``: the policy judges a change by response times,
    so that the agent tries no other ways meanwhile. What is registered for a VM or allowed by the agent binds a policy,
    too (docs/concepts/policies.md).
    """

    weights: tuple[WeightGoal, ...] = ()
    memory: Memory = None
    notes: tuple[Note, ...] = ()
    idle: tuple[IdleGoal, ...] = ()
    cpus: tuple[CpusGoal, ...] = ()
    quotas: tuple[QuotaGoal, ...] = ()
    ways: tuple[WaysGoal, ...] = ()
    pinning: bool | None = None
    explanations: tuple[Explanation, ...] = ()
    bandwidths: tuple[BandwidthGoal, ...] | None = None
    on_trial: bool = False
    resources: tuple[ResourceGoal, ...] = ()
    warps: tuple[WarpGoal, ...] | None = None


@dataclass(frozen=True, slots=True)
class VcpuPlacement:
    """The pCPU of a vCPU, and why that one."""

    cpu: int
    why: str


@dataclass(frozen=True, slots=True)
class VmPlacement:
    """The pCPUs of a VM's vCPUs in their order.

    ``stretch`` is its expected response time relative to that alone on ideal pCPUs (docs/concepts/placement.md).
    """

    vm: str
    vcpus: tuple[VcpuPlacement, ...]
    stretch: float


@dataclass(frozen=True, slots=True)
class Placement:
    """The placed VMs by name, and why each other critical VM was left floating."""

    vms: tuple[VmPlacement, ...] = ()
    floating: tuple[tuple[str, str], ...] = ()

    @property
    def cpus(self) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """The pCPU of each vCPU by VM name."""
        return tuple((vm.vm, tuple(vcpu.cpu for vcpu in vm.vcpus)) for vm in self.vms)


class Goal(NamedTuple):
    """One knob's wanted value. ``mode`` is that of the VM or host: only ``enforce`` leads to a write."""

    key: KnobKey
    value: KnobValue
    reason: str
    mode: Mode


NOT_MANAGED = "no longer managed here"
"""Why the settings of VMs go back to their originals that are not registered for this host any more."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings wanted on the host, at most one goal a knob, sorted by knob.

    ``undo_reason`` says why knobs that are not among them go back to their originals.
    """

    goals: tuple[Goal, ...] = ()
    undo_reason: str = NOT_MANAGED


@dataclass(frozen=True, slots=True)
class Owned:
    """A knob that Equipoise changed.

    ``original`` is what it held before the first change. ``intended`` was to be written last and ``previous`` was
    there before that: until the write is known to have happened (``settled``), either may be found. ``external``:
    another tool changed it, and it is left alone since, when its VM (or host) had been adopted ``adoptions`` times.
    """

    original: KnobValue
    previous: KnobValue
    intended: KnobValue
    external: bool = False
    settled: bool = False
    adoptions: int = 0

    @property
    def differs(self) -> bool:
        """Whether it is, or may be, other than its original because of us."""
        return not self.external and (self.intended != self.original or self.previous != self.original)

    @property
    def may_be(self) -> tuple[KnobValue, ...]:
        """What it holds if nobody else changed it: several while a write may have failed."""
        return (self.intended,) if self.settled else (self.intended, self.previous)


class Action(StrEnum):
    """What is to be done about a knob.

    ``observe`` only records; ``leave`` stops owning a knob that another tool changed; ``keep`` notes the original
    of a knob that is not written but will change with another one; ``forget`` drops a knob that holds its original
    already.
    """

    WRITE = "write"
    RESTORE = "restore"
    OBSERVE = "observe"
    LEAVE = "leave"
    KEEP = "keep"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between plan and host.

    ``original`` is what will be restored, where that is new. ``awaits`` is a knob that must have been restored before
    this one may leave the journal.
    """

    action: Action
    key: KnobKey
    before: KnobValue
    after: KnobValue
    reason: str
    original: KnobValue | None = None
    awaits: KnobKey | None = None
