"""What an agent reports: a record of every decision, events, and the history of its ticks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from manager.model.knobs import Knob

BUSY_VCPU = 0.75
"""A vCPU that wants to run for this part of an interval, running or waiting, is told of."""
FULL_VCPU = 0.9
"""One that wants to run for this part of it is full."""


class OutcomeKind(StrEnum):
    """What came of a change.

    ``ignored``: the write succeeded but the kernel kept another value. ``external``: another tool had changed the
    value, so it was left alone. ``observed``: observe mode, nothing written.
    """

    APPLIED = "applied"
    RESTORED = "restored"
    OBSERVED = "observed"
    IGNORED = "ignored"
    FAILED = "failed"
    EXTERNAL = "external"
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
