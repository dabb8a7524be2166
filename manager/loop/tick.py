"""One tick, with everything it needs injected: observe, plan, apply, divide the cache, and report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import is_

from manager.control.batch import BatchMemory
from manager.control.diff import HostValues, diff
from manager.control.hold import HOLD_KNOBS, held, hold_ways
from manager.errors import HostError, JournalError, VmVanished
from manager.host.port import HostPort
from manager.loop.apply import SILENT, Applied, Outcome, Target, apply, values_after
from manager.loop.cache_keeper import CacheKeeper
from manager.loop.cache_reading import NOTHING, CacheResult, cache_seen
from manager.loop.chronicle import Chronicle
from manager.loop.journal import Journal
from manager.loop.observer import Clock, LoopSettings, Observation, Observer, system_clock
from manager.loop.planner import Planned, Planner
from manager.loop.reading import Reading, read_host
from manager.loop.rehearsal import Preview, rehearse
from manager.loop.resource_keeper import ResourceKeeper
from manager.model.cpus import CpuSet
from manager.model.decision import Action, Change, Explanation, Goal, Owned, Plan, Snapshot
from manager.model.energy import EnergyPart, HostPower
from manager.model.host import VmInstance
from manager.model.job import BatchVm
from manager.model.knob_spec import Family, KnobValue
from manager.model.knobs import HOST_UUID, Knob, KnobKey, of_family
from manager.model.limits import DEFAULT_LIMITS, AgentLimits
from manager.model.problem import Problem, ProblemKind
from manager.model.records import DecisionRecord, Event, News, OutcomeKind, Severity
from manager.model.registration import Assignment, Mode, VmSpec
from manager.model.resource_use import ResourceUse
from manager.model.warp import NO_WARPS, Mechanism, WarpPlan
from manager.model.window import SlaState, Window
from policies.base import Policy

_LookedAt = tuple[Mapping[str, VmInstance], Mapping[str, Collection[int]], Mapping[str, Collection[int]]]
"""By name of managed VMs: those that run, their taps, and the pCPUs that critical ones are pinned to."""
_HOST_RELEASED = "host released"
_OF_CPU_GROUPS = of_family(Family.CPU_GROUP)
_CALM = frozenset({SlaState.MET, SlaState.NO_DATA})
_REPLUGGED_TICKS = 3
"""For so many ticks after pCPUs went offline or came back the kernel may have undone pins."""


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick saw and did; see ``Observation``. ``written`` is what it wrote, by domain UUID."""

    number: int
    at_s: float
    duration_s: float
    snapshot: Snapshot
    reading: Reading
    specs: Mapping[str, VmSpec]
    busy: float | None
    outcomes: tuple[Outcome, ...]
    records: tuple[DecisionRecord, ...]
    events: tuple[Event, ...]
    problems: tuple[Problem, ...]
    written: Mapping[str, Mapping[KnobKey, KnobValue]]
    batch: BatchMemory
    batch_vms: tuple[BatchVm, ...] = ()
    warp: WarpPlan = NO_WARPS
    warp_counters: Mapping[str, int] = field(default_factory=dict)
    cache: CacheResult = NOTHING
    busy_pcpus: Mapping[int, float] = field(default_factory=dict)
    explanations: tuple[Explanation, ...] = ()
    kept_resources: ResourceUse | None = None
    """What of ``snapshot.resources`` is worth a record; None: there was no round of readings yet."""
    new_resources: bool = False
    """Whether one ended since the tick before."""
    power: HostPower | None = None
    """Of the host in the last round; None: not known."""
    energy_j: Mapping[EnergyPart, float] = field(default_factory=dict)
    """What the host used since the agent started, as far as it was counted."""

    def knobs(self, domain: str) -> Mapping[KnobKey, KnobValue]:
        """The knobs of a managed VM as read, with what this tick wrote since."""
        values = self.reading.knobs[domain]
        written = self.written.get(domain, {})
        return {key: written.get(key, value) for key, value in values.items()} if written else values


class ControlLoop:
    """Runs ticks over a host, and between them holds batch VMs. Not thread-safe: nothing of it may overlap."""

    def __init__(
        self,
        host: HostPort,
        journal: Journal,
        policies: Mapping[str, Policy],
        settings: LoopSettings,
        clock: Callable[[], Clock] = system_clock,
        limits: AgentLimits = DEFAULT_LIMITS,
    ) -> None:
        """``policies`` are the installed ones by name, ``limits`` the most that is done whatever is assigned."""
        self.host = host
        self.journal = journal
        self.settings = settings
        self._observer = Observer(host, journal, settings, limits)
        self._planner = Planner(policies, limits)
        self._cache = CacheKeeper(host.cache, journal, lambda: clock().monotonic_s)
        self._resources = ResourceKeeper(host.resources, settings.interval_s)
        self._rounds = 0  # of its readings that ticks have seen
        self.clock = clock
        self._chronicle = Chronicle(settings.host_name)
        self.number = 0  # of the last tick
        self._nothing_to_do_for: tuple[object, ...] | None = None
        self._online: tuple[CpuSet, int] | None = None  # the pCPUs, and how often any went or came
        self._replugged = 0  # ticks that it still counts for
        self._planned: tuple[Observation, Callable[[], Plan]] | None = None  # the last plan, without what is held
        self._were_read: tuple[Sequence[VmInstance], frozenset[VmInstance]] = [], frozenset()
        self._looked_at_for: tuple[object, ...] = (None,) * 4
        self._looked_at_then: _LookedAt = {}, {}, {}
        self._ways: tuple[tuple[Goal, ...], ...] | None = None
        self._way: int | None = None

    @property
    def limits(self) -> AgentLimits:
        """The most that is done whatever is assigned."""
        return self._observer.limits

    def tick(self, assignment: Assignment | None, slots: Mapping[str, Sequence[Window]]) -> TickResult:
        """Observe, plan, apply. ``slots`` are the recent slots of response times by application.

        ``assignment`` None, or a released host, restores everything.
        """
        started, problems = self._begin()
        seen = self._observer.observe(assignment, slots, started, self._resources.latest)
        planned = self._with_hold(seen, self._plan(seen))
        problems = (*problems, *planned.problems, *self._keep())
        return self._carry_out(started, seen, replace(planned, problems=problems))

    def release(self, reason: str, vm: str | None = None) -> TickResult:
        """Restore everything that still is as we left it, or only what was changed of the VM with that name."""
        self._way = self._planned = None
        started, problems = self._begin()
        seen = self._observer.observe(None, {}, started)
        return self._carry_out(started, seen, replace(self._released(reason), problems=problems), only=vm)

    def preview(self, assignment: Assignment, slots: Mapping[str, Sequence[Window]]) -> Preview:
        """What a tick would change now. Nothing is written but to the journal, a copy, for an instant.

        What was seen counts as the interval before.
        """
        seen = self._observer.observe(assignment, slots, self.clock())
        self._look(seen.reading, seen.specs, seen.snapshot, whole=True)
        seen = replace(seen, snapshot=replace(seen.snapshot, resources=self._resources.latest))
        planned = self._plan(seen)
        changes: tuple[Change, ...] = ()
        if planned.plan is not None:
            targets = self._targets(seen)
            changes = self._differences(planned.plan(), seen, targets, _values(seen), self._ledger(targets, None))
        cache = NOTHING
        if self._cache.concerns(seen.snapshot.host):
            written = values_after(change for change in changes if change.action in {Action.WRITE, Action.RESTORE})
            cache = rehearse(
                self.host.cache, self.journal, cache_seen(seen, written, _HOST_RELEASED, decided=self._planner.cache)
            )
        notes = tuple(note.text for note in self._planner.notes)
        shown = tuple(change for change in changes if change.action not in SILENT)
        problems = (*seen.problems, *planned.problems, *cache.problems)
        return Preview(shown, seen.names, problems, (*notes, *cache.notes), cache)

    @property
    def watched(self) -> tuple[tuple[VmInstance, str], ...]:
        """The runs of critical VMs as of the last tick, with their names; none on a released host."""
        if self._planned is None:
            return ()
        seen, _ = self._planned
        critical = {vm.name for vm in seen.snapshot.vms if vm.critical and vm.mode is not Mode.RELEASED}
        return tuple(
            (seen.reading.states[domain].instance, spec.name)
            for domain, spec in seen.specs.items()
            if spec.name in critical
        )

    @property
    def batch_has_floor(self) -> bool:
        """Whether batch VMs got their floor, as of the last tick."""
        return not self._planner.batch.raised

    @property
    def ways(self) -> tuple[tuple[Goal, ...], ...]:
        """How batch VMs can be held, as of the last tick; see ``hold_ways``."""
        if self._ways is None:
            self._ways = self._find_ways()
        return self._ways

    def _find_ways(self) -> tuple[tuple[Goal, ...], ...]:
        if self._planned is None:
            return ()
        seen, plan = self._planned
        ours = self._ledger(self._targets(seen), None)
        found = {key: value for key, value in _values(seen).items() if key.knob in HOLD_KNOBS}
        originals = {key: owned.original for key, owned in ours.items() if key in found and not owned.external}
        planned = {goal.key: goal.value for goal in plan().goals if goal.key in found and goal.mode is Mode.ENFORCE}
        uuids = {spec.name: domain for domain, spec in seen.specs.items()}
        return hold_ways(seen.snapshot, uuids, found | originals | planned, self.limits)

    def _with_hold(self, seen: Observation, planned: Planned) -> Planned:
        """Besides what is wanted, what the guard holds."""
        plan = planned.plan
        if plan is None:
            return planned
        self._planned, self._ways = (seen, plan), None
        goals = self._held_goals()
        if not goals:
            return planned
        return replace(planned, plan=lambda: held(plan(), goals), follows_from=(*planned.follows_from, goals))

    def _held_goals(self) -> tuple[Goal, ...]:
        if self._way is None or self._way >= len(self.ways):
            return ()
        return tuple(goal for goal in self.ways[self._way] if goal.mode is Mode.ENFORCE)

    def hold(self, way: int | None) -> Applied:
        """Hold batch VMs that way from now on, in the ticks that follow, too; None: let go of them.

        Only what concerns their CPU groups is looked at and written, and nothing that another tool changed: that is
        for the next tick to tell.
        """
        concerned = {goal.key.uuid for goal in self._held_goals()}
        self._way = way
        concerned |= {goal.key.uuid for goal in self._held_goals()}
        if self._planned is None or not concerned:
            return Applied()
        seen, make = self._planned
        plan = make()
        instances = {uuid: seen.reading.states[uuid].instance for uuid in concerned}
        now = replace(seen, reading=read_host(self.host, instances, self.clock().monotonic_s))
        goals = (goal for goal in held(plan, self._held_goals()).goals if _is_held(goal.key, now))
        targets = self._targets(now)
        values = {key: value for key, value in _values(now).items() if _is_held(key, now)}
        ledger = {key: owned for key, owned in self._ledger(targets, None).items() if _is_held(key, now)}
        changes = self._differences(replace(plan, goals=tuple(goals)), now, targets, values, ledger)
        meddled = {change.key.uuid for change in changes if change.action is Action.LEAVE}
        changes = tuple(change for change in changes if change.key.uuid not in meddled)
        return apply(changes, targets, self.host, self.journal, self.limits)

    def _begin(self) -> tuple[Clock, tuple[Problem, ...]]:
        """Forget knobs of processes that ended: the settings ended with them."""
        started = self.clock()
        self.number += 1
        try:
            if ended := self.host.ended(self.journal.runs.instances):
                self.journal.update({}, [key for key, entry in self.journal.entries.items() if entry.instance in ended])
        except JournalError as error:
            return started, (Problem(ProblemKind.JOURNAL, str(error)),)
        return started, ()

    def _keep(self) -> tuple[Problem, ...]:
        """Before anything is written: a trial that kills the agent, or its host, is known of when it starts again."""
        kept, problems = self._planner.kept, self._keep_jobs()
        if problems or kept is None:
            return problems
        try:
            self.journal.note_policy_memory(kept.policy, kept.kernel, kept.text)
        except JournalError as error:
            return (Problem(ProblemKind.JOURNAL, f"policy {kept.policy!r} forgets when the agent ends: {error}"),)
        return ()

    def _keep_jobs(self) -> tuple[Problem, ...]:
        jobs = self._planner.following.jobs
        try:
            if jobs is not None:
                self.journal.note_jobs(jobs)
        except JournalError as error:
            return (Problem(ProblemKind.JOURNAL, f"the work of batch VMs counts anew when the agent ends: {error}"),)
        return ()

    def _plan(self, seen: Observation) -> Planned:
        if seen.snapshot.host.mode is Mode.RELEASED:
            return self._released(_HOST_RELEASED)
        snapshot = self._cache.in_snapshot(seen.snapshot)
        return self._planner.plan(snapshot, seen.specs, seen.reading, self.journal)

    def _released(self, reason: str) -> Planned:
        """Nothing is wanted: what is owned is restored."""
        self._planner.forget_notes()
        return Planned(lambda: Plan(undo_reason=reason), undo_reason=reason)

    def _carry_out(self, started: Clock, seen: Observation, planned: Planned, *, only: str | None = None) -> TickResult:
        """Apply a plan, divide the cache, and say what came of it. ``only``: nothing but that VM is touched."""
        self._note_online(seen.snapshot.capabilities.online_cpus)
        applied = self._apply(planned, seen, only)
        cache = NOTHING
        if self._cache.concerns(seen.snapshot.host):
            undo_reason = planned.undo_reason if planned.plan else _HOST_RELEASED
            cache = self._cache.tick(cache_seen(seen, applied.written, undo_reason, only, self._planner.cache))
        counters, uncounted = self._counters()
        new_resources, self._rounds = self._resources.rounds != self._rounds, self._resources.rounds
        self.host.forget(self._read_now(seen.reading))
        problems = (*seen.problems, *planned.problems, *applied.problems, *cache.problems, *uncounted)
        outcomes = (*applied.outcomes, *cache.outcomes)
        return TickResult(
            number=self.number,
            at_s=started.epoch_s,
            duration_s=self.clock().monotonic_s - started.monotonic_s,
            snapshot=seen.snapshot,
            reading=seen.reading,
            specs=seen.specs,
            busy=seen.busy,
            outcomes=applied.outcomes,
            records=self._chronicle.records(outcomes, seen.names, seen.snapshot.host.policy, started.epoch_s),
            events=self._events(seen, outcomes, cache.notes, problems, started.epoch_s),
            problems=problems,
            written=applied.written,
            batch=self._planner.batch,
            batch_vms=self._planner.following.progress.vms,
            warp=self._planner.warp,
            warp_counters=counters,
            cache=cache,
            busy_pcpus=seen.busy_pcpus,
            explanations=self._planner.explanations,
            kept_resources=self._resources.kept,
            new_resources=new_resources,
            power=self._resources.power,
            energy_j=dict(self._resources.energy_j),
        )

    def _read_now(self, reading: Reading) -> frozenset[VmInstance]:
        """The same object while the same runs are read."""
        instances = [state.instance for state in reading.states.values()]
        if self._were_read[0] != instances:
            self._were_read = instances, frozenset(instances)
        return self._were_read[1]

    def look_at_resources(self, result: TickResult) -> None:
        """Read what managed VMs use besides CPU time, after a tick, as far as it is their turn."""
        self._look(result.reading, result.specs, result.snapshot)

    def _look(self, reading: Reading, specs: Mapping[str, VmSpec], snapshot: Snapshot, whole: bool = False) -> None:
        instances, taps, pins = self._looked_at(reading, specs, snapshot)
        decides = snapshot.host.memory.in_use or snapshot.host.disk.in_use
        calm = not decides and all(view.sla_state in _CALM for view in snapshot.applications)
        self._resources.look(instances, taps, pins.keys(), whole, pins, calm)

    def _looked_at(self, reading: Reading, specs: Mapping[str, VmSpec], snapshot: Snapshot) -> _LookedAt:
        """The same objects while nothing has changed that they follow from."""
        taps_of, states = self.host.taps(), reading.states
        of = specs, self._read_now(reading), taps_of, reading.knobs
        if not all(map(is_, of, self._looked_at_for)):
            self._looked_at_for = of
            self._looked_at_then = (
                {spec.name: states[domain].instance for domain, spec in specs.items()},
                {spec.name: taps_of.get(domain, frozenset()) for domain, spec in specs.items()},
                {view.name: view.pinned for view in snapshot.vms if view.critical},
            )
        return self._looked_at_then

    def _note_online(self, cpus: CpuSet) -> None:
        online = cpus, self.host.replugs
        changed = self._online is not None and self._online != online
        self._online, self._replugged = online, _REPLUGGED_TICKS if changed else max(self._replugged - 1, 0)

    def _apply(self, planned: Planned, seen: Observation, only: str | None) -> Applied:
        if planned.plan is None:
            return Applied()
        inputs = self._inputs(planned, seen, only)
        if inputs == self._nothing_to_do_for:
            return Applied()
        targets, values = self._targets(seen), _values(seen)
        ledger = self._ledger(targets, only)
        changes = self._differences(planned.plan(), seen, targets, values, ledger)
        self._nothing_to_do_for = None if changes else inputs
        # Seen as we left it; what could not be read now may be as it was before.
        unsettled = {key for key, owned in ledger.items() if not owned.settled}
        untouched = (unsettled & values.keys()) - {change.key for change in changes}
        applied = apply(changes, targets, self.host, self.journal, self.limits)
        self.journal.settle(untouched)
        return replace(applied, problems=(*applied.problems, *self._follow_moves(applied, seen)))

    def _follow_moves(self, applied: Applied, seen: Observation) -> tuple[Problem, ...]:
        """What a VM used in the batch group counts on, where the kernel's count of that went with the group."""
        following, noted = self._planner.following, self.journal.jobs
        left = [outcome.key.uuid for outcome in applied.outcomes if _left_the_group(outcome)]
        problems: list[Problem] = []
        for domain, vm in ((domain, seen.names.get(domain) or "") for domain in left):
            if not following.has_job(vm, noted) or domain not in seen.reading.counters:
                continue
            try:
                now_ns = self.host.read(seen.reading.states[domain].instance).cpu_ns
            except VmVanished:
                continue
            except HostError as error:
                text = f"{vm}: its work in the batch group may not count: {error}"
                problems.append(Problem(ProblemKind.READ, text))
                continue
            following.lost(vm, max(seen.reading.counters[domain].cpu_ns - now_ns, 0) / 1e9)
        return (*problems, *self._keep_jobs()) if left else ()

    def _inputs(self, planned: Planned, seen: Observation, only: str | None) -> tuple[object, ...]:
        """All that the changes follow from: mostly that of the tick before, for which there was nothing to do."""
        reading, capabilities = seen.reading, seen.snapshot.capabilities
        return (
            self.journal.revision,
            reading.knobs,
            reading.own_knobs,
            HOST_UUID in reading.errors,
            reading.batch_group,
            [state.instance for state in reading.states.values()],
            capabilities.online_cpus,
            capabilities.weights,
            seen.snapshot.host,
            seen.specs,
            only,
            planned.undo_reason,
            planned.follows_from,
        )

    def _targets(self, seen: Observation) -> dict[str, Target]:
        adoptions = {vm.name: vm.spec.adoptions for vm in seen.snapshot.vms}
        targets = {HOST_UUID: Target(self.host.itself, "", seen.snapshot.host.adoptions)}
        for domain, state in seen.reading.states.items():
            name = seen.names[domain] or ""
            targets[domain] = Target(state.instance, name, adoptions.get(name, 0))
        return targets

    def _differences(
        self,
        plan: Plan,
        seen: Observation,
        targets: Mapping[str, Target],
        values: Mapping[KnobKey, KnobValue],
        ledger: Mapping[KnobKey, Owned],
    ) -> tuple[Change, ...]:
        scale = seen.snapshot.capabilities.weights
        adoptions = {domain: target.adoptions for domain, target in targets.items()}
        scopes = {domain for domain, state in seen.reading.states.items() if state.in_scope}
        group = seen.reading.batch_group
        if group is not None and group.of_systemd:
            scopes.add(HOST_UUID)
        default, online = scale.default if scale else None, seen.snapshot.capabilities.online_cpus
        gone = group is not None and not group.exists
        own_read = HOST_UUID not in seen.reading.errors
        unread = [key.index for key in ledger if key.knob is Knob.IRQ_AFFINITY and key not in values]
        lost = self.host.lost_interrupts(unread) if unread else ()
        found = HostValues(values, online, default, adoptions, scopes, self._replugged > 0, gone, own_read, lost)
        return diff(plan, found, ledger)

    def _ledger(self, targets: Mapping[str, Target], only: str | None) -> dict[KnobKey, Owned]:
        return {
            key: entry.owned
            for key, entry in self.journal.entries.items()
            if key.uuid in targets
            and entry.instance == targets[key.uuid].instance
            and (only is None or entry.vm == only)
        }

    def _counters(self) -> tuple[Mapping[str, int], tuple[Problem, ...]]:
        """What our scheduler counted, nothing while it does not decide."""
        if self._planner.warp.mechanism is not Mechanism.SCHED_EXT:
            return {}, ()
        try:
            return self.host.warp_counters(), ()
        except HostError as error:
            return {}, (Problem(ProblemKind.WARP, f"the counters of our scheduler: {error}"),)

    def _events(
        self,
        seen: Observation,
        outcomes: tuple[Outcome, ...],
        cache_notes: tuple[str, ...],
        problems: tuple[Problem, ...],
        now_s: float,
    ) -> tuple[Event, ...]:
        managed = {domain: spec.name for domain, spec in seen.specs.items()}
        notes = [*self._planner.notes, *(News(Severity.WARNING, "cache", text) for text in cache_notes)]
        return (
            *self._chronicle.comings_and_goings(managed, seen.reading.errors, now_s),
            *self._chronicle.external_changes(outcomes, seen.names, now_s),
            *self._chronicle.lasting(problems, notes, now_s),
        )


def _values(seen: Observation) -> dict[KnobKey, KnobValue]:
    values = dict(seen.reading.own_knobs)
    for knobs in seen.reading.knobs.values():
        values |= knobs
    return values


def _is_held(key: KnobKey, seen: Observation) -> bool:
    """Whether it is a setting of the CPU group of a VM that could be read."""
    return key.knob in _OF_CPU_GROUPS and key.uuid in seen.reading.states


def _left_the_group(outcome: Outcome) -> bool:
    return outcome.key.knob is Knob.BATCH_GROUP and outcome.kind is OutcomeKind.RESTORED
