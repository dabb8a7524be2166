"""What an agent reports: a record of every decision, events, and the history of its ticks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

BUSY_VCPU = 0.75
"""A vCPU that wants to run for this part of an interval, running or waiting, is told of."""
FULL_VCPU = 0.9
"""One that wants to run for this part of it is full."""


class Knob(StrEnum):
    """A setting that Equipoise drives: of a VM, or (``irq_affinity``, ``scheduler``) of the host.

    ``idle``: 1 puts the VM's CPU cgroup into the kernel's idle class, where it has no weight. ``quota``: microseconds
    of CPU time its cgroup may use in each period, -1 for no limit. A warp is one of: ``warp``, microseconds in our
    sched_ext scheduler; ``bvt_warp``, nanoseconds of a kernel with the BVT patch; ``group_identity``, OpenAnolis'
    class -2 to 2; ``slice``, nanoseconds of EEVDF's slice of a vCPU thread, 0 for the kernel's default.
    ``scheduler``: 1 while our sched_ext scheduler decides. ``scheduling``: policy and priority or nice value of a vCPU
    thread, see ``manager.model.scheduling.joined``. ``rt_runtime`` and ``vcpu_rt_runtime``: microseconds of each second
    of each pCPU that real-time threads of a group may use: the one of a vCPU, or one above those, that of the VM (0),
    one inside it (1) or, of the host, one above VMs (by its id). ``cache_ways``: the name and schemata of a group of
    resctrl; ``cache_group``: the name of the group that a VM is in, empty for the default one. The others are sets of
    pCPUs.
    """

    IDLE = "idle"
    QUOTA = "quota"
    WEIGHT = "weight"
    VCPU_PIN = "vcpu_pin"
    EMULATOR_PIN = "emulator_pin"
    IOTHREAD_PIN = "iothread_pin"
    IRQ_AFFINITY = "irq_affinity"
    WARP = "warp"
    BVT_WARP = "bvt_warp"
    GROUP_IDENTITY = "group_identity"
    SLICE = "slice"
    SCHEDULER = "scheduler"
    SCHEDULING = "scheduling"
    RT_RUNTIME = "rt_runtime"
    VCPU_RT_RUNTIME = "vcpu_rt_runtime"
    CACHE_WAYS = "cache_ways"
    CACHE_GROUP = "cache_group"


NUMBERED = frozenset(
    {
        Knob.VCPU_PIN,
        Knob.IOTHREAD_PIN,
        Knob.IRQ_AFFINITY,
        Knob.SLICE,
        Knob.SCHEDULING,
        Knob.RT_RUNTIME,
        Knob.VCPU_RT_RUNTIME,
    }
)
"""Knobs of which a VM, or the host, has several, told apart by their index."""


def knob_name(knob: str, index: int) -> str:
    """What a setting is called wherever one is shown, such as ``weight`` or ``slice 1``: alike for no two of a VM."""
    return f"{knob} {index}" if knob in NUMBERED else str(knob)


class OutcomeKind(StrEnum):
    """What came of a change.

    ``ignored``: the write succeeded but the kernel kept another value. ``foreign``: somebody else had changed the
    value, so it was given up instead of written. ``observed``: observe mode, nothing written.
    """

    APPLIED = "applied"
    RESTORED = "restored"
    OBSERVED = "observed"
    IGNORED = "ignored"
    FAILED = "failed"
    FOREIGN = "foreign"
    VANISHED = "vanished"


class Severity(StrEnum):
    """How much an event asks of the operator."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One decision about one knob. ``record_id`` is a UUID made by the agent, so that reporting twice stores once.

    ``before`` and ``after`` are the knob's text: a number, a CPU list, or a group of resctrl. ``time_s`` is seconds
    since the epoch, ``vm`` None where the knob is one of the host, ``detail`` the kernel's reason where the
    outcome is not what was wanted.
    """

    record_id: str
    time_s: float
    host: str
    vm: str | None
    knob: Knob
    index: int
    before: str
    after: str
    reason: str
    policy: str
    mode: str
    outcome: OutcomeKind
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Event:
    """Something an operator may want to know; ``vm`` is None when it concerns the host."""

    event_id: str
    time_s: float
    host: str
    severity: Severity
    kind: str
    message: str
    vm: str | None = None


@dataclass(frozen=True, slots=True)
class VcpuTick:
    """The vCPU of a VM that wanted to run most: of the interval it ran the part ``used`` and waited ``waited``.

    ``full``: how many vCPUs of the VM wanted to run for FULL_VCPU of it, or more.
    """

    index: int
    used: float
    waited: float
    full: int


@dataclass(frozen=True, slots=True)
class VmTick:
    """A managed VM in one tick, before anything was changed; see VmView for the units.

    ``vcpu`` None: no vCPU wanted to run for BUSY_VCPU of the interval, or that is not known.
    """

    vm: str
    cpu_share: float
    run_delay_share: float
    weight: int | None
    mode: str
    vcpu: VcpuTick | None = None


@dataclass(frozen=True, slots=True)
class TickRecord:
    """What one tick saw: the host's use, 0 .. 1, in the interval before ``time_s`` (seconds since the epoch)."""

    time_s: float
    policy: str
    mode: str
    host_cpu_share: float
    vms: tuple[VmTick, ...]
