"""Verdicts in a word: the likely cause of a violated SLA, and whether a VM may come."""

from __future__ import annotations

from enum import StrEnum


class VerdictKind(StrEnum):
    """What was found.

    ``not_cpu``: nothing that the host measures; look at the application itself. ``imbalance``: one vCPU of a VM is full
    and runs, while the VM has others that are not: look at the service's threads. ``memory``, ``disk``, ``network``:
    what it waits for instead of a pCPU. ``power``: its pCPUs resume slowly from idle, or have a low clock.
    """

    OVERLOAD = "overload"
    NEIGHBOUR = "neighbour"
    HOST_FULL = "host_full"
    IMBALANCE = "imbalance"
    MEMORY = "memory"
    DISK = "disk"
    NETWORK = "network"
    POWER = "power"
    NOT_CPU = "not_cpu"
    UNKNOWN = "unknown"


class FitVerdict(StrEnum):
    """Whether a VM may come; ``unsure``: a target is within an interval, or too little is known of an application."""

    YES = "yes"
    NO = "no"
    UNSURE = "unsure"
