"""What the pages of hosts say of an agent, of its VMs, and of the controls that its kernel offers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any

from manager.control.power_shares import idle_watts
from manager.control.watching import baseline_ms, suggested_target_ms
from manager.model.costs import HostCosts
from manager.model.cpus import CpuSet, format_cpus
from manager.model.energy import HostPower
from manager.model.fields import adapter_of
from manager.model.finding import FindingStatus
from manager.model.host_health import HostHealth
from manager.model.knob_text import knob_name, settings_shown
from manager.model.knobs import DISK_WEIGHTS, PINS, WARPS, Knob
from manager.model.numbers import digits, milliseconds
from manager.model.resource_use import resources_of
from manager.model.warp import TITLES, Mechanism
from webui.cpu_map import pins
from webui.words import BADGES, Badge, ago, percent, throughput

Json = Mapping[str, Any]
_OTHERS = frozenset(Knob) - PINS - WARPS - {Knob.WEIGHT, Knob.IDLE}
"""Settings of a VM without a column of their own."""
_BESIDES_CPU: Mapping[str, tuple[Knob, ...]] = {
    "Memory protection": (Knob.MEMORY_PROTECTION, Knob.SWAPPINESS),
    "Memory ceilings": (Knob.MEMORY_CEILING,),
    "Disk weights": tuple(DISK_WEIGHTS.values()),
    "Disk ceilings": (Knob.DISK_CEILING,),
    "Uplink shares": (Knob.EGRESS_GROUP, Knob.EGRESS_TURN),
    "Limits at taps": (Knob.TAP_LIMIT,),
}
"""Controls of memory, disks and uplinks, and the settings of VMs that they are."""


FAILING = (HostHealth.SILENT, HostHealth.NO_LIBVIRT)
"""Hosts that need help."""
HEALTH_WORDS: Mapping[HostHealth, str] = {
    HostHealth.SILENT: "silent",
    HostHealth.NO_LIBVIRT: "no libvirt",
    HostHealth.ERRORS: "errors",
    HostHealth.SLOW: "slow ticks",
    HostHealth.NEVER_REPORTED: "never reported",
    HostHealth.HEALTHY: "healthy",
}


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
class ControlRow:
    """A control of the ladder: ``in_force`` says for how many VMs or pCPUs, ``offered`` is a finding's status, ``by``
    what.
    """

    name: str
    in_force: str
    offered: str
    by: str


def heard(host: Json, now_s: float) -> Heard:
    """Whether the agent of a host is heard of, as the interface tells it, and when last, as of ``now_s``."""
    if host["last_seen_at"] is None:
        return Heard(Contact.NEVER, None)
    since_s = max(now_s - datetime.fromisoformat(host["last_seen_at"]).timestamp(), 0.0)
    return Heard(Contact.SILENT if host["silent"] else Contact.LIVE, ago(since_s))


def host_health(host: Json, now_s: float, interval_s: float) -> tuple[Badge, str]:
    """Whether a host's agent does what it should, from its last report, and what to do where it does not."""
    name, tick = host["name"], host["tick"]
    contact = heard(host, now_s)
    if contact.contact is Contact.NEVER or tick is None:
        return Badge("no_data", "never reported"), f"start equipoise agent on {name}, with a token for it"
    if contact.contact is Contact.SILENT:
        advice = f"check that equipoise agent runs on {name} and reaches the manager"
        return Badge("violated", f"last seen {contact.when}"), advice
    if not tick["libvirt_connected"]:
        return Badge("violated", "no libvirt"), f"check that libvirtd runs on {name}"
    if tick["errors"]:
        return Badge("at_risk", f"{tick['errors']} errors in the last tick"), "see Events"
    if tick["duration_ms"] > 1000 * interval_s:
        took = f"tick {milliseconds(tick['duration_ms'])}, too long"
        return Badge("at_risk", took), f"longer than the interval: check the load of {name}"
    return Badge("met", "healthy"), ""


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


def controls(
    lines: Sequence[VmTableRow], findings: Sequence[Json] | None, tick: Json | None = None
) -> list[ControlRow]:
    """The controls by which response times are brought back, with whom each is in force for and what the kernel offers.

    ``findings`` None: not reported. ``tick``: the last one that was reported, None before there is any. Order as in the
    design, section 4, "Ladder"; then those of memory, disks and uplinks, and of the host's power.
    """
    tick = tick or {}
    warp, cache, power = tick.get("warp"), tick.get("cache"), tick.get("power_controls") or {}
    known = {finding["id"]: finding for finding in findings or ()}
    knobs = [line.vm["status"]["knobs"] for line in lines if line.running]
    warped = sum(bool(line.vm["status"].get("warp_us")) for line in lines if line.running)
    groups = cache["groups"] if cache else ()

    def owned(*of: str, holds: Callable[[str], bool] = bool) -> int:
        return sum(any(one["knob"] in of and one["owned"] and holds(one["value"]) for one in vm) for vm in knobs)

    def control(name: str, count: int, *ids: str, of: str = "VM") -> ControlRow:
        """With the first of the mechanisms ``ids`` that works, or else that is known."""
        told = [known[one] for one in ids if one in known]
        best = next((one for one in told if one["status"] == FindingStatus.WORKS), told[0] if told else None)
        offered, by = (best["status"], best["title"]) if best else (FindingStatus.UNKNOWN, "not reported yet")
        return ControlRow(name, f"{count or 'no'} {of}{'s' * (count > 1)}", offered, by)

    return [
        control("CPU weight", owned("weight"), "cpu-weight-acts", "cpu-weight"),
        control("Idle class for batch", owned("idle", holds="1".__eq__), "cpu-idle"),
        control("Pinning", owned("vcpu_pin"), "affinity"),
        _warp(control("Warp", warped, "warp", "sched-ext", "bvt-kernel", "eevdf-slice"), warp),
        control(
            "Cache ways",
            sum(len(group["vms"]) for group in groups if group["applications"]),
            "cache-allocation",
            "resctrl",
        ),
        control(
            "Memory bandwidth", sum(len(group["vms"]) for group in groups if group["bandwidth"]), "memory-bandwidth"
        ),
        *(control(name, owned(*knobs_of), knobs_of[0].spec.probe) for name, knobs_of in _BESIDES_CPU.items()),
        control("Resume latency", power.get("pcpus", 0), Knob.RESUME_LATENCY.spec.probe, of="pCPU"),
        control("Governor of the clock", power.get("clocks", 0), Knob.GOVERNOR.spec.probe, of="clock"),
    ]


def _warp(control: ControlRow, warp: Json | None) -> ControlRow:
    """The control by the mechanism in force, with what that cannot do."""
    if warp is None:
        return control
    mechanism = Mechanism(warp["mechanism"])
    offered = FindingStatus.MISSING if mechanism is Mechanism.NONE else FindingStatus.WORKS
    by = f"{TITLES[mechanism]}: {warp['detail']}; it can {warp['can']}, it cannot {warp['cannot']}"
    return replace(control, offered=offered, by=by)


@dataclass(frozen=True, slots=True)
class CacheLine:
    """A group of resctrl: whose it is, ``kind`` is critical, batch or other, and its ways of each domain.

    ``strips``: for each way of the domain whether it is the group's, and that in words.
    """

    of: str
    kind: str
    group: Json
    strips: tuple[tuple[tuple[bool, ...], str], ...]


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
        owned = tuple(bool(int(part["mask"], 16) >> way & 1) for way in range(ways))
        cpus = format_cpus(way for way, is_owned in enumerate(owned) if is_owned) or "none"
        strips.append((owned, f"{sum(owned)} of {ways} ways in domain {part['domain']}: {cpus}"))
    return CacheLine(of, kind, group, tuple(strips))


def grouped(findings: Iterable[Json]) -> list[tuple[FindingStatus, list[Json]]]:
    """Findings by status, those that ask for something first, essential ones before others."""
    by = {
        status: sorted((one for one in findings if one["status"] == status), key=lambda one: not one["essential"])
        for status in map(FindingStatus, BADGES["finding"])
    }
    return [(status, found) for status, found in by.items() if found]


def traffic_lines(cache: Json | None) -> list[tuple[str, Json, float | None]]:
    """VM, what it has in a domain, and its share of the most traffic measured there (None: not known).

    A line for each VM and domain that anything is known of, the most traffic first.
    """
    parts = [(vm["vm"], part) for vm in cache["vms"] for part in vm["parts"]] if cache else []
    known = [(vm, part) for vm, part in parts if any(part[name] is not None for name in part if name != "domain")]
    known.sort(key=lambda line: (-(line[1]["bandwidth_total_bytes_per_s"] or 0), line[0], line[1]["domain"]))
    most: dict[int, float] = {}
    for memory in cache["memories"] if cache else ():
        most[memory["domain"]] = max(memory["bandwidth_bytes_per_s"] or 0.0, memory["maximum_bytes_per_s"] or 0.0)
    lines = []
    for vm, part in known:
        total = part["bandwidth_total_bytes_per_s"]
        whole = max(most.get(part["domain"], 0.0), total or 0.0)
        lines.append((vm, part, None if total is None or not whole else total / whole))
    return lines


@dataclass(frozen=True, slots=True)
class BatchLine:
    """How a batch VM fares, and what is agreed about its work; ``progress`` None: it has no work at present."""

    fares: Json
    job: Json | None

    @property
    def progress(self) -> float | None:
        """Against running alone, 0 .. 1."""
        return 1 / self.fares["slowdown"] if self.fares["slowdown"] else None


def batch_lines(faring: Iterable[Json], lines: Iterable[VmTableRow]) -> list[BatchLine]:
    """The batch VMs that an agent reported, in its order, with what is registered."""
    jobs = {line.vm["name"]: line.vm["job"] for line in lines}
    return [BatchLine(fares, jobs.get(fares["vm"])) for fares in faring]


@dataclass(frozen=True, slots=True)
class ResourceLine:
    """What a VM uses besides CPU time, and how it is held up. None: not measured."""

    vm: str
    memory_pressure: float | None
    io_pressure: float | None
    faults_per_s: float | None
    disk_bytes_per_s: float
    slowest_ms: float | None
    network_bytes_per_s: float
    dropped_packets_per_s: float


@dataclass(frozen=True, slots=True)
class ResourcesShown:
    """What the host does besides computing. ``facts`` are sentences; ``lines`` of VMs, those that wait most first."""

    facts: tuple[str, ...]
    lines: tuple[ResourceLine, ...]


def resources_shown(fields: Json | None) -> ResourcesShown | None:
    """Of what an agent reported of its last round of readings; None: nothing yet."""
    use = resources_of(fields)
    if use is None:
        return None
    facts = [
        f"Disk {disk.device}: {throughput(disk.bytes_per_s)}, {milliseconds(disk.latency_ms)} a request,"
        f" busy {percent(disk.busy)}."
        for disk in use.disks
    ]
    for link in use.uplinks:
        lost = f", ▲ {digits(link.dropped_packets_per_s)} packets/s lost" if link.dropped_packets_per_s else ""
        facts.append(f"Uplink {link.interface}: {throughput(link.bytes_per_s)}{lost}.")
    for resource, part in (("Memory", use.memory_pressure), ("I/O", use.io_pressure)):
        if part:
            facts.append(f"{resource} pressure of the host: {percent(part)}.")
    if use.missing:
        facts.append(f"Not measured here: {', '.join(signal.replace('_', ' ') for signal in use.missing)}.")
    lines = [
        ResourceLine(
            vm.vm,
            vm.memory_pressure,
            vm.io_pressure,
            None
            if vm.major_faults_per_s is None and vm.refaults_per_s is None
            else (vm.major_faults_per_s or 0.0) + (vm.refaults_per_s or 0.0),
            vm.disk_bytes_per_s,
            vm.slowest_disk.latency_ms if vm.slowest_disk else None,
            vm.link_bytes_per_s,
            vm.dropped_packets_per_s,
        )
        for vm in use.vms
    ]
    lines.sort(key=lambda line: (-(line.memory_pressure or 0.0) - (line.io_pressure or 0.0), line.vm))
    return ResourcesShown(tuple(facts), tuple(lines))


@dataclass(frozen=True, slots=True)
class PowerShown:
    """Power of a host's processors (``package_watts``) and their memory (``dram_watts``, None: not apart), measured.

    ``idle_watts``: of both, what the host would draw idle, by its costs.
    """

    package_watts: float
    dram_watts: float | None
    idle_watts: float


def power_shown(host: Json) -> PowerShown | None:
    """Of what an agent reported of its last round of readings; None: not measured."""
    tick = host["tick"] or {}
    if not tick.get("power"):
        return None
    power = adapter_of(HostPower).validate_python(tick["power"])
    idle_part = HostCosts(**host["costs"]).idle_part
    return PowerShown(power.package_watts, power.dram_watts, idle_watts(power.watts, idle_part, tick["host_cpu_share"]))


@dataclass(frozen=True, slots=True)
class ServiceLine:
    """A service that an agent reported; ``vm`` as registered, None where its domain is not."""

    service: Json
    vm: Json | None

    @property
    def name(self) -> str:
        """The VM's name, or the domain's where it is not registered."""
        return str(self.vm["name"] if self.vm else self.service["libvirt_name"])

    @property
    def vm_class(self) -> str:
        """critical, batch or unregistered."""
        return str(self.vm["class"]) if self.vm else "unregistered"

    @property
    def target_ms(self) -> float | None:
        """A target that its response times suggest; None where none was measured."""
        p95_ms = baseline_ms(self.service)
        return None if p95_ms is None else suggested_target_ms(p95_ms)


def service_lines(services: Iterable[Json], vms: Iterable[Json]) -> list[ServiceLine]:
    """Services with their VMs: critical ones first, then batch and unregistered ones; of each VM the busiest first."""
    by_name = {vm["name"]: vm for vm in vms}
    lines = [ServiceLine(service, by_name.get(service["registered_as"])) for service in services]
    order = ("critical", "batch", "unregistered")
    return sorted(lines, key=lambda line: (order.index(line.vm_class), line.name, -line.service["rate_rps"]))
