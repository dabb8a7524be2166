"""The table of knobs: all settings that Equipoise drives, and what is to be known of each.

Model, diff, journal, reports, pages, commands and docs/knobs.md draw from ``KNOBS``. To add a knob: a member of
``Knob`` with its row here, the file in ``manager/host`` that reads and writes it, and a test of that file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple

from manager.model.cpus import CpuSet, format_cpus, parse_cpus
from manager.model.network import ANOTHER, INCOMPLETE, MOST_KBIT, NO_RATE, EgressGroup
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

KnobValue = int | CpuSet
"""A number, or the set of pCPUs that threads may run on."""

HOST_UUID = "host"
"""Stands for a domain's UUID in the knobs of the host itself."""
UNLIMITED = -1
"""The quota of a group that may use all CPU time there is, and the ceiling of one that may use all memory."""
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
    MEMORY_CEILING = "memory_ceiling"
    BFQ_WEIGHT = "bfq_weight"
    IO_WEIGHT = "io_weight"
    DISK_CEILING = "disk_ceiling"
    UPLINK_RATE = "uplink_rate"
    BATCH_EGRESS = "batch_egress"
    EGRESS_GROUP = "egress_group"
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


class Scope(StrEnum):
    """What one setting is of. All but ``VM`` and ``HOST`` are distinguished by their index."""

    VM = "VM"
    HOST = "host"
    VCPU = "vCPU"
    IO_THREAD = "I/O thread"
    INTERRUPT = "interrupt"
    DISK = "disk"
    """By its number, as makedev(3) makes it of MAJOR and MINOR."""
    GROUP = "group"
    """A control group: of a VM, number 0 its own and 1 the one inside; of the host those above VMs, by their ids."""
    PCPU = "pCPU"
    """By its number; what pCPUs with one clock share, by that of their cpufreq policy."""
    UPLINK = "uplink"
    """A network interface of the host's own, by its index: of the host, or what a VM has there."""

    @property
    def numbered(self) -> bool:
        """Whether a VM, or the host, has several, distinguished by their index."""
        return self not in {Scope.VM, Scope.HOST}


class Family(StrEnum):
    """Knobs that are read and written together, by one file of ``manager/host``.

    Those of the CPU cgroup, pins, and whether it is in the batch group are read of each VM in each tick; warps,
    scheduling, memory, disks and uplinks only of VMs that have, or are to have, them; interrupts where they are
    steered, the batch group where there is to be one, power settings of pCPUs where any is to be set. The cache has a
    keeper and a port of its own.
    """

    CPU_GROUP = "cpu-group"
    MEMBERSHIP = "membership"
    BATCH_GROUP = "batch-group"
    PIN = "pin"
    INTERRUPT = "interrupt"
    WARP = "warp"
    SCHEDULER = "scheduler"
    SCHEDULING = "scheduling"
    CACHE = "cache"
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"
    POWER = "power"

    @property
    def apart(self) -> bool:
        """Whether it is read apart from the state of a VM, only where it was changed or is to be."""
        return self not in {Family.CPU_GROUP, Family.MEMBERSHIP, Family.PIN, Family.CACHE}


class Control(StrEnum):
    """What can be done to a host, in the words of the settings ``allow`` and ``deny``.

    ``mount``: to mount resctrl, which ``cache`` needs where it is not mounted. ``nice``: nice values of vCPUs.
    ``migrate``: to send VMs to other hosts.
    """

    WEIGHT = "weight"
    PIN = "pin"
    IDLE = "idle"
    QUOTA = "quota"
    BATCH_GROUP = "batch-group"
    NICE = "nice"
    WARP = "warp"
    CACHE = "cache"
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"
    REAL_TIME = "real-time"
    SCHEDULER = "scheduler"
    INTERRUPTS = "interrupts"
    POWER = "power"
    MOUNT = "mount"
    MIGRATE = "migrate"


class Order(StrEnum):
    """When a change is written, among all changes of a tick."""

    WIDEN_FIRST = "what gains pCPUs first"
    ANY = "between"
    REAL_TIME_LAST = "threads leave real-time early and enter it last"
    NESTED = "limits shrink from the inside, then grow from the outside"
    GROUP_FIRST = "before VMs leave the group"
    STEPS = "in the steps of the cache's keeper"


class Undo(StrEnum):
    """How the original comes back."""

    WRITTEN = "the original is written"
    IF_THERE = "the original is written, unless its thread, group or scheduler ended"
    INHERITED = "the original is written, and to threads that came later that of the emulator"
    MOVED = "the VM's threads move back"
    REMOVED = "VMs move back, and the group is removed"
    DELETED = "the qdisc is deleted with all its classes, and the kernel's default comes back"


@dataclass(frozen=True, slots=True)
class Number:
    """A value that is a whole number within ``least`` and ``most`` (None: the kernel decides).

    ``usual`` is what nobody has changed; ``names`` are values that mean something else than their number.
    """

    unit: str = ""
    least: int | None = None
    most: int | None = None
    usual: int | None = None
    names: Mapping[int, str] = field(default_factory=dict)
    in_words: Callable[[int], str] | None = None

    def parse(self, text: str) -> KnobValue:
        """Raises ValueError for text of another shape."""
        return int(text)

    def objection(self, value: KnobValue) -> str:
        """Why a value is none that may be written; empty: it may."""
        if not isinstance(value, int):
            return f"takes a number, not {value!r}"
        above = self.least is None or value >= self.least
        return "" if above and (self.most is None or value <= self.most) else f"takes {self.shape}, not {value}"

    def shown(self, text: str) -> str:
        """A value as people read it; text of another shape as it is."""
        try:
            value = int(text)
        except ValueError:
            return text
        if self.in_words is not None:
            return self.in_words(value)
        return self.names.get(value) or f"{value:,} {self.unit}".rstrip()

    @property
    def shape(self) -> str:
        """Range and unit, and what some values mean."""
        least, most = ("" if bound is None else f"{bound:,}" for bound in (self.least, self.most))
        extent = f"{least} to {most} " if least and most else f"at least {least} " if least else ""
        names = "; ".join(f"{value}: {name}" for value, name in self.names.items())
        return f"{extent}{self.unit}".rstrip() + (f" ({names})" if names else "")


@dataclass(frozen=True, slots=True)
class Cpus:
    """A value that is a set of pCPUs."""

    shape = "a set of pCPUs, such as 0-3,8"
    unit = ""
    usual = None

    def parse(self, text: str) -> KnobValue:
        """Raises ValueError for text of another shape."""
        return parse_cpus(text)

    def objection(self, value: KnobValue) -> str:
        """Why a value is none that may be written; empty: it may."""
        return f"takes pCPUs, not {value!r}" if isinstance(value, int) else ""

    def shown(self, text: str) -> str:
        """A value as people read it."""
        return text or "none"


@dataclass(frozen=True, slots=True)
class Text:
    """A value that only the cache's keeper and records know: of what ``shape``, and what an empty one stands for."""

    shape: str
    empty: str
    unit = ""
    usual = None

    def parse(self, text: str) -> KnobValue:
        """Raises ValueError: neither diff nor journal has such values."""
        raise ValueError(f"{text!r} is no value of a knob that the journal keeps")

    def objection(self, value: KnobValue) -> str:
        """No value may be written but by the keeper."""
        return f"is written by the cache's keeper only, not {value!r}"

    def shown(self, text: str) -> str:
        """A value as people read it."""
        return text or self.empty


@dataclass(frozen=True, slots=True)
class KnobSpec:
    """A row of the table.

    ``label`` is a noun phrase, without the number of those that have one (see ``knob_name``). ``interface`` is the
    kernel's file or call, ``document`` where that is described, ``probe`` the check of the doctor that finds out
    whether it works here, empty where only a write does. ``resets`` are values that the kernel makes of ours: no
    external changes. ``control`` is what the agent's own settings allow or deny, ``control_of`` that where it depends
    on the value. ``made_here``: there is none but ours, so what is found without an entry in the journal was left over
    from us, and its original is the usual value.
    """

    label: str
    description: str
    scope: Scope
    family: Family
    value: Number | Cpus | Text
    control: Control
    interface: str
    document: str
    probe: str
    order: Order = Order.ANY
    undo: Undo = Undo.WRITTEN
    resets: frozenset[int] = frozenset()
    control_of: Callable[[int], Control] | None = None
    made_here: bool = False

    def control_for(self, value: KnobValue) -> Control:
        """What writing a value takes."""
        return self.control_of(value) if self.control_of and isinstance(value, int) else self.control

    @property
    def ends(self) -> bool:
        """Whether it may end while its VM runs, such as with a thread: then it is forgotten."""
        return self.undo in {Undo.IF_THERE, Undo.INHERITED, Undo.DELETED}


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
        Number("requests/s", UNLIMITED, usual=UNLIMITED, names={UNLIMITED: "none"}),
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


def knob_name(knob: str, index: int | str) -> str:
    """What a setting is called wherever one is shown, such as ``CPU weight`` or ``vCPU 1 slice``: alike for no two of a
    VM.
    """
    spec = Knob(knob).spec
    if spec.scope is Scope.DISK:
        index = _disk_shown(int(index))
    return f"{spec.scope} {index} {spec.label}" if spec.scope.numbered else spec.label


def _disk_shown(number: int) -> str:
    """``MAJOR:MINOR``, as makedev(3) of the GNU C library has put them together."""
    major = (number >> 8 & 0xFFF) | (number >> 32 & 0xFFFFF000)
    minor = (number & 0xFF) | (number >> 12 & 0xFFFFFF00)
    return f"{major}:{minor}"


def value_shown(knob: str, text: str) -> str:
    """A value of records and reports as people read it, such as ``9,100`` or ``50,000 us a period``."""
    return Knob(knob).spec.value.shown(text)


def settings_shown(statuses: Iterable[Mapping[str, Any]], knobs: Collection[Knob]) -> list[str]:
    """Such as ``CPU weight: 9,100 (was 100)`` or ``vCPU 0-3 scheduling: fifo 1``, from the ``knobs`` of a VM's status.

    Only what is not as usual, was changed by us, or by another tool; several that are alike together.
    """
    alike: dict[tuple[Knob, str], set[int]] = {}
    for status in statuses:
        knob, value, original = Knob(status["knob"]), status["value"], status["original"]
        if knob in knobs and (original is not None or status["external"] or value != str(knob.spec.value.usual)):
            was = f" (was {value_shown(knob, original)})" if original is not None else ""
            words = value_shown(knob, value) + (" (externally modified)" if status["external"] else was)
            alike.setdefault((knob, words), set()).add(status["index"])
    return [f"{name}: {words}" for (knob, words), on in alike.items() for name in _names(knob, frozenset(on))]


def _names(knob: Knob, indexes: frozenset[int]) -> list[str]:
    """As one where they are counted; disks are not."""
    if knob.spec.scope is Scope.DISK:
        return [knob_name(knob, index) for index in sorted(indexes)]
    return [knob_name(knob, format_cpus(indexes))]


def knob_text(value: KnobValue) -> str:
    """A knob's value as records and the journal write it."""
    return str(value) if isinstance(value, int) else format_cpus(value)


def knob_value(knob: Knob, text: str) -> KnobValue:
    """The inverse of ``knob_text``. Raises ValueError for text of another shape."""
    return knob.spec.value.parse(text)
