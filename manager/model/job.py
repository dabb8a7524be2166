"""What is agreed about the work of a batch VM, and how it fares."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from manager.model.fields import WIRE, EpochS, Name

LEAST_ALONE_PCPUS, MOST_ALONE_PCPUS = 0.01, 8192.0
MOST_CPU_SECONDS = 1e9
MOST_SLOWDOWN = 1000.0
"""Slower than that counts as that slow."""


@dataclass(frozen=True, slots=True)
class BatchJob:
    """Work of a batch VM with a deadline, and how much slower than alone it may run.

    The work counts from its registration, or from the start of the VM where that is later.
    """

    deadline_s: Annotated[
        EpochS | None,
        Field(alias="deadline", description="time by which the work is to be done; null: none"),
    ] = None
    cpu_seconds: Annotated[
        Annotated[float, Field(gt=0, le=MOST_CPU_SECONDS)] | None,
        Field(validate_default=True, description="CPU time that the work takes, in seconds; null: no deadline"),
    ] = None
    max_slowdown: Annotated[
        Annotated[float, Field(ge=1, le=MOST_SLOWDOWN)] | None,
        Field(description="so many times slower than alone it may run; null: any"),
    ] = None
    alone_pcpus: Annotated[
        Annotated[float, Field(ge=LEAST_ALONE_PCPUS, le=MOST_ALONE_PCPUS)] | None,
        Field(description="CPU seconds a second that it uses running alone; null: learnt while the host is calm"),
    ] = None
    __pydantic_config__: ClassVar = WIRE

    @field_validator("cpu_seconds")
    @classmethod
    def _together(cls, value: float | None, info: ValidationInfo) -> float | None:
        if "deadline_s" not in info.data:  # refused itself
            return value
        if (value is None) is not (info.data["deadline_s"] is None):
            raise ValueError("deadline and cpu_seconds go together: set both, or neither")
        return value

    @property
    def active(self) -> bool:
        """Whether anything is agreed."""
        return self.cpu_seconds is not None or self.max_slowdown is not None


class JobState(StrEnum):
    """How the work of a job with a deadline fares.

    ``at_risk``: at the present rate it is late; ``infeasible``: even with all its vCPUs it is late.
    """

    ON_TRACK = "on_track"
    AT_RISK = "at_risk"
    INFEASIBLE = "infeasible"
    DONE = "done"
    MISSED = "missed"


class AloneBy(StrEnum):
    """Whence it is known what a batch VM uses running alone."""

    REGISTERED = "registered"
    LEARNT = "learnt"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class BatchVm:
    """How a batch VM fares beside the others; rates are averages over the last minute, in CPU seconds a second.

    ``would_pcpus`` is what it would use at present if it were alone, ``slowdown`` that over ``got_pcpus`` and ``speed``
    and at least 1; None: it wants next to nothing. ``done_cpu_s`` and ``needed_pcpus`` are of a job with a deadline.
    """

    vm: Name
    got_pcpus: Annotated[float, Field(ge=0, description="CPU seconds a second that it got")]
    wants_pcpus: Annotated[float, Field(ge=0, description="and those for which its vCPUs ran or waited")]
    would_pcpus: Annotated[float, Field(ge=0, description="and those it would use if it were alone")]
    slowdown: Annotated[
        Annotated[float, Field(ge=1, le=MOST_SLOWDOWN)] | None,
        Field(description="so many times slower than alone; null: it wants next to nothing"),
    ]
    alone_by: Annotated[AloneBy, Field(description="whence it is known what it uses alone; unknown: not yet")]
    alone_pcpus: Annotated[float | None, Field(description="what it uses alone when it has work; null: unknown")] = None
    state: Annotated[JobState | None, Field(description="of its deadline; null: it has none")] = None
    done_cpu_s: Annotated[float | None, Field(description="CPU seconds of its work that are done")] = None
    needed_pcpus: Annotated[
        float | None, Field(description="CPU seconds a second that it needs until its deadline; null: none")
    ] = None
    too_slow: Annotated[bool, Field(description="slower than its max_slowdown")] = False
    speed: Annotated[
        Annotated[float, Field(gt=0, le=1)] | None,
        Field(
            exclude_if=lambda speed: speed is None,
            description="instructions per cycle, as a part of those while it hardly waited; absent: not counted",
        ),
    ] = None
    __pydantic_config__: ClassVar = WIRE

    @property
    def progress(self) -> float | None:
        """Against running alone, 0 .. 1; None: it wants next to nothing."""
        return None if self.slowdown is None else 1 / self.slowdown
