"""From a snapshot to a plan: what a policy sees, what it decides, and what is to be done about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from manager.model.host import Capabilities, KnobKey, KnobValue
from manager.model.registration import Application, HostSpec, Mode, VmClass, VmSpec
from manager.model.window import SlaState, Window


@dataclass(frozen=True, slots=True)
class VmView:
    """A registered, running VM as a policy sees it.

    ``cpu_share`` is the CPU time used in the last interval as a fraction of the whole host, 0 .. 1;
    ``run_delay_share`` the seconds its vCPUs waited for a pCPU per second (so up to the number of its vCPUs).
    """

    spec: VmSpec
    vcpus: int
    cpu_share: float
    run_delay_share: float
    mode: Mode
    weight: int | None
    application: str | None = None
    tier: str | None = None

    @property
    def name(self) -> str:
        """The registered name."""
        return self.spec.name

    @property
    def critical(self) -> bool:
        """Whether it serves requests under an SLA."""
        return self.spec.vm_class is VmClass.CRITICAL


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
    """All that a policy may use, at ``now_s`` (seconds since the epoch). VMs and applications are sorted by name."""

    now_s: float
    interval_s: float
    host: HostSpec
    capabilities: Capabilities
    vms: tuple[VmView, ...] = ()
    applications: tuple[ApplicationView, ...] = ()


@dataclass(frozen=True, slots=True)
class WeightGoal:
    """The CPU weight a VM is to have, in units of the snapshot's ``capabilities.weights``, and why."""

    vm: str
    weight: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """What an operator should know of an application for as long as it lasts, such as that its data are stale."""

    application: str
    text: str


Memory = object | None
"""What a policy wants to see again at its next call; None at the first. Any immutable value of its own."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What a policy wants. VMs it does not name keep (or get back) their original settings."""

    weights: tuple[WeightGoal, ...] = ()
    memory: Memory = None
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """pCPU of each vCPU of the placed VMs, by VM name; and why each other critical VM was left floating."""

    cpus: tuple[tuple[str, tuple[int, ...]], ...] = ()
    floating: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Goal:
    """One knob's wanted value. ``mode`` is that of the VM: only ``enforce`` leads to a write."""

    key: KnobKey
    vm: str
    value: KnobValue
    reason: str
    mode: Mode


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings wanted on the host, at most one goal a knob, sorted by knob.

    ``undo_reason`` says why knobs that are not among them go back to their originals.
    """

    goals: tuple[Goal, ...] = ()
    undo_reason: str = "no longer managed here"


@dataclass(frozen=True, slots=True)
class Owned:
    """A knob that Equipoise changed.

    ``original`` is what it held before the first change. ``intended`` was to be written last and ``previous`` was
    there before that: until the write is known to have happened (``settled``), either may be found.
    """

    original: KnobValue
    previous: KnobValue
    intended: KnobValue
    foreign: bool = False
    settled: bool = False

    def accepts(self, actual: KnobValue) -> bool:
        """Whether ``actual`` is as we left it."""
        return actual == self.intended or (not self.settled and actual == self.previous)


class Action(StrEnum):
    """What is to be done about a knob.

    ``observe`` only records; ``give_up`` stops owning a knob that somebody else changed; ``forget`` drops a knob
    that holds its original already.
    """

    WRITE = "write"
    RESTORE = "restore"
    OBSERVE = "observe"
    GIVE_UP = "give_up"
    FORGET = "forget"


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between plan and host."""

    action: Action
    key: KnobKey
    before: KnobValue
    after: KnobValue
    reason: str
