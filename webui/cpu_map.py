"""The map of a host's pCPUs: sockets, NUMA nodes, last-level caches, cores and siblings, and who is pinned where."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from manager.model.cpus import CpuSet, format_cpus, parse_cpus
from manager.model.knobs import Knob, knob_name
from webui.drawing import Part, split
from webui.pcpu_use import pcpu_uses, vcpu_uses
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

    ``parts`` is its use by class, for a bar.
    """

    number: int
    use: Use
    label: str
    notes: tuple[str, ...]
    text: str
    parts: tuple[Part, ...] = ()

    @property
    def mark(self) -> str:
        """One letter for its use: readable without colour."""
        return USES[self.use][0]


@dataclass(frozen=True, slots=True)
class Cache:
    """A last-level cache and its cores, each with its siblings (SMT threads)."""

    title: str
    cores: tuple[tuple[Cell, ...], ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A NUMA node."""

    title: str
    caches: tuple[Cache, ...]


@dataclass(frozen=True, slots=True)
class Socket:
    """A processor."""

    title: str
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Roaming:
    """VMs whose vCPUs are kept to a part of the host (``pcpus``, a CPU list), or may run everywhere (None)."""

    pcpus: str | None
    vms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CpuMap:
    """All pCPUs in place, those that are offline, and the VMs that have none of their own."""

    sockets: tuple[Socket, ...]
    offline: tuple[Cell, ...]
    roaming: tuple[Roaming, ...]

    @property
    def cells(self) -> tuple[Cell, ...]:
        """All pCPUs in the order of the map."""
        placed = (
            cell
            for socket in self.sockets
            for node in socket.nodes
            for cache in node.caches
            for core in cache.cores
            for cell in core
        )
        return (*placed, *self.offline)

    @property
    def uses(self) -> tuple[Use, ...]:
        """Those that occur, in the order of the legend."""
        found = {cell.use for cell in self.cells}
        return tuple(use for use in USES if use in found)

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


def draw_map(
    capabilities: Json, reserved: str, vms: Sequence[Json], busy: Mapping[str, Sequence[float]] | None = None
) -> CpuMap:
    """The map from a host's ``capabilities``, its placement's ``reserved_cpus``, and the VMs seen on it.

    ``busy``: the use of each vCPU of VMs that have a busy one.
    """
    online, managed = parse_cpus(capabilities["online_cpus"]), parse_cpus(capabilities["managed_cpus"])
    known = {cpu["number"]: cpu for cpu in capabilities["topology"]["cpus"]}
    places = [known.get(number) or _nowhere(number) for number in sorted(online | known.keys())]
    riders, critical, batch, roaming = _who(vms, online)
    queues: defaultdict[int, list[Json]] = defaultdict(list)
    for queue in capabilities["topology"]["queues"]:
        for number in parse_cpus(queue["serving"]):
            queues[number].append(queue)
    kept = parse_cpus(reserved)
    uses = pcpu_uses(_threads(vms, online, busy or {}), online)

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
        here = queues.get(number, [])
        own = riders.get(number, ())
        names = sorted({vm for vm, part in own if part.startswith("vCPU")})
        notes = [
            note
            for note, holds in (
                ("irq", here),
                ("emu", any(part == "emulator" for _, part in own)),
                ("res", number in kept and use is not Use.RESERVED),
                ("iso", place["isolated"] and use is not Use.ISOLATED),
                ("slow", place["capacity"] < 1),
            )
            if holds
        ]
        shares = uses.get(number, {})
        text = _words(place, use, own, here, number in kept)
        if any(shares.values()):
            text += "; " + ", ".join(f"{kind} {percent(share)}" for kind, share in shares.items() if share)
        parts = split([*shares.items(), ("idle", 1 - sum(shares.values()))])
        return Cell(number, use, _short(names), tuple(notes), text, parts)

    gone = sorted(frozenset(range(max(online, default=-1) + 1)) - online - known.keys())
    offline = tuple(Cell(number, Use.OFFLINE, "", (), f"pCPU {number}: offline") for number in gone)
    return CpuMap(_grouped(places, cell), offline, roaming)


def _threads(
    vms: Iterable[Json], online: CpuSet, busy: Mapping[str, Sequence[float]]
) -> Iterator[tuple[str, CpuSet, float]]:
    """All vCPUs: the class, where each may run, and the share of the time that it runs."""
    for vm in vms:
        bound = dict(pins(vm["status"]))
        for index, share in enumerate(vcpu_uses(vm, len(online), busy)):
            yield vm["class"], bound.get(index, online), share


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


def _grouped(places: Sequence[Json], cell: Callable[[Json], Cell]) -> tuple[Socket, ...]:
    """The places as sockets of nodes of caches of cores."""

    def by(field: str, members: Iterable[Json]) -> list[tuple[int, list[Json]]]:
        ordered = sorted(members, key=lambda place: (place[field], place["number"]))
        return [(key, list(group)) for key, group in groupby(ordered, key=lambda place: int(place[field]))]

    return tuple(
        Socket(
            f"Socket {socket}",
            tuple(
                Node(
                    f"NUMA node {node}",
                    tuple(
                        Cache(
                            f"L3 of {format_cpus(place['number'] for place in behind)}",
                            tuple(tuple(cell(place) for place in siblings) for _, siblings in by("core", behind)),
                        )
                        for _, behind in by("l3", near)
                    ),
                )
                for node, near in by("node", inside)
            ),
        )
        for socket, inside in by("socket", places)
    )


def _short(names: Sequence[str]) -> str:
    return "" if not names else names[0] if len(names) == 1 else f"{len(names)} VMs"


def _words(place: Json, use: Use, own: Iterable[tuple[str, str]], queues: Sequence[Json], reserved: bool) -> str:
    where = f"core {place['core']}, L3 {place['l3']}, NUMA node {place['node']}, socket {place['socket']}"
    said = [f"pCPU {place['number']}: {USES[use][1]}", where]
    threads: defaultdict[str, list[str]] = defaultdict(list)
    for vm, part in own:
        threads[vm].append(part)
    said += [f"{vm}: {', '.join(parts)}" for vm, parts in sorted(threads.items())]
    if queues:
        said.append("serves " + ", ".join(f"{queue['interface']} interrupt {queue['irq']}" for queue in queues))
    if reserved and use is not Use.RESERVED:
        said.append("reserved")
    if place["isolated"] and use is not Use.ISOLATED:
        said.append("isolated by the kernel")
    if place["capacity"] < 1:
        said.append(f"{place['capacity']:.0%} of the speed of the fastest".replace("%", " %"))
    return "; ".join(said)
