"""The likely cause of a violated SLA, in a word."""

from __future__ import annotations

from enum import StrEnum


class VerdictKind(StrEnum):
    """What was found.

    ``not_cpu``: look at the application itself, its disks or the network. ``imbalance``: one vCPU of a VM is full and
    runs, while the VM has others that are not: look at the service's threads.
    """

    OVERLOAD = "overload"
    NEIGHBOUR = "neighbour"
    HOST_FULL = "host_full"
    IMBALANCE = "imbalance"
    NOT_CPU = "not_cpu"
    UNKNOWN = "unknown"
