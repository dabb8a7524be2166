"""What `equipoise doctor` found out about one thing of a host."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, ClassVar

from pydantic import Field

from manager.model.fields import CLOSED, EpochS, Name, SafeText


class FindingStatus(StrEnum):
    """How a thing is.

    ``works``: tried, and what was written was read back or took effect. ``missing``: this host does not have it.
    ``ignored``: the kernel takes the setting and does nothing with it. ``degraded``: it works, but less well than it
    could. ``warning``: something that may disturb or surprise. ``unknown``: could not be found out.
    """

    WORKS = "works"
    MISSING = "missing"
    IGNORED = "ignored"
    DEGRADED = "degraded"
    WARNING = "warning"
    UNKNOWN = "unknown"


_BROKEN = frozenset({FindingStatus.MISSING, FindingStatus.IGNORED, FindingStatus.UNKNOWN})


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at.

    ``id`` never changes its meaning; ``essential``: without it Equipoise cannot control the host. ``detail`` is what
    was seen, ``advice`` what to do about it, empty where there is nothing to do.
    """

    id: Name
    area: SafeText
    title: SafeText
    status: FindingStatus
    essential: Annotated[bool, Field(description="without it Equipoise cannot control the host")]
    detail: SafeText
    advice: Annotated[SafeText, Field(description="empty: there is nothing to do")] = ""
    __pydantic_config__: ClassVar = CLOSED

    @property
    def broken(self) -> bool:
        """Whether the host cannot be controlled because of this; an essential thing nobody knows of counts as such."""
        return self.essential and self.status in _BROKEN


@dataclass(frozen=True, slots=True)
class Findings:
    """What works on a host, what is missing or ignored, and what to do about it."""

    time_s: Annotated[EpochS, Field(alias="at", description="when it was looked at, by the host's clock")]
    findings: Annotated[tuple[Finding, ...], Field(max_length=200)]
    __pydantic_config__: ClassVar = CLOSED
