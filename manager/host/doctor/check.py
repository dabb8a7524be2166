"""A check, what it looks at, and how its failures are kept to itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import libvirt

from manager.errors import HostError
from manager.host.doctor.libvirt_view import LibvirtView, look_at_libvirt
from manager.host.registry import HostPaths
from manager.model.cpus import CpuSet, parse_cpus
from manager.model.fields import as_text
from manager.model.finding import Finding, FindingStatus
from manager.model.limits import DEFAULT_LIMITS, AgentLimits


@dataclass(frozen=True)
class Subject:
    """The host that is looked at, and the agent's files on it.

    ``managed_cpus`` empty means all online ones. ``quick``: nothing that takes longer than an instant. ``gentle``: no
    CPU time is used up that VMs could have. ``limits``, ``log_dirs`` and ``probe_networks``: the most that the agent
    does, by its own settings.
    """

    paths: HostPaths
    libvirt_uri: str
    lock_file: Path
    state_dir: Path
    journal_name: str
    managed_cpus: CpuSet = frozenset()
    quick: bool = False
    gentle: bool = False
    limits: AgentLimits = DEFAULT_LIMITS
    log_dirs: str = ""
    probe_networks: str = ""

    def managed_online(self) -> CpuSet:
        """The managed pCPUs that are online. Raises OSError, ValueError."""
        online = parse_cpus(self.paths.online_cpus.read_text())
        return (self.managed_cpus or online) & online

    @cached_property
    def libvirt(self) -> LibvirtView:
        """What libvirt says, asked once."""
        return look_at_libvirt(self.libvirt_uri)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found; ``essential`` where that makes it so although the check itself is not."""

    status: FindingStatus
    detail: str
    advice: str = ""
    essential: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """``look`` raises OSError, HostError, libvirtError or ValueError where it cannot find out."""

    id: str
    area: str
    title: str
    look: Callable[[Subject], CheckResult]
    essential: bool = False

    def run(self, subject: Subject) -> Finding:
        """The finding; ``unknown`` with the reason where ``look`` failed. Any other exception is a bug, and rises."""
        try:
            verdict = self.look(subject)
        except (OSError, HostError, libvirt.libvirtError, ValueError) as error:
            advice = "run as root on the host itself; if it stays so, the reason says what could not be read or written"
            verdict = unknown(f"could not be found out: {error}", advice)
        essential = self.essential or verdict.essential
        detail, advice = as_text(verdict.detail), as_text(verdict.advice)  # names of others may be of any bytes
        return Finding(self.id, self.area, self.title, verdict.status, essential, detail, advice)


works = partial(CheckResult, FindingStatus.WORKS)
missing = partial(CheckResult, FindingStatus.MISSING)
ignored = partial(CheckResult, FindingStatus.IGNORED)
degraded = partial(CheckResult, FindingStatus.DEGRADED)
warning = partial(CheckResult, FindingStatus.WARNING)
unknown = partial(CheckResult, FindingStatus.UNKNOWN)
"""Each takes what was seen, and what to do about it."""


def not_tried(option: str) -> CheckResult:
    """Left out because of --quick or --gentle."""
    return unknown(f"not tried, because of {option}", "run `equipoise doctor`")
