"""What a host is and does at one moment: capabilities, running VMs, and the settings they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from manager.model.cpus import CpuSet
from manager.model.fields import CLOSED, Count, Cpus, SafeText
from manager.model.knob_spec import KnobValue
from manager.model.knobs import Knob, KnobKey
from manager.model.topology import Topology
from manager.model.traffic import AnswerCount, Answered
from manager.model.warp import Offer


@dataclass(frozen=True, slots=True)
class WeightScale:
    """Range and customary values of a CPU weight (design, section 4).

    ``default`` is the kernel's, ``critical`` what `priority` gives a critical VM, ``critical_min`` the W_min and
    ``maximum`` the W_max of the feedback law, ``batch`` what batch VMs get beside critical ones.
    """

    minimum: Count
    maximum: Count
    default: Count
    critical: Count
    critical_min: Count
    batch: Count
    __pydantic_config__: ClassVar = CLOSED

    def clamp(self, weight: int) -> int:
        """The nearest weight the kernel accepts."""
        return min(max(weight, self.minimum), self.maximum)


CPU_SHARES_V1 = WeightScale(2, 262_144, default=1024, critical=10_000, critical_min=1024, batch=2)
CPU_WEIGHT_V2 = WeightScale(1, 10_000, default=100, critical=10_000, critical_min=100, batch=1)


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What the host's kernel and libvirt offer, as probed by its agent."""

    kernel: SafeText
    libvirt: SafeText
    cgroup_version: Annotated[
        int, Field(ge=0, le=2, description="version that carries the cpu controller; 0: none usable")
    ]
    weights: Annotated[WeightScale | None, Field(description="null: weights cannot be set")]
    online_cpus: Cpus
    managed_cpus: Annotated[Cpus, Field(description="which may be given to VMs")]
    schedstat: Annotated[bool, Field(description="run-queue delay of vCPU threads can be read")]
    warnings: tuple[SafeText, ...] = ()
    idle_class: Annotated[bool, Field(description="the kernel has cpu.idle")] = False
    topology: Topology = field(default_factory=Topology)
    warps: Annotated[tuple[Offer, ...], Field(description="mechanisms for warps, the best first")] = ()
    scheduler: Annotated[SafeText, Field(description="sched_ext scheduler that decides; empty: none")] = ""
    scheduler_is_ours: bool = False
    limits_real_time: Annotated[bool, Field(description="the kernel limits real-time threads by cgroup")] = False
    limits: Annotated[tuple[SafeText, ...], Field(description="what the agent's settings forbid")] = ()
    needs_batch_group: Annotated[
        bool | None, Field(description="beside several batch VMs, wake-ups are late; null: not known")
    ] = None
    cpu_model: Annotated[SafeText, Field(description="of the first pCPU; empty: not known")] = ""
    __pydantic_config__: ClassVar = CLOSED


class VmInstance(NamedTuple):
    """One run of a domain: the same domain started again is another instance.

    ``start_ticks`` is the process's start time in clock ticks since boot (proc(5), field 22 of stat): with the pid it
    names one process of this boot.
    """

    uuid: str
    libvirt_name: str
    pid: int
    start_ticks: int


class VcpuState(NamedTuple):
    """A vCPU thread. The total times it ran and waited for a pCPU (schedstat) are None where they are not kept."""

    index: int  # type: ignore[assignment]  # as in KnobKey
    cpus: CpuSet
    run_delay_ns: int | None = None
    run_ns: int | None = None


@dataclass(frozen=True, slots=True)
class WaitWatch:
    """VMs whose waits are to be sampled each ``interval_s``; their vCPUs had waited ``waits`` nanoseconds at ``at_s``.

    Times are monotonic. ``bounds``: of each VM, which share of the time between two samples any of its vCPUs may wait,
    0 .. 1. ``answered``: what services had answered at ``answered_s``.
    """

    instances: tuple[VmInstance, ...]
    waits: tuple[tuple[int, ...], ...]
    at_s: float
    bounds: tuple[float, ...]
    interval_s: float
    answered: Answered
    answered_s: float


@dataclass(frozen=True, slots=True)
class LastWaits:
    """The waits of the vCPUs of these VMs, in their order, at ``from_s`` and at ``at_s`` (monotonic), nanoseconds.

    Nothing of a VM of which a vCPU is gone. ``answers``: what services had answered at ``answers_s``, when all of them
    had answered in time; none where that was not looked at.
    """

    from_s: float
    at_s: float
    instances: tuple[VmInstance, ...]
    before: tuple[tuple[int, ...], ...]
    now: tuple[tuple[int, ...], ...]
    answers_s: float = 0.0
    answers: tuple[AnswerCount, ...] = ()


@dataclass(frozen=True, slots=True)
class Quota:
    """The CPU time a group may use: ``quota_us`` (or UNLIMITED) in each ``period_us``."""

    quota_us: int
    period_us: int


class CpuCounters(NamedTuple):
    """What of a VM only grows, in nanoseconds: the CPU time that all its threads used since it started, and how long
    each vCPU ran and waited for a pCPU, in the order of ``VmState.vcpus``, None where that is not kept.
    """

    cpu_ns: int
    run_ns: Sequence[int | None]
    run_delay_ns: Sequence[int | None]


class VmState(NamedTuple):
    """A running VM as read from the kernel. ``cpu_ns`` is the CPU time all its threads used since it started.

    ``weight`` None: the VM has no CPU cgroup of its own, so it cannot be weighted, or that is in the idle class.
    ``idle`` and ``quota`` None: the kernel has no such file for it. ``iothread_cpus`` is by number of the I/O thread.
    ``memory_nodes`` are the NUMA nodes its memory is bound to, empty where it is not. ``in_scope``: its cgroup is a
    scope of systemd, which writes all values there anew as it knows them whenever it loads its units again.
    ``batch_group``: OUTSIDE, INSIDE or PARTLY; None where it cannot be moved into one.
    """

    instance: VmInstance
    cpu_ns: int
    weight: int | None
    vcpus: tuple[VcpuState, ...]
    emulator_cpus: CpuSet
    iothread_cpus: tuple[tuple[int, CpuSet], ...] = ()
    idle: bool | None = None
    quota: Quota | None = None
    memory_nodes: frozenset[int] = frozenset()
    in_scope: bool = False
    batch_group: int | None = None
    known: Mapping[KnobKey, KnobValue] | None = None
    """What ``knobs`` answers, where who read them has it from before: mostly nothing has changed."""

    @property
    def counters(self) -> CpuCounters:
        """Those of them that are of this moment."""
        run_ns, run_delay_ns = [vcpu.run_ns for vcpu in self.vcpus], [vcpu.run_delay_ns for vcpu in self.vcpus]
        return CpuCounters(self.cpu_ns, run_ns, run_delay_ns)

    def knobs(self) -> Mapping[KnobKey, KnobValue]:
        """All knobs of the VM with what they hold now, in their order; shared, so not to be changed."""
        if self.known is not None:
            return self.known
        vcpu_cpus = tuple((vcpu.index, vcpu.cpus) for vcpu in self.vcpus)
        quota_us = None if self.quota is None else self.quota.quota_us
        numbers = (self.batch_group, None if self.idle is None else int(self.idle), quota_us, self.weight)
        return _knobs(self.instance.uuid, vcpu_cpus, self.emulator_cpus, self.iothread_cpus, numbers)


_NUMBERS = (Knob.BATCH_GROUP, Knob.IDLE, Knob.QUOTA, Knob.WEIGHT)


@lru_cache(maxsize=4096)
def _knobs(
    uuid: str,
    vcpu_cpus: tuple[tuple[int, CpuSet], ...],
    emulator_cpus: CpuSet,
    iothread_cpus: tuple[tuple[int, CpuSet], ...],
    numbers: tuple[int | None, ...],
) -> Mapping[KnobKey, KnobValue]:
    """Most VMs hold the same values tick after tick."""
    values: dict[KnobKey, KnobValue] = {KnobKey(uuid, Knob.VCPU_PIN, index): cpus for index, cpus in vcpu_cpus}
    values[KnobKey(uuid, Knob.EMULATOR_PIN)] = emulator_cpus
    values |= {KnobKey(uuid, Knob.IOTHREAD_PIN, number): cpus for number, cpus in iothread_cpus}
    values |= {KnobKey(uuid, knob): held for knob, held in zip(_NUMBERS, numbers, strict=True) if held is not None}
    return dict(sorted(values.items(), key=lambda item: item[0]))


@dataclass(frozen=True, slots=True)
class BatchGroup:
    """The group that holds all batch VMs. ``strangers`` counts the VMs in it that are not ours to decide for.

    ``of_systemd``: it is a slice, which systemd makes when a VM starts in it, and removes with the last one.
    """

    exists: bool = False
    strangers: int = 0
    of_systemd: bool = False


NO_BATCH_GROUP = BatchGroup()


class PcpuTimes(NamedTuple):
    """CPU time of one pCPU since boot, in nanoseconds: all of it, busy, and on interrupts (irq and softirq)."""

    total_ns: int
    busy_ns: int
    interrupts_ns: int = 0


@dataclass(frozen=True, slots=True)
class CpuTimes:
    """Total and busy CPU time of all pCPUs since boot, in nanoseconds (proc(5), /proc/stat; steal counts as busy).

    ``pcpus``: those of each pCPU that is online, by number; empty where that is not known.
    """

    total_ns: int
    busy_ns: int
    pcpus: Mapping[int, PcpuTimes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Discovery:
    """How fresh the list of running domains is. ``age_s``: since libvirt last listed all of them, or since the start.

    It is ``late`` from ``limit_s`` on. ``hanging`` are the domains, by their names, about which libvirt's calls do not
    return.
    """

    age_s: float
    limit_s: float
    hanging: tuple[str, ...] = ()

    @property
    def late(self) -> bool:
        """Whether that is an alarm."""
        return self.age_s > self.limit_s
