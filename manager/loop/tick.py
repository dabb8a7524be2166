"""One control interval, with everything it needs injected."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from manager.clocks import Drift
from manager.control.batch import BatchMemory
from manager.control.diff import Found, diff
from manager.control.warp_plan import warped_vms
from manager.errors import HostError, JournalError
from manager.host.port import HostPort
from manager.loop.apply import SILENT, Applied, Outcome, Target, apply, written_values
from manager.loop.cache_found import NOTHING, CacheResult, cache_seen
from manager.loop.cache_keeper import CacheKeeper
from manager.loop.chronicle import Chronicle
from manager.loop.collect import HostUse, Reading, build_snapshot, host_use, match, read_host
from manager.loop.journal import Journal
from manager.loop.limiter import LIMITED, Limiter
from manager.loop.planner import Planner, Trouble
from manager.loop.rehearsal import Preview, rehearse, written_by
from manager.model.decision import Change, Owned, Plan, Snapshot
from manager.model.host import VmInstance
from manager.model.knobs import HOST_UUID, Family, KnobKey, KnobValue
from manager.model.limits import DEFAULT_LIMITS, AgentLimits
from manager.model.records import DecisionRecord, Event, Severity
from manager.model.registration import Assignment, Mode, VmSpec
from manager.model.rules import IrqSteering
from manager.model.warp import NO_WARPS, Mechanism, WarpPlan, WarpUse
from manager.model.window import Window
from policies.base import Policy

_MINOR = frozenset({"placement", "scheduling", "cache", LIMITED})
"""Kinds of trouble that keep nothing else from being done."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The two times of a tick: seconds since the epoch, and a monotonic one for rates."""

    epoch_s: float
    monotonic_s: float


def system_clock() -> Clock:
    """The time now."""
    return Clock(time.time(), time.monotonic())


@dataclass(frozen=True, slots=True)
class LoopSettings:
    """Bounds of the loop: see the settings of the same names."""

    host_name: str
    interval_s: float
    stale_s: float
    min_samples: int


@dataclass(frozen=True, slots=True)
class TickResult:
    """What one tick saw and did. ``specs`` are the managed VMs, ``written`` what it wrote, by domain UUID."""

    number: int
    at_s: float
    duration_s: float
    snapshot: Snapshot
    reading: Reading
    specs: Mapping[str, VmSpec]
    use: HostUse
    outcomes: tuple[Outcome, ...]
    records: tuple[DecisionRecord, ...]
    events: tuple[Event, ...]
    troubles: tuple[Trouble, ...]
    written: Mapping[str, Mapping[KnobKey, KnobValue]]
    batch: BatchMemory
    warp: WarpPlan = NO_WARPS
    warp_counters: Mapping[str, int] = field(default_factory=dict)
    cache: CacheResult = NOTHING

    def knobs(self, domain: str) -> Mapping[KnobKey, KnobValue]:
        """The knobs of a managed VM as read, with what this tick wrote since."""
        found = self.reading.knobs[domain]
        written = self.written.get(domain, {})
        return {key: written.get(key, value) for key, value in found.items()} if written else found


@dataclass(frozen=True, slots=True)
class _Seen:
    snapshot: Snapshot
    reading: Reading
    specs: Mapping[str, VmSpec]
    names: Mapping[str, str | None]


class ControlLoop:
    """Runs ticks over a host. Not thread-safe: ticks never overlap."""

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
        self._limiter = Limiter(settings.host_name, limits)
        self._host = host
        self._journal = journal
        self._planner = Planner(policies)
        self._cache = CacheKeeper(host.cache, journal, lambda: clock().monotonic_s)
        self._settings = settings
        self.clock = clock
        self._chronicle = Chronicle(settings.host_name)
        self._drift = Drift()
        self._before: Reading | None = None
        self.number = 0  # of the last tick
        self._only: str | None = None
        self._nothing_to_do_for: tuple[object, ...] | None = None
        self._warps_of: tuple[Assignment | None, frozenset[str]] = None, frozenset()

    def tick(
        self, assignment: Assignment | None, slots: Mapping[str, Sequence[Window]], undo_reason: str = "host released"
    ) -> TickResult:
        """Collect, decide, resolve, diff, apply. ``slots`` are the recent slots of response times by application.

        ``assignment`` None, or a released host, undoes everything, with ``undo_reason`` in the records.
        """
        started = self.clock()
        self.number += 1
        troubles: list[Trouble] = []
        self._drop_ended(troubles)
        running = self._running()  # what is put back leaves the journal
        seen = self._look(assignment, slots, started, troubles)
        plan = self._plan(seen, undo_reason, troubles)
        applied = Applied(()) if plan is None else self._apply(plan, seen)
        if applied.journal_error:
            troubles.append(Trouble("journal", applied.journal_error))
        written = written_values(applied.outcomes)
        cache = NOTHING
        if self._cache.concerns(seen.snapshot.host):
            known = (seen.snapshot, seen.reading, running, seen.specs, seen.names, written)
            cache = self._cache.tick(cache_seen(*known, undo_reason, self._only), troubles)
        counters = self._counters(troubles)
        managed = min(sum(vm.cpu_share for vm in seen.snapshot.vms), 1.0)
        use = host_use(seen.reading, self._before, managed)
        self._before = seen.reading
        self._host.forget(frozenset(state.instance for state in seen.reading.states.values()))
        policy = seen.snapshot.host.policy
        return TickResult(
            number=self.number,
            at_s=started.epoch_s,
            duration_s=self.clock().monotonic_s - started.monotonic_s,
            snapshot=seen.snapshot,
            reading=seen.reading,
            specs=seen.specs,
            use=use,
            outcomes=applied.outcomes,
            records=(
                *self._chronicle.records(applied.outcomes, seen.names, policy, started.epoch_s),
                *self._chronicle.cache_records(cache.outcomes, seen.names, policy, started.epoch_s),
            ),
            events=self._events(seen, applied.outcomes, cache, troubles, started.epoch_s),
            troubles=tuple(troubles),
            written=written,
            batch=self._planner.batch,
            warp=self._planner.warp,
            warp_counters=counters,
            cache=cache,
        )

    @property
    def limits(self) -> AgentLimits:
        """The most that is done."""
        return self._limiter.limits

    def preview(self, assignment: Assignment, slots: Mapping[str, Sequence[Window]]) -> Preview:
        """What a tick would change now. Nothing is written but to the journal, a copy, for an instant.

        What was seen counts as the interval before.
        """
        troubles: list[Trouble] = []
        seen = self._look(assignment, slots, self.clock(), troubles)
        plan = self._plan(seen, "host released", troubles)
        changes: tuple[Change, ...] = ()
        if plan is not None:
            targets = self._targets(seen)
            changes = self._differences(plan, seen, targets, self._values(seen), self._ledger(targets))
        self._before = seen.reading
        cache = NOTHING
        if self._cache.concerns(seen.snapshot.host):
            known = (seen.snapshot, seen.reading, self._running(), seen.specs, seen.names, written_by(changes))
            cache = rehearse(self._host.cache, self._journal, cache_seen(*known, "host released", None), troubles)
        notes = tuple(text for _, _, text in self._planner.notes)
        told = tuple(one for one in changes if one.action not in SILENT)
        return Preview(told, seen.names, tuple(troubles), (*notes, *cache.notes), cache)

    def release(self, reason: str, vm: str | None = None) -> TickResult:
        """Put everything back that still is as we left it, or only what was changed of the VM with that name."""
        self._only = vm
        try:
            return self.tick(None, {}, reason)
        finally:
            self._only = None

    def _running(self) -> dict[str, VmInstance]:
        """The listed domains, and those of the journal, which are known to be alive also while libvirtd is away."""
        journalled = {domain: instance for domain, (instance, _) in self._journal.runs.by_domain.items()}
        return journalled | dict(self._host.running())

    def _drop_ended(self, troubles: list[Trouble]) -> None:
        """Forget knobs of processes that ended: the settings ended with them."""
        ended = self._host.ended(self._journal.runs.instances)
        if not ended:
            return
        try:
            self._journal.update({}, [key for key, entry in self._journal.entries.items() if entry.instance in ended])
        except JournalError as error:
            troubles.append(Trouble("journal", str(error)))

    def _look(
        self,
        assignment: Assignment | None,
        slots: Mapping[str, Sequence[Window]],
        now: Clock,
        troubles: list[Trouble],
    ) -> _Seen:
        wanted = self._limiter.within(assignment, troubles)
        running = self._running()
        matched = match(wanted.vms, running)
        names: dict[str, str | None] = {domain: vm for domain, (_, vm) in self._journal.runs.by_domain.items()}
        names |= {**{domain: spec.name for domain, spec in matched.items()}, HOST_UUID: None}
        reading = read_host(
            self._host,
            {domain: running[domain] for domain in names if domain != HOST_UUID},
            now.monotonic_s,
            self._families(wanted, matched),
        )
        troubles.extend(
            Trouble("read", f"{names.get(domain) or domain}: {why}") for domain, why in reading.errors.items()
        )
        specs = {domain: spec for domain, spec in matched.items() if domain in reading.states}
        snapshot = build_snapshot(
            wanted,
            slots,
            specs,
            self._host.capabilities,
            reading,
            self._before,
            epoch_s=now.epoch_s,
            interval_s=self._settings.interval_s,
            stale_s=self._settings.stale_s,
            min_samples=self._settings.min_samples,
            ahead_s=self._drift.at(now.epoch_s, now.monotonic_s),
        )
        return _Seen(snapshot, reading, specs, names)

    def _families(self, assignment: Assignment, matched: Mapping[str, VmSpec]) -> dict[str, set[Family]]:
        """What is read of domains, and of the host, besides their state: what was changed of them, or is to be."""
        host, families = assignment.host, defaultdict[str, set[Family]](set)
        for uuid, changed in self._journal.runs.families.items():
            families[uuid] |= changed
        if assignment is not self._warps_of[0]:
            self._warps_of = assignment, warped_vms(assignment)
        warped = self._warps_of[1]
        if warped and host.warp is WarpUse.SCHED_EXT:
            families[HOST_UUID].add(Family.SCHEDULER)
        if host.mode is not Mode.RELEASED and host.placement.irqs is not IrqSteering.OFF:
            families[HOST_UUID].add(Family.INTERRUPT)
        for domain, spec in matched.items():
            if spec.name in warped:
                families[domain].add(Family.WARP)
            if spec.scheduling and host.mode is not Mode.RELEASED:
                families[domain].add(Family.SCHEDULING)
        return families

    def _counters(self, troubles: list[Trouble]) -> Mapping[str, int]:
        """What our scheduler counted, nothing while it does not decide."""
        if self._planner.warp.rung is not Mechanism.SCHED_EXT:
            return {}
        try:
            return self._host.warp_counters()
        except HostError as error:
            troubles.append(Trouble("warp", f"the counters of our scheduler: {error}"))
            return {}

    def _plan(self, seen: _Seen, undo_reason: str, troubles: list[Trouble]) -> Plan | None:
        if seen.snapshot.host.mode is Mode.RELEASED:
            self._planner.forget_notes()
            return Plan(undo_reason=undo_reason)
        return self._planner.plan(seen.snapshot, seen.specs, seen.reading, self._journal, troubles)

    def _targets(self, seen: _Seen) -> dict[str, Target]:
        adoptions = {vm.name: vm.spec.adoptions for vm in seen.snapshot.vms}
        targets = {HOST_UUID: Target(self._host.itself, "", seen.snapshot.host.adoptions)}
        for domain, state in seen.reading.states.items():
            name = seen.names[domain] or ""
            targets[domain] = Target(state.instance, name, adoptions.get(name, 0))
        return targets

    @staticmethod
    def _values(seen: _Seen) -> dict[KnobKey, KnobValue]:
        values = dict(seen.reading.own_knobs)
        for knobs in seen.reading.knobs.values():
            values |= knobs
        return values

    def _differences(
        self,
        plan: Plan,
        seen: _Seen,
        targets: Mapping[str, Target],
        values: Mapping[KnobKey, KnobValue],
        ledger: Mapping[KnobKey, Owned],
    ) -> tuple[Change, ...]:
        scale = seen.snapshot.capabilities.weights
        found = Found(
            values,
            seen.snapshot.capabilities.online_cpus,
            scale.default if scale else None,
            {domain: target.adoptions for domain, target in targets.items()},
        )
        return diff(plan, found, ledger)

    def _ledger(self, targets: Mapping[str, Target]) -> dict[KnobKey, Owned]:
        return {
            key: entry.owned
            for key, entry in self._journal.entries.items()
            if key.uuid in targets
            and entry.instance == targets[key.uuid].instance
            and (self._only is None or entry.vm == self._only)
        }

    def _apply(self, plan: Plan, seen: _Seen) -> Applied:
        given = self._given(plan, seen)
        if given == self._nothing_to_do_for:
            return Applied(())
        targets = self._targets(seen)
        values = self._values(seen)
        ledger = self._ledger(targets)
        changes = self._differences(plan, seen, targets, values, ledger)
        self._nothing_to_do_for = None if changes else given
        # Seen as we left it; what could not be read now may be as it was before.
        unsettled = {key for key, owned in ledger.items() if not owned.settled}
        untouched = (unsettled & values.keys()) - {change.key for change in changes}
        applied = apply(changes, targets, self._host, self._journal, self._limiter.limits)
        self._journal.settle(untouched)
        return applied

    def _given(self, plan: Plan, seen: _Seen) -> tuple[object, ...]:
        """All that the changes follow from: mostly that of the tick before, for which there was nothing to do."""
        reading, capabilities = seen.reading, seen.snapshot.capabilities
        return (
            self._journal.revision,
            reading.knobs,
            reading.own_knobs,
            [state.instance for state in reading.states.values()],
            capabilities.online_cpus,
            capabilities.weights,
            seen.snapshot.host,
            seen.specs,
            self._only,
            plan.undo_reason,
            [(goal.key, goal.value, goal.mode) for goal in plan.goals],
        )

    def _events(
        self,
        seen: _Seen,
        outcomes: tuple[Outcome, ...],
        cache: CacheResult,
        troubles: list[Trouble],
        now_s: float,
    ) -> tuple[Event, ...]:
        managed = {domain: spec.name for domain, spec in seen.specs.items()}
        severities = [
            (Severity.WARNING if trouble.kind in _MINOR else Severity.ERROR, trouble.kind, trouble.text)
            for trouble in troubles
        ]
        severities += self._planner.notes
        severities += [(Severity.WARNING, "cache", text) for text in cache.notes]
        return (
            *self._chronicle.comings_and_goings(managed, seen.reading.errors, now_s),
            *self._chronicle.foreign_changes(outcomes, seen.names, now_s),
            *self._chronicle.foreign_groups(cache.outcomes, now_s),
            *self._chronicle.troubles(severities, now_s),
        )
