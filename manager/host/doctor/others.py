"""Other programs that change what Equipoise changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from manager.host.doctor.check import Check, CheckResult, Subject, warning, works
from manager.host.registry import HostPaths

_AREA = "Other managers"
_NAME_LENGTH = 15  # the kernel cuts the name of a task there, proc_pid_comm(5)


@dataclass(frozen=True, slots=True)
class Other:
    """A program by the names of its processes; what it does, and what to do about it."""

    id: str
    names: tuple[str, ...]
    does: str
    advice: str


OTHERS = (
    Other(
        "tuned",
        ("tuned",),
        "sets governors, sysctls and, with some profiles, affinities",
        "use its profile virtual-host, without plugins that set affinities or cgroups ([scheduler], cpu-partitioning)",
    ),
    Other(
        "irqbalance",
        ("irqbalance",),
        "moves interrupts between pCPUs, also onto those of critical VMs",
        "IRQBALANCE_BANNED_CPULIST= the pCPUs of critical VMs in its settings (/etc/default/irqbalance), or stop it",
    ),
    Other(
        "numad",
        ("numad",),
        "moves processes and their memory between nodes by cpusets",
        "systemctl disable --now numad: its cpusets undo pins",
    ),
    Other(
        "ksm",
        ("ksmtuned", "ksmtuned.sh"),
        "merges equal memory pages, which costs CPU time outside the VMs and makes writes wait",
        "systemctl disable --now ksmtuned ksm, or <nosharepages/> in critical domains",
    ),
    Other(
        "vdsm",
        ("vdsmd", "vdsm", "supervdsmd", "momd", "mom"),
        "oVirt's agent sets CPU shares, quotas and pins of its VMs",
        "leave CPU QoS and pinning of the VMs that Equipoise manages unset in oVirt, and switch MOM's CPU tuning off",
    ),
    Other(
        "nova-compute",
        ("nova-compute",),
        "OpenStack writes shares and pins into the domains it starts, and again at live migration",
        "give flavors of managed VMs neither hw:cpu_policy=dedicated nor quota:cpu_shares, and keep [compute]"
        " cpu_dedicated_set apart from managed_cpus",
    ),
    Other(
        "koordlet",
        ("koordlet",),
        "Koordinator sets CPU shares, quotas, group identity and resctrl groups",
        "do not run both on one host; otherwise switch its plugins CPUSuppress, CPUBurst, GroupIdentity and RdtResctrl"
        " off",
    ),
)


def running_names(paths: HostPaths) -> dict[str, int]:
    """A pid for each name that a running process has: its own, its program's, and its script's. Raises OSError."""
    found: dict[str, int] = {}
    for entry in paths.processes.iterdir():
        if entry.name.isdecimal():
            try:
                texts = (entry / "comm").read_bytes(), (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
                continue
            for name in _names(*map(os.fsdecode, texts)):
                found.setdefault(name, int(entry.name))
    return found


def _names(comm: str, command_line: str) -> Iterator[str]:
    yield comm.strip()
    program, script, *_ = [*command_line.split("\0"), "", ""]
    yield PurePosixPath(program).name
    # Only an interpreter's: the first argument of anything else may be any word.
    if PurePosixPath(program).name.startswith(("python", "bash", "sh", "dash")) and not script.startswith("-"):
        yield PurePosixPath(script).name


def _check(other: Other) -> Check:
    def look(subject: Subject) -> CheckResult:
        running = running_names(subject.paths)
        for name in other.names:
            pid = running.get(name) or running.get(name[:_NAME_LENGTH])
            if pid is not None:
                return warning(f"{name} runs (process {pid}): it {other.does}", other.advice)
        return works("not running")

    return Check(f"other-{other.id}", _AREA, other.id, look)


CHECKS = tuple(_check(other) for other in OTHERS)
