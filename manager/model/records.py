"""What an agent reports: a record of every decision, events, and the history of its ticks."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, NamedTuple

from pydantic import Field

from manager.model.energy import Watts
from manager.model.fields import WIRE, Count, EpochS, Name, Share, Text, Weight
from manager.model.knobs import Knob
from manager.model.registration import Mode
from manager.model.resource_use import ResourceUse

KnobIndex = Annotated[
    int,
    Field(ge=0, le=2**31 - 1, description="number of the vCPU, I/O thread, interrupt or group, 0 where it is of none"),
]
RecordId = Annotated[str, Field(pattern=r"^[0-9a-f-]{36}$", description="a UUID in lower case")]

BUSY_VCPU = 0.75
"""A vCPU that wants to run for this part of an interval, running or waiting, is reported."""
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

    record_id: Annotated[RecordId, Field(alias="id")]
    time_s: Annotated[EpochS, Field(alias="at")]
    host: Name
    vm: Annotated[Name | None, Field(description="null: a setting of the host itself")]
    knob: Knob
    index: KnobIndex
    before: Text
    after: Text
    reason: Text
    policy: Name
    mode: Mode
    outcome: OutcomeKind
    detail: Text = ""
    __pydantic_config__: ClassVar = WIRE


class News(NamedTuple):
    """What an operator should know: an event while it is new; ``vm`` is None when it concerns the host."""

    severity: Severity
    kind: str
    text: str
    vm: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something an operator may want to know; ``vm`` is None when it concerns the host."""

    record_id: Annotated[RecordId, Field(alias="id")]
    time_s: Annotated[EpochS, Field(alias="at")]
    host: Name
    severity: Severity
    kind: Name
    message: Text
    vm: Name | None = None
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class VcpuTick:
    """The vCPU of a VM that wanted to run most: of the interval it ran the part ``used`` and waited ``waited``.

    ``full``: how many vCPUs of the VM wanted to run for FULL_VCPU of it, or more.
    """

    index: Annotated[int, Field(ge=0, le=8192)]
    used: Annotated[Share, Field(description="ran")]
    waited: Annotated[Share, Field(description="vCPU wait (steal): wanted to run, but had no pCPU")]
    full: Annotated[Count, Field(description="vCPUs of its VM that wanted to run for 90 % of it or more")]
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class VmTick:
    """A managed VM in one tick, before anything was changed; see VmView for the units.

    ``vcpu`` None: no vCPU wanted to run for BUSY_VCPU of the interval, or that is not known.
    """

    vm: Name
    cpu_share: Share
    run_delay_share: Annotated[float, Field(ge=0)]
    weight: Annotated[Weight | None, Field(description="null: it has none of its own")]
    mode: Mode
    vcpu: Annotated[
        VcpuTick | None,
        Field(
            exclude_if=lambda vcpu: vcpu is None,
            description="its vCPU that wanted to run most; absent: none did for 75 % of the interval",
        ),
    ] = None
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class TickRecord:
    """What one tick saw: the host's use, 0 .. 1, in the interval before ``time_s`` (seconds since the epoch).

    ``resources`` None: no round of readings ended since the tick before. ``power_watts``: mean of the last round.
    """

    time_s: Annotated[EpochS, Field(alias="at")]
    policy: Name
    mode: Mode
    host_cpu_share: Share
    vms: Annotated[tuple[VmTick, ...], Field(max_length=5000)]
    resources: Annotated[
        ResourceUse | None,
        Field(
            exclude_if=lambda resources: resources is None,
            description="what is used besides CPU time; absent: not measured since the tick before",
        ),
    ] = None
    power_watts: Annotated[
        Watts | None,
        Field(
            exclude_if=lambda watts: watts is None,
            description="of processors and their memory, by RAPL; absent: not measured",
        ),
    ] = None
    __pydantic_config__: ClassVar = WIRE
