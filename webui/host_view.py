"""What the pages of hosts say of an agent, of its VMs, and of the steps that its kernel offers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from manager.model.cpus import CpuSet, format_cpus
from manager.model.finding import FindingStatus
from manager.model.knobs import PINS, WARPS, Knob, knob_name, settings_shown
from manager.model.warp import TITLES, Mechanism
from webui.cpu_map import pins
from webui.words import ago

Json = Mapping[str, Any]
_OTHERS = frozenset(Knob) - PINS - WARPS - {Knob.WEIGHT, Knob.IDLE}
"""Settings of a VM without a column of their own."""


class Contact(StrEnum):
    """Whether a host's agent is heard of."""

    LIVE = "live"
    SILENT = "silent"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Heard:
    """How an agent is heard of, and when last, in words such as ``3 min ago``: None if it never was."""

    contact: Contact
    when: str | None


@dataclass(frozen=True, slots=True)
class VmTableRow:
    """A row of the table of VMs; ``weight`` and ``original`` are texts of the kernel's numbers, None where unknown.

    ``settings`` are those without a column of their own, in words, where they are not as usual.
    """

    vm: Json
    running: bool
    weight: str | None
    original: str | None
    idle: bool | None
    pins: str
    settings: tuple[str, ...]
    external: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MechanismRow:
    """A step of the ladder: ``in_force`` says for whom, ``offered`` is a finding's status.

    ``driven``: this version sets it.
    """

    name: str
    driven: bool
    in_force: str
    offered: str
    why: str
    advice: str


FINDINGS: Mapping[FindingStatus, tuple[str, str, str]] = {
    FindingStatus.MISSING: ("✗", "missing", "missed"),
    FindingStatus.IGNORED: ("✗", "ignored by the kernel", "missed"),
    FindingStatus.DEGRADED: ("▲", "degraded", "at_risk"),
    FindingStatus.WARNING: ("▲", "warning", "at_risk"),
    FindingStatus.UNKNOWN: ("○", "unknown", "no_data"),
    FindingStatus.WORKS: ("✓", "works", "met"),
}
"""Mark, word and class of colour of each status of a finding, those that ask for something first."""


def heard(host: Json, now_s: float) -> Heard:
    """Whether the agent of a host is heard of, as the interface tells it, and when last, as of ``now_s``."""
    if host["last_seen_at"] is None:
        return Heard(Contact.NEVER, None)
    since_s = max(now_s - datetime.fromisoformat(host["last_seen_at"]).timestamp(), 0.0)
    return Heard(Contact.SILENT if host["silent"] else Contact.LIVE, ago(since_s))


def vm_lines(vms: Iterable[Json], host: str, online: CpuSet) -> list[VmTableRow]:
    """The VMs of a host, critical ones first; a VM that was last seen elsewhere counts as not running here."""
    lines = []
    for vm in sorted(vms, key=lambda vm: (vm["class"] != "critical", vm["name"])):
        status = vm["status"] if vm["status_host"] == host else None
        knobs = {(one["knob"], one["index"]): one for one in (status["knobs"] if status else ())}
        weight, idle = (knobs.get((knob, 0)) for knob in (Knob.WEIGHT, Knob.IDLE))
        lines.append(
            VmTableRow(
                vm=vm,
                running=status is not None,
                weight=weight and weight["value"],
                original=weight and weight["original"],
                idle=None if idle is None else idle["value"] == "1",
                pins=_pins(status, online),
                settings=tuple(settings_shown(knobs.values(), _OTHERS)),
                external=tuple(
                    knob_name(name, index) for (name, index), one in sorted(knobs.items()) if one["external"]
                ),
            )
        )
    return lines


def _pins(status: Json | None, online: CpuSet) -> str:
    """Where the vCPUs may run: one pCPU each, in their order, or the set they share."""
    bound = [cpus for _, cpus in pins(status)]
    if not bound:
        return ""
    if all(len(cpus) == 1 for cpus in bound) and online != bound[0]:
        return "pinned to " + ", ".join(format_cpus(cpus) for cpus in bound)
    together = frozenset[int]().union(*bound)
    return "floats over all" if together >= online else f"kept to {format_cpus(together)}"


def ladder(
    lines: Sequence[VmTableRow], findings: Sequence[Json] | None, warp: Json | None = None, cache: Json | None = None
) -> list[MechanismRow]:
    """The steps by which response times are brought back, with whom each is in force for and what the kernel offers.

    ``findings`` None: the agent has not told. ``warp``: by what warps are given, ``cache``: how the cache is divided,
    None where they are switched off. Order as in the design, section 4, "Ladder".
    """
    known = {finding["id"]: finding for finding in findings or ()}

    def owned(knob: str, holds: Callable[[str], bool] = bool) -> str:
        count = sum(
            any(one["knob"] == knob and one["owned"] and holds(one["value"]) for one in line.vm["status"]["knobs"])
            for line in lines
            if line.running
        )
        return f"{count} VM{'s' * (count != 1)}" if count else ""

    def step(name: str, in_force: str | None, *ids: str) -> MechanismRow:
        """The first of the mechanisms ``ids`` that works; else the first that is known."""
        driven = in_force is not None
        told = [known[one] for one in ids if one in known]
        best = next((one for one in told if one["status"] == FindingStatus.WORKS), told[0] if told else None)
        if best is None:
            return MechanismRow(name, driven, in_force or "", FindingStatus.UNKNOWN, "the agent has not told yet", "")
        return MechanismRow(
            name, driven, in_force or "", best["status"], f"{best['title']}: {best['detail']}", best["advice"]
        )

    return [
        step("CPU weight", owned("weight"), "cpu-weight-acts", "cpu-weight"),
        step("Idle class for batch", owned("idle", "1".__eq__), "cpu-idle"),
        step("Pinning", owned("vcpu_pin"), "affinity"),
        _warp(step("Warp", "", "warp", "sched-ext", "bvt-kernel", "eevdf-slice"), lines, warp),
        _cache(step("Cache ways", "", "cache-allocation", "resctrl"), cache),
        _held(step("Memory bandwidth", "", "memory-bandwidth"), cache),
    ]


def _warp(step: MechanismRow, lines: Sequence[VmTableRow], warp: Json | None) -> MechanismRow:
    """The step of warps with the mechanism in force, what that can do, and what it cannot."""
    if warp is None:
        return step
    count = sum(bool(line.vm["status"].get("warp_us")) for line in lines if line.running)
    title = TITLES[Mechanism(warp["mechanism"])]
    in_force = f"{count} VM{'s' * (count != 1)} by {title}" if count else ""
    why = f"{warp['detail']}. It can {warp['can']}; it cannot {warp['cannot']}"
    offered = FindingStatus.MISSING if warp["mechanism"] == Mechanism.NONE else FindingStatus.WORKS
    return replace(step, in_force=in_force, offered=offered, why=why, advice="")


@dataclass(frozen=True, slots=True)
class Strip:
    """The ways of one domain of the cache, from the first on: whether they are the group's; and that in words."""

    domain: int
    ways: tuple[bool, ...]
    words: str


@dataclass(frozen=True, slots=True)
class CacheLine:
    """A group of resctrl: whose it is, and its ways; ``kind`` is critical, batch or other.

    ``bandwidth``: to which its memory traffic is held, empty: not.
    """

    of: str
    kind: str
    vms: tuple[str, ...]
    strips: tuple[Strip, ...]
    external: bool
    bandwidth: str = ""


def cache_lines(cache: Json | None) -> list[CacheLine]:
    """How the cache is divided, applications first, all else last; none where it is not."""
    lines = [_cache_line(group, cache["ways"]) for group in cache["groups"]] if cache else []
    return sorted(lines, key=lambda line: (("critical", "batch", "other").index(line.kind), line.of))


def _cache_line(group: Json, ways: int) -> CacheLine:
    kind = "critical" if group["applications"] else "batch" if group["name"] else "other"
    of = ", ".join(group["applications"]) or {"batch": "batch VMs", "other": "all else"}[kind]
    of += ", held back" if group["bandwidth"] else ""
    strips = []
    for part in group["parts"]:
        bits = int(part["mask"], 16)
        own = frozenset(way for way in range(ways) if bits >> way & 1)
        words = f"{len(own)} of {ways} ways in domain {part['domain']}: {format_cpus(own) or 'none'}"
        strips.append(Strip(part["domain"], tuple(way in own for way in range(ways)), words))
    return CacheLine(of, kind, tuple(group["vms"]), tuple(strips), group["external"], group["bandwidth"])


def _cache(step: MechanismRow, cache: Json | None) -> MechanismRow:
    """The step of cache ways with those in force."""
    count = sum(len(group["vms"]) for group in cache["groups"] if group["applications"]) if cache else 0
    return replace(step, in_force=f"{count} VM{'s' * (count != 1)}" if count else "")


def _held(step: MechanismRow, cache: Json | None) -> MechanismRow:
    """The step of memory bandwidth with those held back."""
    count = sum(len(group["vms"]) for group in cache["groups"] if group["bandwidth"]) if cache else 0
    return replace(step, in_force=f"{count} VM{'s' * (count != 1)}" if count else "")


def grouped(findings: Iterable[Json]) -> list[tuple[FindingStatus, list[Json]]]:
    """Findings by status, those that ask for something first, essential ones before others."""
    by = {
        status: sorted((one for one in findings if one["status"] == status), key=lambda one: not one["essential"])
        for status in FINDINGS
    }
    return [(status, found) for status, found in by.items() if found]
