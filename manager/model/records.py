"""What an agent reports: the state of its VMs, a record of every decision, and events."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Knob(StrEnum):
    """A setting of a VM that Equipoise drives."""

    WEIGHT = "weight"
    VCPU_PIN = "vcpu_pin"
    EMULATOR_PIN = "emulator_pin"


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

    ``before`` and ``after`` are the knob's text: a weight, or a CPU list. ``time_s`` is seconds since the epoch,
    ``detail`` the kernel's reason where the outcome is not what was wanted.
    """

    record_id: str
    time_s: float
    host: str
    vm: str
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
