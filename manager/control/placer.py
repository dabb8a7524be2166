"""Placement from interval to interval: who wants to be placed, by which measured demand, and how much may move.

What a vCPU wants is averaged over minutes, and a placement is looked at again only now and then, or at once when VMs,
pCPUs or pins changed: pins are to stand still while weights move. The same holds for the time that pCPUs spend on
interrupts. Batch VMs and the interrupts of network interfaces go where placed vCPUs leave room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import cycle

from manager.control.batch_seats import Seat, blocks_of, seat
from manager.control.feedback_law import average, vcpu_demands
from manager.control.placement import PlacementRequest, VcpuNeed, place
from manager.model.cpus import CpuSet, format_cpus
from manager.model.decision import CpusGoal, Placement, Snapshot, VmView
from manager.model.registration import Mode, VmSpec
from manager.model.rules import BatchPlacement, IrqSteering, PlacementRules
from manager.model.topology import Topology

RECONSIDER_S = 10.0
"""Demand alone leads to another placement so often at most."""
DRIFT_PCPUS = 0.02
"""And only if a vCPU's average, or a pCPU's of interrupts, has changed by as much since nothing had to move."""
INTERRUPTS_FALL = 10.0
"""The average time on interrupts falls so many times more slowly than it rises.

Part of it may be packets of the very VM that is on the pCPU: once that has moved away the pCPU looks better than it is,
and the VM would go back and forth.
"""
MINUTE_S = 60.0


@dataclass(frozen=True, slots=True)
class Pinned:
    """What is known of a VM's threads beside its view.

    ``now`` is the pCPU that each vCPU is pinned to, by whomever, up to the first that floats. ``originals`` are the
    pCPUs that each may use without us, ``nodes`` the NUMA nodes of its memory.
    """

    now: tuple[int, ...]
    originals: tuple[CpuSet, ...]
    nodes: frozenset[int] = frozenset()


Question = tuple[tuple[tuple[str, tuple[CpuSet, ...], Pinned], ...], Topology, CpuSet, PlacementRules]
"""The VMs that want pins, with where each vCPU may run; the topology, the pCPUs that may be given, and the rules."""


@dataclass(frozen=True, slots=True)
class Situation:
    """All that is asked of a placement but the demands, and what it follows ``of``: mostly nothing changes for long.

    ``wanting`` are the positions of the VMs that want pins; ``allowed`` is by their names, of each vCPU.
    ``interrupted`` are the pCPUs whose time on interrupts counts.
    """

    of: tuple[object, ...]
    wanting: tuple[int, ...]
    allowed: Mapping[str, tuple[CpuSet, ...]]
    question: Question
    interrupted: CpuSet = frozenset()


@dataclass(frozen=True, slots=True)
class Averages:
    """Averages of what vCPUs want, by VM, and of what share of its time a pCPU spends on interrupts."""

    demand: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    interrupts: Mapping[int, float] = field(default_factory=dict)

    def like(self, before: Averages) -> bool:
        """Whether each vCPU of the same VMs wants about what it wanted, and interrupts take about what they took."""
        pairs = [
            (now, then)
            for vm, wanted in self.demand.items()
            for now, then in zip(wanted, before.demand[vm], strict=True)
        ]
        if self.interrupts.keys() != before.interrupts.keys():
            return False
        pairs += [(share, before.interrupts[cpu]) for cpu, share in self.interrupts.items()]
        return all(abs(now - then) < DRIFT_PCPUS for now, then in pairs)


@dataclass(frozen=True, slots=True)
class PlacerMemory:
    """What was measured; the times at which vCPUs were moved; and the last placement, with what was asked then.

    ``settled_for`` is what was measured when a placement had nothing to move, None after one that had.
    """

    averages: Averages = field(default_factory=Averages)
    moves_s: tuple[float, ...] = ()
    asked_s: float = 0.0
    question: Question | None = None
    placement: Placement = field(default_factory=Placement)
    settled_for: Averages | None = None
    situation: Situation | None = None


def usable_cpus(snapshot: Snapshot) -> CpuSet:
    """The pCPUs that VMs may be pinned to: managed, not reserved, and isolated ones only if all managed ones are.

    Who isolated pCPUs at boot has plans for them; naming nothing else in the setting ``managed_cpus`` says that they
    are meant for this.
    """
    capabilities = snapshot.capabilities
    managed = capabilities.managed_cpus - snapshot.host.placement.reserved_cpus
    isolated = capabilities.topology.isolated
    return managed if managed <= isolated else managed - isolated


def wants_pins(vm: VmView, snapshot: Snapshot) -> bool:
    """Whether a VM is to get pCPUs of its own: as registered for it, else critical ones as the host says."""
    if not vm.vcpus or vm.mode is Mode.RELEASED:
        return False
    return vm.critical and snapshot.host.pinning if vm.spec.pin is None else vm.spec.pin


def allowed_cpus(spec: VmSpec, original: CpuSet, online: CpuSet) -> CpuSet:
    """Where a thread may run: its VM's registered pCPUs, within those another tool restricted it to."""
    allowed = online if spec.cpus is None else spec.cpus & online
    return allowed & original if original & online < online else allowed


def plan_placement(
    snapshot: Snapshot,
    pinned: Mapping[str, Pinned],
    taken: CpuSet,
    memory: PlacerMemory,
    decided: Collection[str] = frozenset(),
) -> tuple[Placement, PlacerMemory]:
    """Place the VMs that want pins; ``pinned`` is by VM name, ``taken`` are pCPUs of VMs that cannot be read now.

    ``decided`` are the VMs whose pCPUs the policy decides: they are not placed. At the first time nothing has been
    measured yet, so nobody moves who need not.
    """
    situation = _situation(snapshot, pinned, taken, decided, memory.situation)
    wanting = [snapshot.vms[position] for position in situation.wanting]
    before = memory.averages
    smoothing = min(1.0, snapshot.interval_s / snapshot.host.placement.demand_window_s)
    averages = Averages(
        {vm.spec.name: _demand(vm, before.demand.get(vm.spec.name, ()), smoothing) for vm in wanting},
        _interrupts(situation.interrupted, before.interrupts, snapshot),
    )
    question = situation.question
    now_s = snapshot.steady_s
    if question == memory.question:
        if 0 <= now_s - memory.asked_s < RECONSIDER_S:
            return memory.placement, replace(memory, averages=averages, situation=situation)
        if memory.settled_for is not None and averages.like(memory.settled_for):
            return memory.placement, replace(memory, averages=averages, asked_s=now_s, situation=situation)
    moves_s = tuple(moved for moved in memory.moves_s if 0 <= now_s - moved < MINUTE_S)
    rules = question[-1]
    budget = max(rules.moves_per_min - len(moves_s), 0) if memory.question is not None else 0
    placement, moved = _place(situation, averages, pinned, budget)
    settled_for = averages if budget and placement.cpus == memory.placement.cpus else None
    moves_s += (now_s,) * moved
    return placement, PlacerMemory(averages, moves_s, now_s, question, placement, settled_for, situation)


def _place(
    situation: Situation, averages: Averages, pinned: Mapping[str, Pinned], budget: int
) -> tuple[Placement, int]:
    """A placement, and how many vCPUs it moves that need not."""
    _, topology, cpus, rules = situation.question
    demand, allowed = averages.demand, situation.allowed
    requests = [
        PlacementRequest(vm, tuple(map(VcpuNeed, wanted, allowed[vm])), pinned[vm].nodes)
        for vm, wanted in demand.items()
    ]
    previous = {vm: pinned[vm].now for vm in demand if pinned[vm].now}
    placement = place(requests, topology, cpus, previous, rules, budget, averages.interrupts)
    moved = sum(
        before != after and before in cpus & may  # it need not have moved
        for name, pins in placement.cpus
        for before, after, may in zip(previous.get(name, ()), pins, allowed[name], strict=False)
    )
    return placement, moved


def _situation(
    snapshot: Snapshot,
    pinned: Mapping[str, Pinned],
    taken: CpuSet,
    decided: Collection[str],
    before: Situation | None,
) -> Situation:
    """The same object while nothing has changed that it, and where the other VMs go, follow from."""
    registered = [(vm.spec, vm.mode, vm.vcpus, vm.application) for vm in snapshot.vms]
    of = (pinned, taken, snapshot.host, snapshot.capabilities, registered, decided)
    if before is not None and before.of == of:
        return before
    rules, topology = snapshot.host.placement, snapshot.capabilities.topology
    if rules.irqs is not IrqSteering.OFF:  # the interrupts go where the rules say, but for those that cannot
        topology = Topology(topology.cpus, tuple(queue for queue in topology.queues if queue.managed))
    online = snapshot.capabilities.online_cpus
    wanting = [
        (position, vm)
        for position, vm in enumerate(snapshot.vms)
        if wants_pins(vm, snapshot) and vm.name in pinned and vm.name not in decided
    ]
    allowed = {
        vm.name: tuple(allowed_cpus(vm.spec, original, online) for original in pinned[vm.name].originals)
        for _, vm in wanting
    }
    asked = tuple((name, allowed[name], pinned[name]) for name in sorted(allowed))
    question = asked, topology, usable_cpus(snapshot) - taken, rules
    interrupted = topology.interrupted & usable_cpus(snapshot)
    return Situation(of, tuple(position for position, _ in wanting), allowed, question, interrupted)


def _demand(vm: VmView, before: tuple[float, ...], smoothing: float) -> tuple[float, ...]:
    """What each vCPU wants, in pCPUs: what it used and what it waited for itself, averaged."""
    known = len(before) == vm.vcpus
    now = vcpu_demands(vm)
    if not now:
        return before if known else (0.0,) * vm.vcpus
    return tuple([average(then, wanted, smoothing) for then, wanted in zip(before, now, strict=True)]) if known else now


def _interrupts(interrupted: CpuSet, before: Mapping[int, float], snapshot: Snapshot) -> dict[int, float]:
    """What share of its time each of these pCPUs spends on interrupts, averaged; where that is known.

    Others are left out: what a VM's own packets cause follows it wherever it is, and would drive it from pCPU to pCPU.
    """
    now = snapshot.interrupts
    rising = min(1.0, snapshot.interval_s / snapshot.host.placement.demand_window_s)
    averages: dict[int, float] = {}
    for cpu in interrupted:
        known, share = before.get(cpu), now.get(cpu)
        if share is None:
            if known is not None:
                averages[cpu] = known
        else:
            falls = known is not None and share < known
            averages[cpu] = average(known, share, rising / INTERRUPTS_FALL if falls else rising)
    return averages


@dataclass(frozen=True, slots=True)
class Confined:
    """All threads of a VM are to stay on ``cpus``."""

    vm: str
    cpus: CpuSet
    reason: str


@dataclass(frozen=True, slots=True)
class Steered:
    """An interrupt is to be delivered to one pCPU."""

    irq: int
    cpu: int
    reason: str


def confine(
    snapshot: Snapshot,
    placement: Placement,
    pinned: Mapping[str, Pinned],
    taken: CpuSet = frozenset(),
    decided: Collection[str] = frozenset(),
) -> tuple[Confined, ...]:
    """Where the VMs go that are not placed: batch VMs as the host's rules say, and any VM within its registered pCPUs.

    ``taken`` are pCPUs of VMs that cannot be read now: a fence stays off them. ``decided``: see ``confine_decided``.
    Sorted by VM name; VMs that may run everywhere are not among them. A VM for which a rule leaves no pCPU floats.
    """
    rules, online = snapshot.host.placement, snapshot.capabilities.online_cpus
    placed = dict(placement.cpus)
    elsewhere = placed.keys() | decided
    free = [vm for vm in snapshot.vms if vm.name not in elsewhere and vm.mode is not Mode.RELEASED and vm.vcpus]
    originals = {vm.name: _originals(pinned.get(vm.name), online) for vm in free}
    allowed = {vm.name: allowed_cpus(vm.spec, originals[vm.name], online) for vm in free}
    batch = [vm for vm in free if not vm.critical and not wants_pins(vm, snapshot)]
    goals: Mapping[str, tuple[CpuSet, str]] = {}
    if rules.batch is BatchPlacement.FENCE:
        fence = _Fence.around(snapshot, placed, taken)
        goals = {vm.name: found for vm in batch if (found := fence.outside(allowed[vm.name])) is not None}
    elif rules.batch is BatchPlacement.SINGLE:
        staying = {vm.name: _single_cpu(pinned.get(vm.name)) for vm in free}
        seats = [Seat(vm.name, allowed[vm.name], staying.pop(vm.name)) for vm in batch]
        blocks = blocks_of(snapshot.capabilities.topology, usable_cpus(snapshot), _services(snapshot, placed, taken))
        others = [cpu for cpu in staying.values() if cpu is not None]
        goals = {vm: (frozenset({cpu}), reason) for vm, (cpu, reason) in seat(seats, others, blocks).items()}
    confined: list[Confined] = []
    for vm in free:
        cpus, reason = goals.get(vm.name, (allowed[vm.name], "within its registered pCPUs"))
        if cpus and cpus < originals[vm.name] & online:
            confined.append(Confined(vm.name, cpus, reason))
    return tuple(confined)


def confine_decided(
    goals: Collection[CpusGoal], snapshot: Snapshot, pinned: Mapping[str, Pinned]
) -> tuple[tuple[Confined, ...], tuple[str, ...]]:
    """Where the VMs go whose pCPUs the policy decides, and what of that cannot be.

    They stay within their registered pCPUs and those another tool restricted them to; where none is left, on all of
    these. As in ``confine``, those that may run everywhere are left out.
    """
    online = snapshot.capabilities.online_cpus
    views = {vm.name: vm for vm in snapshot.vms}
    confined: list[Confined] = []
    problems: list[str] = []
    for goal in goals:
        vm = views[goal.vm]
        if vm.mode is Mode.RELEASED or not vm.vcpus:
            continue
        original = _originals(pinned.get(vm.name), online)
        allowed = allowed_cpus(vm.spec, original, online)
        cpus, reason = allowed & goal.cpus, goal.reason
        if not cpus:
            cpus, reason = allowed, "within its registered pCPUs"
            problems.append(
                f"{vm.name} may run on pCPUs {format_cpus(allowed)}, and the policy wants {format_cpus(goal.cpus)}"
            )
        if cpus and cpus < original & online:
            confined.append(Confined(vm.name, cpus, reason))
    return tuple(confined), tuple(problems)


def _originals(pinned: Pinned | None, online: CpuSet) -> CpuSet:
    """Where a VM's vCPUs may run without us; all pCPUs where that is not known."""
    return online if pinned is None else frozenset[int]().union(*pinned.originals)


@dataclass(frozen=True, slots=True)
class _Fence:
    """pCPUs of placed VMs, ``pinned``, and of VMs that cannot be read, ``taken``; with siblings: ``whole``."""

    pinned: CpuSet
    taken: CpuSet
    whole: CpuSet

    @classmethod
    def around(cls, snapshot: Snapshot, placed: Mapping[str, tuple[int, ...]], taken: CpuSet) -> _Fence:
        """Whole cores where critical vCPUs are: who works on a sibling slows them down."""
        critical = {vm.name for vm in snapshot.vms if vm.critical}
        pinned = frozenset[int]().union(*placed.values())
        serving = taken.union(*(cpus for vm, cpus in placed.items() if vm in critical))
        return cls(pinned, taken, pinned | snapshot.capabilities.topology.whole_cores(serving))

    def outside(self, allowed: CpuSet) -> tuple[CpuSet, str] | None:
        """Where a batch VM may run, and why; None where it may run nowhere else anyway."""
        off = "batch VM: off the pCPUs of critical VMs"
        if cpus := allowed - self.whole:
            siblings = self.whole - self.pinned - self.taken
            return cpus, "batch VM: off the cores of critical VMs" if siblings & allowed else off
        # Those taken may be of a batch VM, too: better on them than nowhere.
        if cpus := allowed - self.pinned - self.taken or allowed - self.pinned:
            siblings = cpus & (self.whole - self.taken)
            return cpus, f"{off}, but not off their siblings: it may use no other core" if siblings else off
        return None


def _services(snapshot: Snapshot, placed: Mapping[str, tuple[int, ...]], taken: CpuSet) -> Mapping[str, CpuSet]:
    """The pCPUs of each application's placed VMs, of each other critical VM's, and of VMs that cannot be read now."""
    services: dict[str, CpuSet] = {}
    for vm in snapshot.vms:
        if vm.critical and vm.name in placed:
            service = vm.application or vm.name
            services[service] = services.get(service, frozenset()).union(placed[vm.name])
    unread = taken.difference(*services.values())
    return {**services, "VMs that cannot be read": unread} if unread else services


def _single_cpu(pinned: Pinned | None) -> int | None:
    """The one pCPU that all vCPUs are on now, None where they are not."""
    cpus = set(pinned.now) if pinned else set()
    return cpus.pop() if len(cpus) == 1 else None


def steer_interrupts(
    snapshot: Snapshot, placement: Placement, taken: CpuSet = frozenset(), decided: Collection[Confined] = ()
) -> tuple[Steered, ...]:
    """Where the queues of network interfaces are to be served, spread evenly in order of their numbers.

    ``serving`` takes the pCPUs of the critical VMs that are placed or that the policy confines (``decided``),
    ``reserved`` the reserved ones; nothing where there are none. Queues that the kernel itself placed are left out.
    ``taken``: see ``confine``.
    """
    rules = snapshot.host.placement
    if rules.irqs is IrqSteering.OFF:
        return ()
    critical = {vm.name for vm in snapshot.vms if vm.critical}
    if rules.irqs is IrqSteering.SERVING:
        homes = (*placement.cpus, *((confined.vm, confined.cpus) for confined in decided))
        cpus = sorted(taken.union(*(pins for name, pins in homes if name in critical)))
        reason = "network interrupt: where the critical VMs run"
    elif rules.irqs is IrqSteering.RESERVED:
        cpus = sorted(rules.reserved_cpus & snapshot.capabilities.online_cpus)
        reason = "network interrupt: on the reserved pCPUs"
    else:
        return ()
    places: defaultdict[str, Iterator[int]] = defaultdict(lambda: cycle(cpus))
    return tuple(
        Steered(queue.irq, cpu, f"{reason} ({queue.interface})")
        for queue in snapshot.capabilities.topology.queues
        if (cpu := next(places[queue.interface], None)) is not None and not queue.managed
    )
