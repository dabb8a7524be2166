"""The table of knobs: all settings that Equipoise drives, and what is to be known of each.

Model, diff, journal, reports, pages, commands and docs/knobs.md draw from ``KNOBS``. To add a knob: a member of
``Knob`` with its row here, the file in ``manager/host`` that reads and writes it, and a test of that file.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import NamedTuple

from manager.model.knob_spec import Control, Cpus, Family, KnobSpec, Number, Order, Scope, Text, Undo
from manager.model.network import (
    ANOTHER,
    INCOMPLETE,
    LEAST_TURN,
    MOST_KBIT,
    MOST_TURN,
    NO_RATE,
    USUAL_TURN,
    EgressGroup,
)
from manager.model.power import (
    ANOTHER_GOVERNOR,
    ANY_LATENCY,
    GOVERNORS,
    NO_LATENCY,
    PERFORMANCE,
)
from manager.model.resource_use import Weighing
from manager.model.scheduling import LIMIT_PERIOD_US, is_real_time
from manager.model.scheduling import in_words as scheduling_in_words
from manager.model.units import mebibytes
from manager.model.warp import EJECTED, LOADED, MOST_WARP_US, OUTDATED, UNLOADED

HOST_UUID = "host"
"""Stands for a domain's UUID in the knobs of the host itself."""
UNLIMITED = -1
"""The quota of a group that may use all CPU time there is, and the ceiling of one that may use all memory."""
UNEVEN = -2
"""A ceiling on a disk that is one of reads and another of writes; none that is written."""
KEPT_IN_MEMORY = 0
"""The swappiness of a group that is not swapped out."""
LEAST_QUOTA_US = 1000
"""The kernel takes no smaller quota: kernel/sched/core.c, min_cfs_quota_period."""


class Knob(StrEnum):
    """A setting that Equipoise drives; ``spec`` is its row of the table."""

    BATCH_GROUP = "batch_group"
    BATCH_IDLE = "batch_idle"
    BATCH_WEIGHT = "batch_weight"
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
    MEMORY_PROTECTION = "memory_protection"
    SWAPPINESS = "swappiness"
    MEMORY_CEILING = "memory_ceiling"
    BFQ_WEIGHT = "bfq_weight"
    IO_WEIGHT = "io_weight"
    DISK_CEILING = "disk_ceiling"
    UPLINK_RATE = "uplink_rate"
    BATCH_EGRESS = "batch_egress"
    EGRESS_GROUP = "egress_group"
    EGRESS_TURN = "egress_turn"
    TAP_LIMIT = "tap_limit"
    RESUME_LATENCY = "resume_latency"
    GOVERNOR = "governor"

    @property
    def spec(self) -> KnobSpec:
        """What is to be known of it."""
        return KNOBS[self]


class KnobKey(NamedTuple):
    """Identifies one knob of one domain, or of the host; ``index`` means what the knob's scope says, otherwise 0."""

    uuid: str
    knob: Knob
    index: int = 0  # type: ignore[assignment]  # tuple.index is of no use here


_CGROUP = "Documentation/admin-guide/cgroup-v2.rst"
_RESCTRL = "Documentation/filesystems/resctrl.rst"
_SCHEDULER = {UNLOADED: "not loaded", LOADED: "loaded", EJECTED: "ejected", OUTDATED: "another version"}

OUTSIDE, INSIDE, PARTLY = 0, 1, 2
"""Where a VM is: in the group that libvirt made for it, in the batch group, or some of its threads in either."""


_EGRESS_GROUPS: Mapping[int, str] = {
    EgressGroup.OTHERS: "with all other traffic",
    EgressGroup.BATCH: "batch",
    EgressGroup.CRITICAL: "critical",
    EgressGroup.PARTLY: "partly",
    EgressGroup.CHANGED: "changed",
}


def _kbit(value: int) -> str:
    names = {NO_RATE: "not divided", ANOTHER: "another tool's", INCOMPLETE: "incomplete"}
    return names.get(value) or f"{value / 1000:,.6g} Mbit/s"


def _tap_limit(value: int) -> str:
    return "none" if value == NO_RATE else _kbit(value)


def _ceiling(value: int) -> str:
    return "none" if value == UNLIMITED else _kbit(value)


def _amount(value: int, unlimited: str) -> str:
    return unlimited if value == UNLIMITED else mebibytes(value)


_pin = partial(
    KnobSpec,
    family=Family.PIN,
    value=Cpus(),
    control=Control.PIN,
    interface="sched_setaffinity(2)",
    document="Documentation/admin-guide/cgroup-v1/cpusets.rst",
    probe="affinity",
    order=Order.WIDEN_FIRST,
    undo=Undo.INHERITED,
)
_real_time_limit = partial(
    KnobSpec,
    family=Family.SCHEDULING,
    value=Number("us a second", UNLIMITED, LIMIT_PERIOD_US, usual=0, names={UNLIMITED: "none"}),
    control=Control.REAL_TIME,
    interface="cpu.rt_runtime_us (v1)",
    document="Documentation/scheduler/sched-rt-group.rst",
    probe="real-time-limit",
    order=Order.NESTED,
    undo=Undo.IF_THERE,
)

_batch = partial(
    KnobSpec,
    scope=Scope.HOST,
    family=Family.BATCH_GROUP,
    document=_CGROUP,
    order=Order.GROUP_FIRST,
    undo=Undo.IF_THERE,
    control=Control.BATCH_GROUP,
)

_disk_weight = partial(
    KnobSpec,
    scope=Scope.VM,
    family=Family.DISK,
    control=Control.DISK,
    probe="disk-weight",
    undo=Undo.IF_THERE,
)

_egress = partial(
    KnobSpec,
    scope=Scope.UPLINK,
    family=Family.NETWORK,
    control=Control.NETWORK,
    document="tc-htb(8)",
    probe="network-shares",
    undo=Undo.IF_THERE,
)

KNOBS: Mapping[Knob, KnobSpec] = {
    Knob.BATCH_GROUP: KnobSpec(
        "batch group",
        "Whether the VM is in the one group that holds all batch VMs: then each pCPU's queue has one of them.",
        Scope.VM,
        Family.MEMBERSHIP,
        Number("", OUTSIDE, INSIDE, usual=OUTSIDE, names={OUTSIDE: "outside", INSIDE: "inside", PARTLY: "partly"}),
        Control.BATCH_GROUP,
        "tasks of a group (v1); with systemd the VM's partition, see `equipoise partition`",
        "Documentation/admin-guide/cgroup-v1/cgroups.rst",
        "batch-group",
        undo=Undo.MOVED,
        resets=frozenset({PARTLY}),  # a vCPU was plugged, or a crash came between
    ),
    Knob.BATCH_IDLE: _batch(
        "idle class of the batch group",
        "All batch VMs in the batch group yield to all others at once.",
        value=Number("", 0, 1, usual=0, names={0: "off", 1: "on"}),
        interface="cpu.idle",
        probe="cpu-idle",
    ),
    Knob.BATCH_WEIGHT: _batch(
        "CPU weight of the batch group",
        "Share of the CPU time that all batch VMs in the batch group get together.",
        value=Number("", 1, 262_144),
        interface="cpu.weight, cpu.shares (v1)",
        probe="cpu-weight",
    ),
    Knob.IDLE: KnobSpec(
        "idle class",
        "A VM in the kernel's idle class yields to all others at once, and has no weight.",
        Scope.VM,
        Family.CPU_GROUP,
        Number("", 0, 1, usual=0, names={0: "off", 1: "on"}),
        Control.IDLE,
        "cpu.idle",
        _CGROUP,
        "cpu-idle",
    ),
    Knob.QUOTA: KnobSpec(
        "CPU quota",
        "CPU time that a VM may use in each period of its cgroup.",
        Scope.VM,
        Family.CPU_GROUP,
        Number("us a period", UNLIMITED, usual=UNLIMITED, names={UNLIMITED: "none"}),
        Control.QUOTA,
        "cpu.max, cpu.cfs_quota_us (v1)",
        "Documentation/scheduler/sched-bwc.rst",
        "cpu-quota",
    ),
    Knob.WEIGHT: KnobSpec(
        "CPU weight",
        "Share of the CPU time that a VM gets where others want it, too.",
        Scope.VM,
        Family.CPU_GROUP,
        Number("", 1, 262_144),
        Control.WEIGHT,
        "cpu.weight, cpu.shares (v1)",
        _CGROUP,
        "cpu-weight",
    ),
    Knob.VCPU_PIN: _pin("pin", "pCPUs that the thread of a vCPU may run on.", Scope.VCPU),
    Knob.EMULATOR_PIN: _pin(
        "emulator pin", "pCPUs that all other threads of QEMU may run on, and that new threads inherit.", Scope.VM
    ),
    Knob.IOTHREAD_PIN: _pin("pin", "pCPUs that an I/O thread of QEMU may run on.", Scope.IO_THREAD),
    Knob.IRQ_AFFINITY: KnobSpec(
        "affinity",
        "pCPUs that an interrupt of a network interface may be delivered to.",
        Scope.INTERRUPT,
        Family.INTERRUPT,
        Cpus(),
        Control.INTERRUPTS,
        "smp_affinity_list of the interrupt",
        "Documentation/core-api/irq/irq-affinity.rst",
        "",
        Order.WIDEN_FIRST,
    ),
    Knob.WARP: KnobSpec(
        "warp",
        "How far the VM's vCPUs may borrow ahead in virtual time, in our sched_ext scheduler.",
        Scope.VM,
        Family.WARP,
        Number("us", 0, MOST_WARP_US, usual=0),
        Control.WARP,
        "map of our BPF scheduler",
        "Documentation/scheduler/sched-ext.rst",
        "sched-ext",
        undo=Undo.IF_THERE,
        resets=frozenset({0}),  # it was loaded anew, without warps
    ),
    Knob.BVT_WARP: KnobSpec(
        "BVT warp",
        "The same on a kernel with the BVT patch.",
        Scope.VM,
        Family.WARP,
        Number("ns", usual=0),
        Control.WARP,
        "cpu.bvt_warp_ns",
        "none: the patch of Leverich and Kozyrakis (2014)",
        "bvt-kernel",
        undo=Undo.IF_THERE,
    ),
    Knob.GROUP_IDENTITY: KnobSpec(
        "group identity",
        "Class of a VM on OpenAnolis: the higher goes first.",
        Scope.VM,
        Family.WARP,
        Number("", -2, 2, usual=0),
        Control.WARP,
        "cpu.bvt_warp_ns",
        "none: that of Alibaba Cloud Linux",
        "bvt-kernel",
        undo=Undo.IF_THERE,
    ),
    Knob.SLICE: KnobSpec(
        "slice",
        "Slice of a vCPU's thread in EEVDF: a shorter one gets an earlier deadline.",
        Scope.VCPU,
        Family.WARP,
        Number("ns", 0, usual=0, names={0: "the kernel's"}),
        Control.WARP,
        "sched_setattr(2)",
        "Documentation/scheduler/sched-eevdf.rst",
        "eevdf-slice",
        undo=Undo.IF_THERE,
    ),
    Knob.SCHEDULER: KnobSpec(
        "sched_ext scheduler",
        "Whether our sched_ext scheduler decides for all ordinary tasks of the host.",
        Scope.HOST,
        Family.SCHEDULER,
        Number("", UNLOADED, OUTDATED, usual=UNLOADED, names=_SCHEDULER),
        Control.SCHEDULER,
        "a BPF link, by bpftool",
        "Documentation/scheduler/sched-ext.rst",
        "sched-ext",
        # The kernel threw it out, or another version of the agent had loaded it.
        resets=frozenset({EJECTED, OUTDATED}),
    ),
    Knob.SCHEDULING: KnobSpec(
        "scheduling",
        "Policy, and priority or nice value, of the thread of a vCPU.",
        Scope.VCPU,
        Family.SCHEDULING,
        Number("policy x 1000 + priority or nice value", usual=0, in_words=scheduling_in_words),
        Control.NICE,
        "sched_setattr(2), setpriority(2)",
        "sched(7)",
        "real-time-limit",
        Order.REAL_TIME_LAST,
        Undo.IF_THERE,
        control_of=lambda value: Control.REAL_TIME if is_real_time(value) else Control.NICE,
    ),
    Knob.RT_RUNTIME: _real_time_limit(
        "real-time limit",
        "CPU time of each pCPU that real-time threads in a VM's group, or in one above VMs, may use.",
        Scope.GROUP,
    ),
    Knob.VCPU_RT_RUNTIME: _real_time_limit(
        "real-time limit", "CPU time of each pCPU that a vCPU's thread may use while it is real-time.", Scope.VCPU
    ),
    Knob.CACHE_WAYS: KnobSpec(
        "cache ways",
        "Name and schemata of a group of resctrl: ways of the cache, and limits of memory bandwidth.",
        Scope.HOST,
        Family.CACHE,
        Text("name of a group and its schemata", "no group"),
        Control.CACHE,
        "schemata of a group of resctrl",
        _RESCTRL,
        "cache-allocation",
        Order.STEPS,
        Undo.REMOVED,
    ),
    Knob.CACHE_GROUP: KnobSpec(
        "cache group",
        "The group of resctrl that all threads of a VM are in.",
        Scope.VM,
        Family.CACHE,
        Text("name of a group", "the default group"),
        Control.CACHE,
        "tasks of a group of resctrl",
        _RESCTRL,
        "cache-allocation",
        Order.STEPS,
        Undo.REMOVED,
    ),
    Knob.MEMORY_PROTECTION: KnobSpec(
        "memory protection",
        "Memory of a VM's group, or of one above VMs, that the kernel reclaims only once nothing else is left.",
        Scope.GROUP,
        Family.MEMORY,
        Number("bytes", UNLIMITED, usual=0, in_words=partial(_amount, unlimited="all")),
        Control.MEMORY,
        "memory.low",
        _CGROUP,
        "memory-protection",
        undo=Undo.IF_THERE,
    ),
    Knob.SWAPPINESS: KnobSpec(
        "swappiness",
        "How readily the kernel swaps out memory of a VM's group on cgroup v1, which has no protection.",
        Scope.GROUP,
        Family.MEMORY,
        Number("", KEPT_IN_MEMORY, usual=60, names={KEPT_IN_MEMORY: "0, not while other groups have memory"}),
        Control.MEMORY,
        "memory.swappiness (v1)",
        "Documentation/admin-guide/cgroup-v1/memory.rst",
        "memory-protection",
        undo=Undo.IF_THERE,
    ),
    Knob.MEMORY_CEILING: KnobSpec(
        "memory ceiling",
        "Memory of a VM above which the kernel reclaims from it, and slows it down while it grows.",
        Scope.VM,
        Family.MEMORY,
        Number("bytes", UNLIMITED, usual=UNLIMITED, in_words=partial(_amount, unlimited="none")),
        Control.MEMORY,
        "memory.high, memory.soft_limit_in_bytes (v1)",
        _CGROUP,
        "memory-ceiling",
    ),
    Knob.BFQ_WEIGHT: _disk_weight(
        "disk weight (BFQ)",
        "Share of a disk's time that a VM gets where others want it, too, on disks whose scheduler is BFQ.",
        value=Number("", 1, 1000, usual=100),
        interface="io.bfq.weight, blkio.bfq.weight (v1)",
        document="Documentation/block/bfq-iosched.rst",
    ),
    Knob.IO_WEIGHT: _disk_weight(
        "disk weight (io.cost)",
        "The same on disks for which io.cost is enabled.",
        value=Number("", 1, 10_000, usual=100),
        interface="io.weight",
        document=_CGROUP,
    ),
    Knob.DISK_CEILING: KnobSpec(
        "ceiling",
        "Requests per second that a VM may make of a disk, reads and writes each.",
        Scope.DISK,
        Family.DISK,
        Number("requests/s", UNLIMITED, usual=UNLIMITED, names={UNLIMITED: "none", UNEVEN: "uneven"}),
        Control.DISK,
        "io.max, blkio.throttle.*_iops_device (v1)",
        _CGROUP,
        "disk-ceiling",
        undo=Undo.IF_THERE,
    ),
    Knob.UPLINK_RATE: _egress(
        "rate",
        "Rate at which an uplink sends, by a queueing discipline of ours that divides it between VMs.",
        value=Number("kbit/s", NO_RATE, MOST_KBIT, usual=NO_RATE, names={NO_RATE: "not divided"}, in_words=_kbit),
        interface="an HTB qdisc at the root of the interface",
        undo=Undo.DELETED,
        resets=frozenset({INCOMPLETE}),  # a crash came between
        made_here=True,
    ),
    Knob.BATCH_EGRESS: _egress(
        "batch ceiling",
        "What all batch VMs together may send on an uplink.",
        value=Number("kbit/s", UNLIMITED, MOST_KBIT, usual=UNLIMITED, names={UNLIMITED: "none"}, in_words=_ceiling),
        interface="ceil of a class of HTB",
        resets=frozenset({UNLIMITED}),  # as a class is made: the qdisc went meanwhile
        made_here=True,
    ),
    Knob.EGRESS_GROUP: _egress(
        "share",
        "Whose part of an uplink a VM's packets are sent from: that of critical VMs, of batch VMs, or of all others.",
        value=Number("", EgressGroup.OTHERS, EgressGroup.CRITICAL, usual=EgressGroup.OTHERS, names=_EGRESS_GROUPS),
        interface="a class of HTB, and u32 filters by source address",
        # An interface was plugged, or a crash came between; the class went with the qdisc.
        resets=frozenset({EgressGroup.PARTLY, EgressGroup.OTHERS}),
        made_here=True,
    ),
    Knob.EGRESS_TURN: _egress(
        "turn",
        "Frames that a VM sends in its turn while VMs of its kind share an uplink: their parts are as their turns.",
        value=Number("frames", LEAST_TURN, MOST_TURN, usual=USUAL_TURN),
        interface="quantum of a class of HTB",
        resets=frozenset({USUAL_TURN}),  # as a class is made
        made_here=True,
    ),
    Knob.TAP_LIMIT: _egress(
        "limit",
        "What a VM may send at one of its taps: the kernel drops what is more.",
        scope=Scope.TAP,
        value=Number("kbit/s", NO_RATE, MOST_KBIT, usual=NO_RATE, names={NO_RATE: "none"}, in_words=_tap_limit),
        interface="an ingress qdisc with a police action",
        document="tc-police(8)",
        probe="tap-limit",
        resets=frozenset({INCOMPLETE, NO_RATE}),  # a crash came between; the interface was plugged anew
        made_here=True,
    ),
    Knob.RESUME_LATENCY: KnobSpec(
        "resume latency",
        "How long a pCPU may take to resume from idle, which rules out deeper idle states.",
        Scope.PCPU,
        Family.POWER,
        Number(
            "us",
            ANY_LATENCY,
            usual=ANY_LATENCY,
            names={ANY_LATENCY: "as long as its idle states take", NO_LATENCY: "none: it polls"},
        ),
        Control.POWER,
        "power/pm_qos_resume_latency_us of the pCPU",
        "Documentation/ABI/testing/sysfs-devices-power",
        "resume-latency",
        undo=Undo.IF_THERE,
    ),
    Knob.GOVERNOR: KnobSpec(
        "governor",
        "What chooses the clock frequency of a pCPU, and of those that share its clock.",
        Scope.PCPU,
        Family.POWER,
        Number("", PERFORMANCE, len(GOVERNORS) - 1, names={**dict(enumerate(GOVERNORS)), ANOTHER_GOVERNOR: "another"}),
        Control.POWER,
        "scaling_governor of a cpufreq policy",
        "Documentation/admin-guide/pm/cpufreq.rst",
        "governor",
        undo=Undo.IF_THERE,
    ),
}


def of_family(*families: Family) -> frozenset[Knob]:
    """The knobs of these."""
    return frozenset(knob for knob, spec in KNOBS.items() if spec.family in families)


PINS = of_family(Family.PIN)
BATCH_GROUPS = of_family(Family.BATCH_GROUP)
IDLE_CLASSES = {Knob.WEIGHT: Knob.IDLE, Knob.BATCH_WEIGHT: Knob.BATCH_IDLE}
"""The idle class of the group that has a weight, which is lost there."""
WARPS = of_family(Family.WARP)
SCHEDULINGS = of_family(Family.SCHEDULING)
MEMORIES = of_family(Family.MEMORY)
EGRESS = of_family(Family.NETWORK)
POWERS = of_family(Family.POWER)
DISK_WEIGHTS = {Weighing.BFQ: Knob.BFQ_WEIGHT, Weighing.COST: Knob.IO_WEIGHT}
"""By what makes them act."""
