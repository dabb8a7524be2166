"""The map of a host's pCPUs: sockets, NUMA nodes, last-level caches, cores and siblings, and who is pinned where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from manager.model.cpus import CpuSet, format_cpus, parse_cpus
from manager.model.knob_text import knob_name
from manager.model.knobs import Knob
from webui.drawing import Part, split
from webui.words import percent

Json = Mapping[str, Any]


class Use(StrEnum):
    """What a pCPU is for; the first that fits, in this order."""

    OFFLINE = "offline"
    CRITICAL = "critical"
    BATCH = "batch"
    RESERVED = "reserved"
    ISOLATED = "isolated"
    UNMANAGED = "unmanaged"
    SHARED = "shared"


USES: Mapping[Use, tuple[str, str]] = {
    Use.CRITICAL: ("C", "a vCPU of a critical VM is pinned here"),
    Use.BATCH: ("B", "a vCPU of a batch VM is pinned here"),
    Use.SHARED: ("·", "shared: VMs that are not pinned elsewhere run here"),
    Use.RESERVED: ("R", "reserved: no VM is pinned here"),
    Use.ISOLATED: ("I", "isolated by the kernel: only what is pinned here runs here"),
    Use.UNMANAGED: ("U", "not managed by Equipoise"),
    Use.OFFLINE: ("×", "offline"),
}
"""Mark and meaning of each use, as in the legend."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A pCPU. ``label`` is who has it, in few letters; ``notes`` are lesser marks; ``text`` says all in words.

    ``parts`` is its use by class, for a bar. ``busy`` is its measured use by everything, None: not known.
    """

    number: int
    use: Use
    label: str
    notes: tuple[str, ...]
    text: str
    parts: tuple[Part, ...] = ()
    busy: float | None = None

    @property
    def mark(self) -> str:
        """One letter for its use: readable without colour."""
        return USES[self.use][0]


@dataclass(frozen=True, slots=True)
class Box:
    """A socket, NUMA node, last-level cache (``l3``) or core, with what is in it; ``offline``: what has no place."""

    kind: str
    title: str
    inside: tuple[Box | Cell, ...]

    @property
    def cells(self) -> Iterator[Cell]:
        """Its pCPUs in the order of the map."""
        for part in self.inside:
            if isinstance(part, Box):
                yield from part.cells
            else:
                yield part


@dataclass(frozen=True, slots=True)
class Roaming:
    """VMs whose vCPUs are kept to a part of the host (``pcpus``, a CPU list), or may run everywhere (None)."""

    pcpus: str | None
    vms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CpuMap:
    """All pCPUs in place, and the VMs that have none of their own."""

    boxes: tuple[Box, ...]
    roaming: tuple[Roaming, ...]
    estimated: bool = False
    """Whether the split by class of a pCPU is estimated."""

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All pCPUs in the order of the map."""
        return tuple(cell for box in self.boxes for cell in box.cells)

    @property
    def uses(self) -> tuple[Use, ...]:
        """Those that occur, in the order of the legend."""
        found = {cell.use for cell in self.cells}
        return tuple(use for use in USES if use in found)

    @property
    def measured(self) -> bool:
        """Whether the use of a pCPU by everything is known."""
        return any(cell.busy is not None for cell in self.cells)

    @property
    def dense(self) -> bool:
        """Whether there is no room for names."""
        return len(self.cells) > DENSE_ABOVE


DENSE_ABOVE = 64
"""Maps of more pCPUs than this show names of VMs only for the one that is pointed at."""


def pins(status: Json | None, knob: Knob = Knob.VCPU_PIN) -> list[tuple[int, CpuSet]]:
    """Number and pCPUs of each thread of a VM's status that such a knob binds, by number."""
    knobs = () if status is None else status["knobs"]
    return sorted((one["index"], parse_cpus(one["value"])) for one in knobs if one["knob"] == knob)


def draw_map(capabilities: Json, reserved: str, vms: Sequence[Json], tick: Json | None = None) -> CpuMap:
    """The map from a host's ``capabilities``, its placement's ``reserved_cpus``, the VMs seen on it, and its tick."""
    online, managed = parse_cpus(capabilities["online_cpus"]), parse_cpus(capabilities["managed_cpus"])
    known = {cpu["number"]: cpu for cpu in capabilities["topology"]["cpus"]}
    places = [known.get(number) or _nowhere(number) for number in sorted(online | known.keys())]
    riders, critical, batch, roaming = _who(vms, online)
    queues: defaultdict[int, list[Json]] = defaultdict(list)
    for queue in capabilities["topology"]["queues"]:
        for number in parse_cpus(queue["serving"]):
            queues[number].append(queue)
    kept = parse_cpus(reserved)
    vcpus = list(_vcpus(vms, online, {busy["vm"]: busy["used"] for busy in (tick or {}).get("busy_vcpus", ())}))
    measured = (tick or {}).get("busy_pcpus", {})
    uses = pcpu_uses(vcpus, online)
    floated = frozenset[int]().union(*(cpus for _, cpus, share in vcpus if share and len(cpus & online) > 1))

    def cell(place: Json) -> Cell:
        number = place["number"]
        use = next(
            use
            for use, holds in (
                (Use.CRITICAL, number in critical),
                (Use.BATCH, number in batch),
                (Use.RESERVED, number in kept),
                (Use.ISOLATED, place["isolated"]),
                (Use.UNMANAGED, number not in managed),
                (Use.SHARED, True),
            )
            if holds
        )
        threads: defaultdict[str, list[str]] = defaultdict(list)
        for vm, thread in sorted(riders.get(number, ()), key=lambda rider: rider[0]):
            threads[vm].append(thread)
        names = [vm for vm, bound in threads.items() if any(thread.startswith("vCPU") for thread in bound)]
        serving = ", ".join(f"{queue['interface']} interrupt {queue['irq']}" for queue in queues[number])
        notes = {
            note: words
            for note, words, holds in (
                ("interrupts", f"serves {serving}", serving),
                ("emulator", "", any("emulator" in bound for bound in threads.values())),
                ("reserved", "reserved", number in kept and use is not Use.RESERVED),
                ("isolated", "isolated by the kernel", place["isolated"] and use is not Use.ISOLATED),
                ("slow", f"{percent(place['capacity'])} of the speed of the fastest", place["capacity"] < 1),
            )
            if holds
        }
        busy = measured.get(str(number))
        shares = within(uses.get(number, {}), busy)
        used = ", ".join(f"{kind} {percent(share)}" for kind, share in shares.items() if share)
        words = [
            f"pCPU {number}: {USES[use][1]}",
            f"core {place['core']}, L3 {place['l3']}, NUMA node {place['node']}, socket {place['socket']}",
            *(f"{vm}: {', '.join(bound)}" for vm, bound in threads.items()),
            *notes.values(),
            "" if busy is None else f"measured: {percent(busy)} busy",
            f"estimated: {used}" if used and number in floated else used,
        ]
        label = names[0] if len(names) == 1 else f"{len(names)} VMs" if names else ""
        parts = split([*shares.items(), ("idle", 1 - sum(shares.values()))])
        return Cell(number, use, label, tuple(notes), "; ".join(filter(None, words)), parts, busy)

    boxes = _boxes(places, cell)
    gone = sorted(frozenset(range(max(online, default=-1) + 1)) - online - known.keys())
    if gone:
        cores = (Box("core", "", (Cell(number, Use.OFFLINE, "", (), f"pCPU {number}: offline"),)) for number in gone)
        boxes = (*boxes, Box("offline", "Offline", tuple(cores)))
    return CpuMap(boxes, roaming, bool(floated))


def _vcpus(
    vms: Iterable[Json], online: CpuSet, busy: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, CpuSet, float]]:
    """All vCPUs: the class, where each may run, and the share of the time that it ran.

    That is as reported where one of the VM is busy, else the mean of all.
    """
    for vm in vms:
        bound, status, used = dict(pins(vm["status"])), vm["status"], busy.get(vm["name"], ())
        count = status.get("vcpus", 0)
        mean = status.get("cpu_share", 0.0) * len(online) / max(count, 1)
        for index in range(count):
            yield vm["class"], bound.get(index, online), used[index] if index < len(used) else mean


def _nowhere(number: int) -> Json:
    """The place of a pCPU of which the agent told only that it is there."""
    return {"number": number, "core": number, "socket": 0, "node": 0, "l3": 0, "capacity": 1.0, "isolated": False}


def _who(
    vms: Iterable[Json], online: CpuSet
) -> tuple[Mapping[int, list[tuple[str, str]]], set[int], set[int], tuple[Roaming, ...]]:
    """Threads bound to each pCPU (VM, which thread), pCPUs of critical and of batch vCPUs, and who has none."""
    riders: defaultdict[int, list[tuple[str, str]]] = defaultdict(list)
    held: dict[str, set[int]] = {"critical": set(), "batch": set()}
    roaming: defaultdict[str | None, list[str]] = defaultdict(list)
    for vm in vms:
        vcpus = pins(vm["status"])
        own = frozenset[int]().union(*(cpus for _, cpus in vcpus if len(cpus) == 1 and cpus < online))
        held[vm["class"]] |= own
        for knob in (Knob.VCPU_PIN, Knob.IOTHREAD_PIN, Knob.EMULATOR_PIN) if own else ():  # others go with the vCPUs
            for index, cpus in pins(vm["status"], knob):
                for cpu in cpus if knob is not Knob.VCPU_PIN or cpus <= own else ():
                    riders[cpu].append((vm["name"], knob_name(knob, index).removesuffix(" pin")))
        loose = [cpus for _, cpus in vcpus if not cpus <= own]
        if loose:
            together = frozenset[int]().union(*loose)
            roaming[None if together >= online else format_cpus(together)].append(vm["name"])
    return (
        riders,
        held["critical"],
        held["batch"],
        tuple(Roaming(pcpus, tuple(names)) for pcpus, names in sorted(roaming.items(), key=lambda one: one[0] or "")),
    )


_LEVELS = (("socket", "Socket {}"), ("node", "NUMA node {}"), ("l3", "L3 cache of pCPUs {cpus}"), ("core", ""))


def _boxes(
    places: Iterable[Json], cell: Callable[[Json], Cell], levels: Sequence[tuple[str, str]] = _LEVELS
) -> tuple[Box, ...]:
    """The places as sockets of nodes of caches of cores."""
    (kind, title), *below = levels
    boxes = []
    ordered = sorted(places, key=lambda place: (place[kind], place["number"]))
    for key, grouped in groupby(ordered, key=lambda place: int(place[kind])):
        members = list(grouped)
        words = title.format(key, cpus=format_cpus(place["number"] for place in members))
        inside = _boxes(members, cell, below) if below else tuple(map(cell, members))
        boxes.append(Box(kind, words, inside))
    return tuple(boxes)


def pcpu_uses(threads: Iterable[tuple[str, CpuSet, float]], online: CpuSet) -> Mapping[int, Mapping[str, float]]:
    """What vCPUs (class, the pCPUs on which each may run, the share of the time that it runs) use of each pCPU.

    A pinned vCPU uses its own pCPU. What floats is spread over the pCPUs on which it may run, by what the pinned ones
    leave of them: an estimate, since nothing tells where it ran.
    """
    uses = {cpu: {"critical": 0.0, "batch": 0.0} for cpu in online}
    floating = []
    for kind, cpus, share in threads:
        allowed = cpus & online
        if len(allowed) == 1:
            uses[next(iter(allowed))][kind] += share
        elif allowed:
            floating.append((kind, allowed, share))
    left = {cpu: max(1.0 - sum(parts.values()), 0.0) for cpu, parts in uses.items()}
    for kind, allowed, share in floating:
        room = sum(left[cpu] for cpu in allowed)
        for cpu in allowed:
            uses[cpu][kind] += share * (left[cpu] / room if room else 1 / len(allowed))
    return uses


def within(shares: Mapping[str, float], busy: float | None) -> Mapping[str, float]:
    """Use by class as far as a pCPU was ``busy``, and ``other`` for what no managed VM used; None: not measured."""
    if busy is None:
        return shares
    used = sum(shares.values())
    fitting = {kind: share * min(busy / used, 1.0) if used else 0.0 for kind, share in shares.items()}
    return {**fitting, "other": max(busy - used, 0.0)}
