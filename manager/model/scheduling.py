"""How the kernel schedules a VM's vCPU threads, where an operator says so (docs/concepts/warp.md, "Other ways")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator

from manager.model.fields import CLOSED


class SchedulingPolicy(StrEnum):
    """Scheduling policies that can be registered; see sched(7)."""

    FIFO = "fifo"
    RR = "rr"
    OTHER = "other"


LIMIT_PERIOD_US = 1_000_000
"""Period of a group's limit of real-time CPU time: the kernel's default, and the only one that is written for."""
MOST_LIMIT_US = 950_000
"""What the kernel leaves real-time threads of a period by default (sched_rt_runtime_us): of all groups together."""
LEAST_LIMIT, LARGEST_LIMIT = 0.05, 0.9
LARGEST_PRIORITY = 10
LEAST_NICE, LARGEST_NICE = -20, 19
# include/uapi/linux/sched.h; 4 is reserved, 6 (deadline) has more than one number.
OTHER, FIFO, RR, BATCH, IDLE, EXT = 0, 1, 2, 3, 5, 7
_NAMES: Mapping[int, str] = {OTHER: "other", FIFO: "fifo", RR: "rr", BATCH: "batch", IDLE: "idle", EXT: "ext"}
_REAL_TIME = frozenset({FIFO, RR})
_STEP = 1000


@dataclass(frozen=True, slots=True)
class Scheduling:
    """``priority`` and ``limit`` are for fifo and rr, ``nice`` for other; None: 1, and 0.

    ``limit`` is the share of each second of each pCPU that all vCPUs of the VM together may run, each an equal part.
    """

    policy: Annotated[SchedulingPolicy, Field(description="fifo and rr: before all that is not real-time")]
    priority: Annotated[
        Annotated[int, Field(ge=1, le=LARGEST_PRIORITY)] | None,
        Field(description="of fifo and rr, the larger goes first; null: 1"),
    ] = None
    nice: Annotated[
        Annotated[int, Field(ge=LEAST_NICE, le=LARGEST_NICE)] | None,
        Field(description="of other, the smaller gets more; null: 0"),
    ] = None
    limit: Annotated[
        Annotated[float, Field(ge=LEAST_LIMIT, le=LARGEST_LIMIT)] | None,
        Field(
            validate_default=True,
            description="share of each second of each pCPU that all its vCPUs together may run, with fifo and rr",
        ),
    ] = None
    __pydantic_config__: ClassVar = CLOSED

    @field_validator("priority", "nice", "limit")
    @classmethod
    def _fits(cls, value: float | None, info: ValidationInfo) -> float | None:
        policy = info.data.get("policy")
        if policy is None:  # refused itself
            return value
        if value is None:
            if info.field_name == "limit" and policy is not SchedulingPolicy.OTHER:
                raise ValueError(f"{policy} needs a limit")
        elif (info.field_name == "nice") is not (policy is SchedulingPolicy.OTHER):
            raise ValueError(f"{policy} has no {info.field_name}")
        return value

    @property
    def real_time(self) -> bool:
        """Whether its threads go before all that are not real-time."""
        return self.policy is not SchedulingPolicy.OTHER

    @property
    def value(self) -> int:
        """As the knob ``scheduling`` holds it."""
        if self.policy is SchedulingPolicy.OTHER:
            return joined(OTHER, self.nice or 0)
        return joined(FIFO if self.policy is SchedulingPolicy.FIFO else RR, self.priority or 1)


def joined(policy: int, level: int) -> int:
    """A kernel's policy with the priority (fifo, rr) or nice value (all others) of a thread, as one number."""
    return policy * _STEP + level


def parted(value: int) -> tuple[int, int]:
    """The inverse of ``joined``."""
    policy = (value + _STEP // 2) // _STEP
    return policy, value - policy * _STEP


def is_real_time(value: int) -> bool:
    """Whether a thread that holds it is in SCHED_FIFO or SCHED_RR."""
    return parted(value)[0] in _REAL_TIME


def in_words(value: int) -> str:
    """Such as ``fifo 1``, or ``nice -5``, or ``batch, nice 0``."""
    policy, level = parted(value)
    name = _NAMES.get(policy, f"policy {policy}")
    if policy in _REAL_TIME:
        return f"{name} {level}"
    return f"nice {level}" if policy == OTHER else f"{name}, nice {level}"
