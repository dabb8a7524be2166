"""What a verdict on a violation is drawn from, and what it consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from manager.model.fields import WIRE, Text
from manager.model.records import TickRecord
from manager.model.registration import VmClass
from manager.model.verdict import VerdictKind

LEAST_TICKS = 2
"""Ticks that a mean needs."""
RISEN = 1.5
"""What holds up a VM has risen when it is so many times what it was before."""
MAIN_PART = 0.5
"""A VM is named for this part, or more, of all that is not the application's own."""


@dataclass(frozen=True, slots=True)
class HostTicks:
    """A host's ticks before and during the violation. ``waits_known``: its kernel tells how long vCPUs wait."""

    host: str
    pcpus: int
    waits_known: bool
    before: tuple[TickRecord, ...]
    during: tuple[TickRecord, ...]


@dataclass(frozen=True, slots=True)
class Case:
    """An application that violates its SLA: its VMs, its rate then, and the ticks of the hosts of its VMs.

    ``vcpus`` and ``limits_pcpus`` (CPU seconds a second that a VM may use) are by VM, where known; ``classes`` are of
    all registered VMs. The rates are None where nobody knows them, or none was agreed; ``target_ms`` is the SLA's.
    """

    application: str
    vms: frozenset[str]
    hosts: tuple[HostTicks, ...]
    rate_rps: float | None = None
    max_rate_rps: float | None = None
    vcpus: Mapping[str, int] | None = None
    limits_pcpus: Mapping[str, float] | None = None
    classes: Mapping[str, VmClass] | None = None
    target_ms: float | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """A mean before the violation (null: too few ticks) and during it."""

    subject: Annotated[Text, Field(description="a VM, a host or a disk of it")]
    metric: Annotated[
        Literal[
            "cpu_share",
            "wait_share",
            "vcpu_used",
            "vcpu_wait",
            "memory_pressure",
            "io_pressure",
            "major_faults_per_s",
            "refaults_per_s",
            "growth_bytes_per_s",
            "disk_latency_ms",
            "disk_bytes_per_s",
            "network_bytes_per_s",
            "dropped_packets_per_s",
            "resume_us",
            "clock_part",
        ],
        Field(
            description="cpu_share: of the host; wait_share: part of the time its vCPUs wanted to run that they waited;"
            " vcpu_used, vcpu_wait: parts of the time, of the vCPU that is full; memory_pressure, io_pressure: part of"
            " the time in which a thread waited for it; resume_us: what its pCPUs take to resume from idle; clock_part:"
            " their clock, as a part of the highest"
        ),
    ]
    before: float | None
    during: float
    __pydantic_config__: ClassVar = WIRE


@dataclass(frozen=True, slots=True)
class Verdict:
    """``vm`` is the noisy neighbour; ``host`` where it happened. ``evidence`` are sentences with numbers."""

    kind: VerdictKind
    evidence: tuple[str, ...]
    vm: str | None = None
    host: str | None = None
    measures: tuple[Measure, ...] = ()
