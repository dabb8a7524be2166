"""Warps: how promptly a VM's vCPUs are let in, whatever its share is, and the mechanisms (docs/concepts/warp.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field, ValidationError, ValidatorFunctionWrapHandler, WrapValidator

from manager.model.fields import CLOSED, SafeText

AUTO: Literal["auto"] = "auto"
WarpWish = int | Literal["auto"]
"""Microseconds, or ``auto``: as the SLA of the VM's application says."""

MOST_WARP_US = 100_000
"""No larger warp can be given: it would act like this one."""


def _one_error(value: object, check: ValidatorFunctionWrapHandler) -> object:
    """One error for the field, not one for each member of a union."""
    try:
        return check(value)
    except ValidationError:
        raise ValueError("should be microseconds or auto") from None


WarpUs = Annotated[
    Annotated[int, Field(ge=0, le=MOST_WARP_US)] | Annotated[Literal["auto"], Field(description="auto")],
    WrapValidator(_one_error),
]

DEFAULT_WARP_MAX_US = 50_000

UNLOADED, LOADED, EJECTED, OUTDATED = 0, 1, 2, 3
"""Values of the knob ``scheduler``: our sched_ext scheduler is not there; decides; was thrown out by the kernel; one of
another version decides."""


class WarpUse(StrEnum):
    """Whether VMs of a host get warps.

    ``on``: by a mechanism of its kernel that was measured to help, else by none. ``sched_ext``: by our own scheduler,
    which is loaded for it and then schedules all ordinary tasks of the host. ``group_identity`` and ``slice``: by
    these, of which nobody measured that they help; slices were measured to harm.
    """

    OFF = "off"
    ON = "on"
    SCHED_EXT = "sched_ext"
    GROUP_IDENTITY = "group_identity"
    SLICE = "slice"


class Mechanism(StrEnum):
    """The mechanisms, the best first: our sched_ext scheduler, the BVT patch, OpenAnolis, EEVDF's slices, nothing."""

    SCHED_EXT = "sched_ext"
    BVT = "bvt"
    GROUP_IDENTITY = "group_identity"
    SLICE = "slice"
    NONE = "none"


TITLES: Mapping[Mechanism, str] = {
    Mechanism.SCHED_EXT: "Equipoise's sched_ext scheduler",
    Mechanism.BVT: "the BVT patch",
    Mechanism.GROUP_IDENTITY: "group identity",
    Mechanism.SLICE: "EEVDF slice",
    Mechanism.NONE: "nothing",
}

ABILITIES: Mapping[Mechanism, tuple[str, str]] = {
    Mechanism.SCHED_EXT: (
        "let a VM in at once as long as it uses less than its share, by as much as its warp says",
        "enforce quotas (cpu.max), act on real-time tasks, or run beside another sched_ext scheduler",
    ),
    Mechanism.BVT: (
        "let a VM in at once as long as it uses less than its share, by as much as its warp says",
        "be had on a kernel that anybody maintains",
    ),
    Mechanism.GROUP_IDENTITY: (
        "let a VM in before all of lower class: two classes, whatever the warp is in between",
        "bound what is borrowed: a VM of high class that never sleeps holds up those below it",
    ),
    Mechanism.SLICE: (
        "give a vCPU that wakes up an earlier deadline at no cost in the long run",
        "let it in before it is owed the time: it helps little, if at all",
    ),
    Mechanism.NONE: ("leave weights, pins and the idle class as they are", "make a VM prompter than its weight does"),
}
"""What each mechanism can do, and what it cannot."""


@dataclass(frozen=True, slots=True)
class Offer:
    """Whether a host has a mechanism, and what was seen of it."""

    mechanism: Mechanism
    available: Annotated[bool, Field(description="whether this host has it")]
    detail: Annotated[SafeText, Field(description="what was seen")]
    __pydantic_config__: ClassVar = CLOSED


_STANDING: Mapping[WarpUse, Mechanism] = {
    WarpUse.ON: Mechanism.BVT,
    WarpUse.SCHED_EXT: Mechanism.BVT,
    WarpUse.GROUP_IDENTITY: Mechanism.GROUP_IDENTITY,
    WarpUse.SLICE: Mechanism.SLICE,
}
"""Which mechanism serves without loading anything. The BVT patch was measured to help by the study that it is of
(Leverich and Kozyrakis, 2014), not by us; our scheduler by us; nothing else by anybody (docs/concepts/warp.md)."""

_BY_CHOICE: Mapping[Mechanism, str] = {
    Mechanism.SCHED_EXT: "our sched_ext scheduler can be loaded",
    Mechanism.GROUP_IDENTITY: "group identity is there, of which nobody measured that it helps",
    Mechanism.SLICE: "EEVDF's slices are there, which were measured to harm more than they help",
}


def standing(offers: Iterable[Offer], use: WarpUse) -> Offer | None:
    """The mechanism that serves without loading anything where that ``use`` was chosen, None where it is not there."""
    return next((offer for offer in offers if offer.available and offer.mechanism is _STANDING.get(use)), None)


def chosen_only(offers: Iterable[Offer]) -> str:
    """What a host has that ``on`` does not use, and how each is chosen; empty where it has none of these."""
    return "; ".join(
        f'{_BY_CHOICE[offer.mechanism]} ("warp": "{offer.mechanism}")'
        for offer in offers
        if offer.available and offer.mechanism in _BY_CHOICE
    )


@dataclass(frozen=True, slots=True)
class VmWarp:
    """The warp that a VM is to have: ``value`` is what that is in the unit of the mechanism, ``reason`` why."""

    vm: str
    warp_us: int
    value: int
    reason: str


@dataclass(frozen=True, slots=True)
class WarpPlan:
    """The warps of a host: by which mechanism, why that one, and for whom.

    ``load``: our sched_ext scheduler is to be loaded, or to stay. ``problem`` is what went wrong, ``note`` what an
    operator should know besides.
    """

    mechanism: Mechanism = Mechanism.NONE
    detail: str = "switched off"
    vms: tuple[VmWarp, ...] = ()
    load: bool = False
    problem: str = ""
    note: str = ""


NO_WARPS = WarpPlan()
