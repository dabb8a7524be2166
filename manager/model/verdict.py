"""Who is guilty of a missed SLA, in a word."""

from __future__ import annotations

from enum import StrEnum


class VerdictKind(StrEnum):
    """What was found. ``not_cpu``: look at the application itself, its disks or the network."""

    OVERLOAD = "overload"
    NEIGHBOUR = "neighbour"
    HOST_FULL = "host_full"
    NOT_CPU = "not_cpu"
    UNKNOWN = "unknown"
