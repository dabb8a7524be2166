"""From a snapshot to a plan: the policy's decision, the batch VMs' floor, placement; with what they remember."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from manager.control.batch import BatchMemory, comes_last, guard_batch
from manager.control.batch_claims import divide_by_claims
from manager.control.batch_membership import plan_batch_group
from manager.control.ceiling_plan import CeilingState, plan_disk_ceilings
from manager.control.deadline_weights import DividedThen
from manager.control.disk_plan import DiskState, plan_disks
from manager.control.limit_decision import limit_decision, limit_groups
from manager.control.memory_plan import MemoryGroups, MemoryState, plan_memory
from manager.control.network_plan import NetworkState, UplinksSeen, plan_network
from manager.control.placer import (
    Confined,
    Pinned,
    PlacerMemory,
    Situation,
    confine,
    confine_decided,
    plan_placement,
    steer_interrupts,
)
from manager.control.power_plan import PowerSeen, plan_power
from manager.control.resolve import Wishes, resolve, validate
from manager.control.resource_decision import resource_decision
from manager.control.scheduling_plan import plan_scheduling
from manager.control.warp_plan import NOTHING_YET, SchedulerSeen, plan_warps
from manager.loop.batch_following import BatchFollowing
from manager.loop.cache_reading import NOTHING_DECIDED, CacheDecided
from manager.loop.journal import Entry, Journal
from manager.loop.reading import Reading
from manager.model.cpus import CpuSet
from manager.model.decision import (
    NOT_MANAGED,
    Decision,
    Explanation,
    Memory,
    Note,
    Placement,
    Plan,
    Snapshot,
)
from manager.model.host import VmState
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import EGRESS, HOST_UUID, MEMORIES, POWERS, Knob, KnobKey, of_family
from manager.model.limits import DEFAULT_LIMITS, AgentLimits
from manager.model.problem import Problem, ProblemKind
from manager.model.records import News, Severity
from manager.model.registration import VmSpec
from manager.model.warp import NO_WARPS
from policies.base import Policy, RememberingPolicy

_DISK_KNOBS = of_family(Family.DISK)
SCHEDULER = KnobKey(HOST_UUID, Knob.SCHEDULER)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PolicyKept:
    """What a policy is to find when the agent starts again on this kernel."""

    policy: str
    kernel: str
    text: str


@dataclass(frozen=True, slots=True)
class Planned:
    """The settings wanted: ``plan`` makes them; None: the policy failed, and everything stays as it is.

    ``follows_from`` is all besides the reading that their values follow from, so that they need not be made when
    nothing of it has changed; their reasons may be others. ``undo_reason`` is that of the plan.
    """

    plan: Callable[[], Plan] | None
    problems: tuple[Problem, ...] = ()
    follows_from: tuple[object, ...] = ()
    undo_reason: str = NOT_MANAGED


@dataclass(frozen=True, slots=True)
class _PinnedThen:
    """Where the VMs were pinned, by name, and all that this follows from: mostly nothing of it changes for long."""

    of: tuple[object, ...]
    pinned: Mapping[str, Pinned]


@dataclass(frozen=True, slots=True)
class _ConfinedThen:
    """Where the VMs without a placement of their own were to go, and all that this follows from."""

    of: tuple[Situation | None, Placement]
    confined: tuple[Confined, ...]


class Planner:
    """Plans a host's intervals one after the other."""

    def __init__(self, policies: Mapping[str, Policy], limits: AgentLimits = DEFAULT_LIMITS) -> None:
        """``policies`` are the installed ones by name, ``limits`` the most that is done whatever they decide."""
        self._policies = policies
        self._remembering = {name: each for name, each in policies.items() if isinstance(each, RememberingPolicy)}
        self._limits = limits
        self._memory: tuple[str, Memory] = ("", None)
        self.kept: PolicyKept | None = None  # what the last decision is to leave behind
        self.batch = BatchMemory()  # this and the warps: as of the last decision
        self.following = BatchFollowing()
        self._divided = DividedThen()
        self.warp = NO_WARPS
        self.cache = NOTHING_DECIDED
        self.explanations: tuple[Explanation, ...] = ()  # of the last decision; none once a policy fails
        self._placer = PlacerMemory()
        self._pinned = _PinnedThen((), {})
        self._confined: _ConfinedThen | None = None
        self._notes: tuple[Note, ...] = ()
        self._outside = ""
        self._ladder = NOTHING_YET
        self._memory_state, self._disk_state, self._network_state = MemoryState(), DiskState(), NetworkState()
        self._ceilings = CeilingState()

    @property
    def notes(self) -> tuple[News, ...]:
        """Notes of policy, warps and jobs at the last decision."""
        notes = [News(Severity.WARNING, "response-times", f"{note.application}: {note.text}") for note in self._notes]
        hints = [News(Severity.WARNING, "warp", self.warp.note), News(Severity.INFO, "batch-group", self._outside)]
        return (*notes, *(hint for hint in hints if hint.text), *self.following.notes)

    def forget_notes(self) -> None:
        """Nothing is decided any more."""
        self._notes, self._outside, self.explanations = (), "", ()
        self.warp, self._ladder = NO_WARPS, NOTHING_YET
        self.cache = NOTHING_DECIDED
        self.batch = BatchMemory()
        self.following.forget()
        self._divided = DividedThen()
        self._memory_state, self._disk_state, self._network_state = MemoryState(), DiskState(), NetworkState()
        self._ceilings = CeilingState()

    def plan(self, snapshot: Snapshot, specs: Mapping[str, VmSpec], reading: Reading, journal: Journal) -> Planned:
        """What is wanted. ``specs`` are the managed VMs by domain UUID."""
        progress = self.following.look(snapshot, specs, reading, journal.jobs)
        decision = self._decide(snapshot, journal)
        if isinstance(decision, Problem):
            self.explanations = ()
            return Planned(None, (decision,))
        self.explanations = decision.explanations
        decision, limited = limit_decision(decision, self._limits)
        decision, self.batch = guard_batch(decision, snapshot, self.batch)
        # Before they divide among themselves. Not below their floor: the weight for that may be the smallest, too.
        last = not self.batch.raised and comes_last(decision, snapshot)
        faring = {vm.vm: vm for vm in progress.vms}
        decision, self._divided = divide_by_claims(decision, snapshot, faring, self._divided)
        self.cache = CacheDecided(decision.ways, decision.bandwidths, decision.on_trial)
        grouped = plan_batch_group(decision, snapshot, last=last)
        self._outside = grouped.note
        allowed, denied = limit_groups(grouped.decision, self._limits)
        pinned = self._pinned_now(reading, specs, journal)
        taken = _taken(reading, journal.entries) if reading.errors else frozenset()
        placing = _placing(snapshot, decision)
        by_policy = frozenset(goal.vm for goal in decision.cpus)
        decided, elsewhere = confine_decided(decision.cpus, snapshot, pinned) if by_policy else ((), ())
        placement, self._placer = plan_placement(placing, pinned, taken, self._placer, by_policy)
        uuids = {spec.name: domain for domain, spec in specs.items()}
        scheduling = plan_scheduling(snapshot, uuids, reading.groups, *_groups_above(reading, journal))
        resources = resource_decision(decision.resources, snapshot.host)
        memory = plan_memory(
            snapshot,
            uuids,
            _memory_groups(reading, journal),
            self._memory_state,
            _set_before(journal, MEMORIES) if self._memory_state.seen is None else {},
            resources,
        )
        disks = plan_disks(
            snapshot,
            uuids,
            reading.disks,
            self._disk_state,
            _set_before(journal, _DISK_KNOBS) if self._disk_state.seen is None else {},
            resources,
        )
        ceilings = plan_disk_ceilings(
            snapshot,
            uuids,
            _disk_ceilings(reading, journal),
            self._ceilings,
            _set_before(journal, _DISK_KNOBS) if self._ceilings.seen is None else {},
            resources,
        )
        network = plan_network(
            snapshot, uuids, _uplinks_seen(reading), self._network_state, _journalled(journal, EGRESS), resources
        )
        self._memory_state, self._disk_state, self._network_state = memory.state, disks.state, network.state
        self._ceilings = ceilings.state
        entry = journal.entries.get(SCHEDULER)
        scheduler = SchedulerSeen(reading.own_knobs.get(SCHEDULER), entry.owned if entry else None)
        self.warp, self._ladder = plan_warps(snapshot, scheduler, self._ladder, decision.warps)
        wishes = Wishes(
            allowed,
            placement,
            self._confine(placing, placement, pinned, taken, by_policy),
            steer_interrupts(snapshot, placement, taken, decided),
            self.warp,
            scheduling.goals,
            grouped,
            decided,
            memory.goals,
            disks.goals + ceilings.goals,
            network.goals,
            plan_power(snapshot, placement, _power_seen(reading, journal)),
        )
        problems = (
            *(Problem(ProblemKind.LIMITED, text) for text in (*limited, *denied)),
            *(Problem(ProblemKind.PLACEMENT, text) for text in elsewhere),
            *(Problem(ProblemKind.PLACEMENT, f"{vm} {reason}") for vm, reason in placement.floating),
            *(Problem(ProblemKind.SCHEDULING, text) for text in scheduling.problems),
            *(Problem(ProblemKind.MEMORY, text) for text in memory.problems),
            *(Problem(ProblemKind.NETWORK, text) for text in network.problems),
            *([Problem(ProblemKind.PLACEMENT, grouped.problem)] if grouped.problem else ()),
            *([Problem(ProblemKind.WARP, self.warp.problem)] if self.warp.problem else ()),
        )
        return Planned(partial(resolve, wishes, snapshot, uuids), problems, self._follows_from(wishes, snapshot))

    def _pinned_now(self, reading: Reading, specs: Mapping[str, VmSpec], journal: Journal) -> Mapping[str, Pinned]:
        """The same object while nothing has changed."""
        runs = [(state.instance, state.memory_nodes) for state in reading.states.values()]
        of = (reading.knobs, specs, journal.revision, runs)
        if self._pinned.of != of:
            pinned = {spec.name: _pinned(reading, domain, journal.entries) for domain, spec in specs.items()}
            self._pinned = _PinnedThen(of, pinned)
        return self._pinned.pinned

    def _confine(
        self,
        snapshot: Snapshot,
        placement: Placement,
        pinned: Mapping[str, Pinned],
        taken: CpuSet,
        by_policy: frozenset[str],
    ) -> tuple[Confined, ...]:
        of = (self._placer.situation, placement)
        if self._confined is None or self._confined.of != of:
            self._confined = _ConfinedThen(of, confine(snapshot, placement, pinned, taken, by_policy))
        return self._confined.confined

    def _follows_from(self, wishes: Wishes, snapshot: Snapshot) -> tuple[object, ...]:
        """All besides the reading that the values of goals follow from, see ``resolve``."""
        return (
            self._placer.situation,
            [(goal.vm, goal.weight) for goal in wishes.decision.weights],
            [(goal.vm, goal.idle) for goal in wishes.decision.idle],
            [(goal.vm, goal.pcpus) for goal in wishes.decision.quotas],
            [(confined.vm, confined.cpus) for confined in wishes.decided],
            [vm.quota_period_us for vm in snapshot.vms],
            wishes.placement,
            wishes.confined,
            wishes.interrupts,
            wishes.warp,
            wishes.scheduling,
            wishes.memory,
            wishes.disks,
            wishes.network,
            wishes.power,
            wishes.grouped and (wishes.grouped.vms, wishes.grouped.goals),
        )

    def _decide(self, snapshot: Snapshot, journal: Journal) -> Decision | Problem:
        name = snapshot.host.policy
        policy = self._policies.get(name)
        if policy is None:
            return _policy_problem(name, "is not installed here")
        try:
            memory = self._memory[1] if self._memory[0] == name else self._recalled(name, snapshot, journal)
            decision = policy.decide(snapshot, memory)
            kept = self._remembering[name].keep(decision.memory) if name in self._remembering else ""
        except Exception as error:  # noqa: BLE001 - a third party's policy may raise anything; it must not stop the loop
            return _policy_problem(name, f"failed: {type(error).__name__}: {error}")
        objection = validate(decision, snapshot)
        if objection:
            return _policy_problem(name, objection)
        self._memory = (name, decision.memory)
        self.kept = PolicyKept(name, snapshot.capabilities.kernel, kept) if kept else None
        self._notes = decision.notes
        return decision

    def _recalled(self, name: str, snapshot: Snapshot, journal: Journal) -> Memory:
        """What it kept when it last decided on this kernel; None where that is nothing, or cannot be understood."""
        kernel, text = journal.policy_memories.get(name, ("", ""))
        if not text or kernel != snapshot.capabilities.kernel or name not in self._remembering:
            return None
        try:
            return self._remembering[name].recall(text, snapshot.steady_s)
        except Exception as error:  # noqa: BLE001 - a third party's may raise anything; it can begin anew
            log.warning("policy %r begins anew: what it kept is not understood: %s", name, error)
            return None


def _placing(snapshot: Snapshot, decision: Decision) -> Snapshot:
    """The host as it is placed: a policy may say that its critical VMs float, or do not."""
    if decision.pinning is None or decision.pinning is snapshot.host.pinning:
        return snapshot
    return replace(snapshot, host=replace(snapshot.host, pinning=decision.pinning))


def _policy_problem(name: str, why: str) -> Problem:
    return Problem(ProblemKind.POLICY, f"policy {name!r} {why}; everything stays as it is")


def _taken(reading: Reading, journal: Mapping[KnobKey, Entry]) -> CpuSet:
    """pCPUs of their own of VMs that cannot be read now: they keep them."""
    taken: set[int] = set()
    for key, entry in journal.items():
        pinned = entry.owned.intended
        unread = key.knob is Knob.VCPU_PIN and key.uuid in reading.errors
        if unread and isinstance(pinned, frozenset) and len(pinned) == 1:
            taken |= pinned
    return frozenset(taken)


def _groups_above(reading: Reading, journal: Journal) -> tuple[dict[KnobKey, int], dict[KnobKey, int]]:
    """What each limit of the host's groups has without us, and from us while VMs with a part of it were not read."""
    least_us: dict[KnobKey, int] = {}
    kept_us: dict[KnobKey, int] = {}
    entries = journal.entries if Knob.RT_RUNTIME in journal.runs.knobs else {}  # mostly not, and there are many
    limits = {key: entry.owned for key, entry in entries.items() if key.knob is Knob.RT_RUNTIME}
    unread = any(key.uuid != HOST_UUID and key.uuid not in reading.states for key in limits)
    for key, held in reading.own_knobs.items():
        if key.knob is not Knob.RT_RUNTIME or not isinstance(held, int):
            continue
        owned = limits.get(key)
        original, intended = (held, 0) if owned is None or owned.external else (owned.original, owned.intended)
        if isinstance(original, int) and isinstance(intended, int):
            least_us[key] = original
            if unread and intended:
                kept_us[key] = intended
    return least_us, kept_us


def _set_before(journal: Journal, knobs: frozenset[Knob]) -> Mapping[KnobKey, int]:
    """What an agent before this one set of these."""
    if not journal.runs.knobs & knobs:
        return {}
    return {
        key: entry.owned.intended
        for key, entry in journal.entries.items()
        if key.knob in knobs and isinstance(entry.owned.intended, int) and entry.owned.differs
    }


def _journalled(journal: Journal, knobs: frozenset[Knob]) -> Mapping[KnobKey, int]:
    """What these were last given, or were found to be after another tool changed them."""
    if not journal.runs.knobs & knobs:
        return {}
    return {
        key: entry.owned.intended
        for key, entry in journal.entries.items()
        if key.knob in knobs and isinstance(entry.owned.intended, int)
    }


def _uplinks_seen(reading: Reading) -> UplinksSeen:
    of_vms = {key: value for apart in reading.apart.values() for key, value in apart.items() if key.knob in EGRESS}
    keys = frozenset((*of_vms, *(key for key in reading.own_knobs if key.knob in EGRESS)))
    limits, turns = (
        {key: value for key, value in of_vms.items() if key.knob is knob and isinstance(value, int)}
        for knob in (Knob.TAP_LIMIT, Knob.EGRESS_TURN)
    )
    return UplinksSeen(reading.monotonic_s, reading.uplinks, keys, limits, turns)


def _memory_groups(reading: Reading, journal: Journal) -> MemoryGroups:
    """What limits and protects memory, as read, and what it is without us."""
    if not reading.memories and not journal.runs.knobs & MEMORIES:
        return MemoryGroups()
    owned = {key: entry.owned for key, entry in journal.entries.items() if key.knob in MEMORIES}
    unread = any(key.uuid != HOST_UUID and key.uuid not in reading.states for key in owned)
    of_vms = (
        (key, reading.knobs[uuid][key]) for uuid, keys in reading.memories.items() for key in keys if key.uuid == uuid
    )
    originals: dict[KnobKey, int] = {}
    kept: dict[KnobKey, int] = {}
    for key, held in (*of_vms, *reading.own_knobs.items()):
        if key.knob in MEMORIES and isinstance(held, int):
            ours = owned.get(key)
            original = held if ours is None or ours.external else ours.original
            originals[key] = original if isinstance(original, int) else held
            if unread and key.uuid == HOST_UUID and ours is not None and isinstance(ours.intended, int):
                kept[key] = ours.intended
    return MemoryGroups(reading.memories, originals, kept)


def _disk_ceilings(reading: Reading, journal: Journal) -> Mapping[KnobKey, int]:
    """Ceilings that VMs have on disks, as read, without us."""
    found: dict[KnobKey, int] = {}
    for uuid, keys in reading.disks.items():
        for key in keys:
            held = reading.knobs[uuid][key]
            if key.knob is Knob.DISK_CEILING and isinstance(held, int):
                entry = journal.entries.get(key)
                ours = entry.owned if entry is not None else None
                original = held if ours is None or ours.external else ours.original
                found[key] = original if isinstance(original, int) else held
    return found


def _power_seen(reading: Reading, journal: Journal) -> PowerSeen:
    """What pCPUs have without us, and what those keep that VMs are pinned to which were not read now."""
    entries, held = journal.entries, {key: value for key, value in reading.own_knobs.items() if key.knob in POWERS}
    originals: dict[KnobKey, int] = {}
    for key, value in held.items():
        owned = entries[key].owned if key in entries else None
        original = value if owned is None or owned.external else owned.original
        if isinstance(original, int):
            originals[key] = original
    if not journal.runs.knobs & POWERS:
        return PowerSeen(originals, reading.clocks)
    unread: set[int] = set()
    for key, entry in entries.items():
        pinned = entry.owned.intended
        if key.knob is Knob.VCPU_PIN and key.uuid not in reading.states and isinstance(pinned, frozenset):
            unread |= pinned if len(pinned) == 1 else frozenset()
    kept = {KnobKey(HOST_UUID, Knob.RESUME_LATENCY, cpu) for cpu in unread}
    kept |= {
        KnobKey(HOST_UUID, Knob.GOVERNOR, number) for number, clock in reading.clocks.items() if clock.cpus & unread
    }
    return PowerSeen(
        originals, reading.clocks, {key: value for key, value in _journalled(journal, POWERS).items() if key in kept}
    )


def _pinned(reading: Reading, domain: str, journal: Mapping[KnobKey, Entry]) -> Pinned:
    """Where the vCPUs of a VM are pinned now, or were to be when that failed, and where they ran before we came."""
    state = reading.states[domain]
    now: list[int] = []
    originals: list[CpuSet] = []
    for key, cpus in reading.knobs[domain].items():
        if key.knob is not Knob.VCPU_PIN or isinstance(cpus, int):
            continue
        pinned: KnobValue = cpus
        original: KnobValue = cpus
        entry = journal.get(key)
        if entry and entry.instance == state.instance and not entry.owned.external:
            original = entry.owned.original
            pinned = entry.owned.intended if len(cpus) != 1 else pinned
        elif not entry:
            original = _inherited_original(state, cpus, journal)
        if not isinstance(pinned, int) and len(pinned) == 1 and len(now) == len(originals):
            now += pinned
        originals.append(original if isinstance(original, frozenset) else cpus)
    return Pinned(tuple(now), tuple(originals), state.memory_nodes)


def _inherited_original(state: VmState, cpus: CpuSet, journal: Mapping[KnobKey, Entry]) -> KnobValue:
    """Where a vCPU that was plugged after its VM was pinned would run without us, see control.diff."""
    emulator = journal.get(KnobKey(state.instance.uuid, Knob.EMULATOR_PIN))
    if emulator and emulator.instance == state.instance and cpus in emulator.owned.may_be:
        return emulator.owned.original
    return cpus
