"""What `equipoise doctor` found out about one thing of a host."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


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

    id: str
    area: str
    title: str
    status: FindingStatus
    essential: bool
    detail: str
    advice: str = ""

    @property
    def broken(self) -> bool:
        """Whether the host cannot be controlled because of this; an essential thing nobody knows of counts as such."""
        return self.essential and self.status in _BROKEN
