"""What the table of knobs says of each: what has it, its values, when it is written, how it comes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from manager.model.cpus import CpuSet, parse_cpus

KnobValue = int | CpuSet
"""A number, or the set of pCPUs that threads may run on."""


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
    TAP = "tap"
    """A network interface of the host's that leads to a VM, by its index."""

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
        return "" if self._is_within(value) else f"takes {self.shape}, not {value}"

    def _is_within(self, value: int) -> bool:
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

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
        """Range and unit, and what some of the values mean that may be written."""
        least, most = ("" if bound is None else f"{bound:,}" for bound in (self.least, self.most))
        extent = f"{least} to {most} " if least and most else f"at least {least} " if least else ""
        names = "; ".join(f"{value}: {name}" for value, name in self.names.items() if self._is_within(value))
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
