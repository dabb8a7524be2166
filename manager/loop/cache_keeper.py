"""Divides the cache: at each tick from the groups of resctrl that are there to those that are to be, in phases.

Probe what there is, adopt or leave what others changed, plan, apply step by step, watch who uses how much, give back
what no application needs, and learn from response times. Groups of ours are known by their names: after a kill at any
point the next tick goes on from what is there. What resctrl itself does not show is in the journal before the first
change, see ``CacheNote``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from manager.control.cache_demand import (
    NOBODY,
    JudgedWays,
    decided,
    demand_of,
    holding,
    judge,
    judge_held,
    judged_text,
    limited,
    read_judged,
)
from manager.control.cache_plan import BATCH_GROUP, HELD_GROUP, CacheDemand, CachePlan, allocate
from manager.control.cache_steps import CacheAction, CacheStep, plan_steps
from manager.control.monitoring import UNMEASURED, Measured
from manager.errors import HostError, JournalError, VmVanished
from manager.host.port import CachePort
from manager.loop.apply import LEFT_ALONE, Outcome
from manager.loop.cache_reading import NOTHING, CacheReading, CacheResult, CacheSeen, group_text, homes_of, wants_cache
from manager.loop.cache_watch import CacheWatch
from manager.loop.journal import CacheNote, Journal
from manager.model.cache import DEFAULT, Group, Resctrl, Schemata, is_ours
from manager.model.decision import Snapshot
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.problem import Problem, ProblemKind
from manager.model.records import OutcomeKind
from manager.model.registration import HostSpec, Mode

_DONE = frozenset({OutcomeKind.APPLIED, OutcomeKind.RESTORED})
_UNDONE = frozenset({OutcomeKind.FAILED, OutcomeKind.IGNORED})


@dataclass(frozen=True, slots=True)
class _Planned:
    """What is asked for by those whose mode is enforce, the groups for it, and the steps to them."""

    demand: CacheDemand
    plan: CachePlan
    notes: tuple[str, ...]
    steps: tuple[CacheStep, ...]


class CacheKeeper:
    """Keeps the groups of one host. Not thread-safe: belongs to the control loop."""

    def __init__(self, port: CachePort | None, journal: Journal, now_s: Callable[[], float]) -> None:
        """``port`` None: the host has no resctrl. ``now_s``: a monotonic time in seconds."""
        self._port = port
        self._journal = journal
        self._watch = CacheWatch(journal, now_s)
        self._left: dict[str, Schemata] = {}  # the values that our groups, and the default one, were left with
        self._held = NOBODY
        self._judged: Mapping[str, JudgedWays] = {}
        self._whys: Mapping[str, str] = {}
        self._most: tuple[int, int] | None = None
        self._refused: tuple[HostSpec, str] | None = None
        self._idle = False
        self._last = NOTHING

    def concerns(self, host: HostSpec) -> bool:
        """Whether there is something to do, or may be; mostly not."""
        return wants_cache(host) or not (self._port is None or (self._idle and self._journal.cache is None))

    def in_snapshot(self, snapshot: Snapshot) -> Snapshot:
        """With what a policy may see of cache and memory, as of the last tick; the same where it is not divided."""
        offered, measured = self._last.offered, self._last.measured
        if offered is None or not wants_cache(snapshot.host):
            return snapshot
        vms = tuple(
            replace(vm, memory_bytes_per_s=traffic) if (traffic := measured.bytes_per_s(vm.name)) is not None else vm
            for vm in snapshot.vms
        )
        ways = min((cache.ways.ways for cache in offered.divided), default=0)
        limits, on_trial = bool(offered.bandwidths), self._ways_on_trial
        return replace(snapshot, vms=vms, cache_ways=ways, memory_limits=limits, ways_trial=on_trial)

    @property
    def _ways_on_trial(self) -> bool:
        return any(judged.memory.before is not None for judged in self._judged.values())

    def tick(self, seen: CacheSeen) -> CacheResult:
        """Bring the groups where they are to be."""
        if self._port is None:
            missing = (_problem("this host has no resctrl: its cache is not divided"),)
            return replace(NOTHING, problems=missing if seen.wanted else ())
        self._idle = False
        if seen.wanted and seen.unread:  # it keeps what it has, and so do all others
            return replace(self._last, outcomes=(), problems=(), measured=UNMEASURED)
        try:
            offered, problems = self._probe(self._port, seen)
            if offered is None:
                self._idle = not seen.wanted
                self._last = CacheResult(owned=int(self._journal.cache is not None), problems=problems)
                return self._last
            if self._last is NOTHING:
                self._judged = read_judged(self._journal.cache_memory, seen.snapshot.steady_s)
            present = self._port.groups()
            external = self._adopt(seen, present)
        except (HostError, JournalError) as error:
            return self._failed(error)
        return self._divide(self._port, seen, offered, present, external, problems)

    def _divide(
        self,
        port: CachePort,
        seen: CacheSeen,
        offered: Resctrl,
        present: Mapping[str, Group],
        external: tuple[Outcome, ...],
        problems: tuple[Problem, ...],
    ) -> CacheResult:
        """From what is present to what is wanted; what was done counts also where something fails after it."""
        outcomes = external
        try:
            note = self._journal.cache or CacheNote()
            homes, unread = homes_of(port, seen, present)
            problems = (*problems, *unread)
            reading = CacheReading(seen, offered, present, homes, note.external, port.domains())
            planned = self._plan(reading, note)
            outcomes = (*external, *self._apply(port, reading, planned, note))
            failed = [outcome.detail for outcome in outcomes if outcome.kind is OutcomeKind.FAILED]
            problems = (*problems, *map(_problem, failed))
            if planned.steps:
                present = port.groups()
            moved = {
                outcome.key.uuid: outcome.group
                for outcome in outcomes
                if outcome.key.knob is Knob.CACHE_GROUP and outcome.kind in _DONE
            }
            measured, unwatched = self._watch.tick(port, reading, present, moved)
            problems = (*problems, *unwatched)
            self._give_back(port, seen, planned.plan, present, outcomes, measured)
            self._learn(reading, planned, measured)
        except (HostError, JournalError) as error:
            return self._failed(error, outcomes, problems)
        left_there = map(_problem, reading.left_there()) if seen.wanted else ()
        owned = measured.owned + sum(is_ours(name) and name not in note.external for name in present)
        noted = self._journal.cache is not None and not note.external
        self._last = CacheResult(
            outcomes=outcomes,
            offered=offered,
            groups=tuple(reading.groups(planned.plan, present)) if seen.wanted else (),
            notes=(*planned.notes, *measured.notes),
            groups_of_others=sum(group.of_others for group in present.values()),
            owned=owned or int(noted),
            measured=measured,
            problems=(*problems, *left_there),
        )
        return self._last

    def _failed(
        self,
        error: HostError | JournalError,
        outcomes: tuple[Outcome, ...] = (),
        problems: tuple[Problem, ...] = (),
    ) -> CacheResult:
        """What there was at the tick before, with what was done in this one until the error."""
        kind = ProblemKind.JOURNAL if isinstance(error, JournalError) else ProblemKind.CACHE
        return replace(
            self._last,
            outcomes=outcomes,
            owned=int(self._journal.cache is not None),
            measured=UNMEASURED,
            problems=(*problems, Problem(kind, str(error))),
        )

    def _probe(self, port: CachePort, seen: CacheSeen) -> tuple[Resctrl | None, tuple[Problem, ...]]:
        """What is offered, after mounting where that is allowed; None where nothing can be done."""
        host, note = seen.snapshot.host, self._journal.cache
        online = seen.snapshot.capabilities.online_cpus
        offered = port.offered(online)
        if offered is not None:
            if note is not None and note.original is None and note.external:  # mounted again by another tool
                self._journal.note_cache(None)
            return offered, ()
        self._left = {}
        unmounted = note is not None and (note.original is not None or bool(note.external))
        if note is not None and (unmounted or not seen.wanted):  # its groups and values ended with the mount
            adoptions = note.external.get(DEFAULT, host.adoptions)
            stays = unmounted and seen.wanted and host.adoptions <= adoptions
            self._journal.note_cache(CacheNote(external={DEFAULT: adoptions}) if stays else None)
            if stays:
                return None, (_problem("another tool unmounted resctrl: `equipoise adopt` takes it back"),)
        if not seen.wanted:
            return None, ()
        why = "resctrl is not mounted, and cache_mount does not allow to" if not host.cache_mount else ""
        if self._refused and self._refused[0] == host:
            why = self._refused[1]
        if why or host.mode is not Mode.ENFORCE:
            return None, (_problem(f"the cache is not divided: {why or 'resctrl is not mounted'}"),)
        self._journal.note_cache(CacheNote(mounted=True))
        problems: tuple[Problem, ...] = ()
        try:
            ours = port.mount()
        except HostError as error:
            self._refused = host, str(error)
            ours, problems = False, (_problem(f"the cache is not divided: {error}"),)
        if not ours:
            self._journal.note_cache(None)
        return port.offered(online), problems

    def _adopt(self, seen: CacheSeen, present: Mapping[str, Group]) -> tuple[Outcome, ...]:
        """Note groups that others changed, and those that were adopted since, as they are now."""
        note = self._journal.cache
        if note is None:
            return ()
        adoptions = seen.snapshot.host.adoptions
        external = {name: number for name, number in note.external.items() if adoptions <= number}
        original = note.original
        if DEFAULT in note.external and DEFAULT not in external:
            original = present[DEFAULT].values
        outcomes = tuple(self._external_changes(present, external))
        external |= {outcome.group: adoptions for outcome in outcomes}
        self._journal.note_cache(replace(note, original=original, external=external))
        return outcomes

    def _external_changes(self, present: Mapping[str, Group], external: Mapping[str, int]) -> Iterator[Outcome]:
        """Groups that are not as we left them, but for those that were external before."""
        for name in sorted(self._left.keys() - external.keys()):
            left, group = self._left[name], present.get(name)
            # Of a domain that went offline there is nothing, and it comes back with all its ways.
            if group is not None and all(group.values.get(slot, value) == value for slot, value in left.items()):
                continue
            before, after = group_text(name, left), "" if group is None else group_text(name, group.values)
            reason = "another tool removed it" if group is None else "another tool changed it"
            yield Outcome(
                KnobKey(HOST_UUID, Knob.CACHE_WAYS), before, after, reason, OutcomeKind.EXTERNAL, LEFT_ALONE, name
            )

    def _plan(self, reading: CacheReading, note: CacheNote) -> _Planned:
        original = note.original
        if original is None:  # without a note of it, what we left of it is no original
            ours = any(is_ours(name) for name in reading.present)
            original = {} if ours else reading.present[DEFAULT].values
        return self._planned(reading, original, frozenset({Mode.ENFORCE}))

    def _planned(self, reading: CacheReading, original: Schemata, modes: frozenset[Mode]) -> _Planned:
        demand, notes = CacheDemand(), tuple[str, ...]()
        if reading.seen.wanted:
            placed = reading.placed
            demand, notes = demand_of(
                reading.seen.snapshot, placed, modes, self._judged, reading.external, reading.offered
            )
            if reading.seen.held is not None:
                self._held = decided(self._held, reading.seen.held, placed, self._last.measured)
            demand = holding(demand, self._held, placed, reading.bandwidth)
        demand = replace(demand, original=original)
        plan = allocate(self._offered(reading), reading.avoided, demand)
        return _Planned(demand, plan, (*notes, *plan.notes), _steps(reading, plan))

    def _offered(self, reading: CacheReading) -> Resctrl:
        """With no more CLOSIDs than the kernel had to give, while the others' groups are as many as then."""
        if self._most and self._most[1] != reading.of_others:
            self._most = None
        return limited(reading.offered, self._most[0] if self._most else None)

    def _apply(self, port: CachePort, reading: CacheReading, planned: _Planned, note: CacheNote) -> tuple[Outcome, ...]:
        self._left = {name: group.values for name, group in reading.changed.items() if not group.of_others}
        if planned.steps:
            self._journal.note_cache(replace(note, original=planned.demand.original))
            return tuple(self._taken(port, reading, planned))
        observed: tuple[Outcome, ...] = ()
        if reading.seen.wanted:  # what would be done for those whose mode is observe, too
            wished = self._planned(reading, planned.demand.original, frozenset({Mode.ENFORCE, Mode.OBSERVE}))
            observed = tuple(self._expected(reading, wished.plan, step) for step in wished.steps)
        if note.original is None:
            self._left = {}
        return observed

    def _taken(self, port: CachePort, reading: CacheReading, planned: _Planned) -> Iterator[Outcome]:
        """Take the steps. What is in order only after a step that failed is left for the next tick."""
        for step in planned.steps:
            outcome = self._expected(reading, planned.plan, step)
            try:
                outcome = self._take(port, reading.seen, step, outcome)
            except VmVanished as error:
                outcome = replace(outcome, kind=OutcomeKind.VANISHED, detail=str(error))
            except HostError as error:
                outcome = replace(outcome, kind=OutcomeKind.FAILED, detail=str(error))
                if step.action is CacheAction.MAKE and error.errno == errno.ENOSPC:
                    self._most = len(port.groups()), reading.of_others
                if step.action is CacheAction.WRITE:  # it may have been written and not been read
                    self._left.pop(step.group, None)
            if outcome.kind is OutcomeKind.APPLIED and len(planned.plan.groups) <= 1:
                outcome = replace(outcome, kind=OutcomeKind.RESTORED)
            yield outcome
            if step.action is not CacheAction.MOVE and outcome.kind not in _DONE:
                break

    def _expected(self, reading: CacheReading, plan: CachePlan, step: CacheStep) -> Outcome:
        """The outcome of a step that is not taken."""
        key, name = KnobKey(HOST_UUID, Knob.CACHE_WAYS), step.group
        left = self._left.get(name, {})
        before, after = group_text(name, left), ""
        if step.action is CacheAction.MOVE:
            key = KnobKey(step.vm, Knob.CACHE_GROUP)
            before, after = ", ".join(sorted(filter(None, reading.homes[step.vm]))), name
        elif step.action is CacheAction.MAKE:
            before, after = "", name
        elif step.action is CacheAction.WRITE:
            values = {slot: left[slot] for slot in step.values if slot in left}
            before, after = group_text(name, values), group_text(name, step.values)
        reason = self._reason(reading, plan, step) + ("; shared for an instant" if step.shares else "")
        return Outcome(key, before, after, reason, OutcomeKind.OBSERVED, group=name)

    def _take(self, port: CachePort, seen: CacheSeen, step: CacheStep, outcome: Outcome) -> Outcome:
        """Raises VmVanished, HostError."""
        done = replace(outcome, kind=OutcomeKind.APPLIED)
        if step.action is CacheAction.MOVE:
            port.move(step.group, seen.running[step.vm])
        elif step.action is CacheAction.REMOVE:
            port.remove(step.group)
            self._left.pop(step.group, None)
        elif step.action is CacheAction.MAKE:
            port.create(step.group)
            self._left[step.group] = {}
        else:
            held = port.write(step.group, step.values)
            self._left[step.group] = {**self._left.get(step.group, {}), **held}
            if held != step.values:
                left = group_text(step.group, held)
                return replace(done, kind=OutcomeKind.IGNORED, after=left, detail=f"the kernel keeps {left}")
        return done

    def _reason(self, reading: CacheReading, plan: CachePlan, step: CacheStep) -> str:
        seen, group = reading.seen, plan.groups.get(step.group)
        if seen.only is not None or seen.snapshot.host.mode is Mode.RELEASED:
            return seen.undo_reason
        if not seen.wanted:
            return "the cache is not to be divided any more"
        if self._held.why and HELD_GROUP in (step.group, *reading.homes.get(step.vm, ())):
            return self._held.why
        if group is not None and group.apps:
            known = {**self._whys, **seen.whys}
            whys = "; ".join(known[app] for app in group.apps if app in known)
            return f"for {', '.join(group.apps)}" + (f": {whys}" if whys else "")
        if step.group == BATCH_GROUP and group is not None:
            return "batch VMs share the rest"
        return "no application needs it any more" if step.action is CacheAction.REMOVE else "all else has the rest"

    def _give_back(
        self,
        port: CachePort,
        seen: CacheSeen,
        plan: CachePlan,
        present: Mapping[str, Group],
        outcomes: tuple[Outcome, ...],
        measured: Measured,
    ) -> None:
        """Where nothing is divided: ours are only what another tool changed, and the mount while it may be needed."""
        if seen.only is not None or len(plan.groups) != 1 or any(outcome.kind in _UNDONE for outcome in outcomes):
            return
        note = self._journal.cache
        if note is None or not note.external or not (seen.wanted or not present.keys().isdisjoint(note.external)):
            self._forget(port, seen, present, note)
        self._idle = self._idle and not measured.owned

    def _learn(self, reading: CacheReading, planned: _Planned, measured: Measured) -> None:
        """What response times make of each ``auto`` and of those held back, for the next plan."""
        snapshot = reading.seen.snapshot
        holds = self._held.memory.before is not None or reading.seen.on_trial
        self._judged, self._whys = judge(
            self._judged, snapshot, planned.demand, planned.plan, reading.offered, busy=holds
        )
        if reading.seen.only is None:
            self._journal.note_cache_memory(judged_text(self._judged))
        if reading.seen.held is not None:
            return
        self._held = judge_held(
            self._held, snapshot, planned.demand, reading.placed, measured, reading.bandwidth, busy=self._ways_on_trial
        )

    def _forget(self, port: CachePort, seen: CacheSeen, present: Mapping[str, Group], note: CacheNote | None) -> None:
        """Nothing is divided any more."""
        self._left = {}
        stays = seen.wanted and seen.snapshot.host.mode is Mode.ENFORCE
        others = any(group.of_others for group in present.values())
        if note is not None and note.mounted and (stays or not others):
            self._journal.note_cache(CacheNote(mounted=True))  # unmounting restores everything
            if stays:
                return
            port.unmount()
        self._journal.note_cache(None)
        if not seen.wanted:
            port.close()
            self._idle = True


def _problem(text: str) -> Problem:
    return Problem(ProblemKind.CACHE, text)


def _steps(reading: CacheReading, plan: CachePlan) -> tuple[CacheStep, ...]:
    seen = reading.seen
    if seen.only is not None:
        leaving = (uuid for uuid in reading.homes if seen.names.get(uuid) == seen.only and not reading.stays(uuid))
        return tuple(CacheStep(CacheAction.MOVE, DEFAULT, uuid) for uuid in leaving if reading.homes[uuid] != {DEFAULT})
    goes_to = {uuid: group.name for group in plan.groups.values() for uuid in group.vms}
    placed = {}
    for uuid, names in reading.homes.items():
        wanted = goes_to.get(uuid, DEFAULT)
        if not reading.stays(uuid):  # where some threads are elsewhere, the VM is
            placed[uuid] = max((name for name in names if name != wanted), default=wanted)
    steps = plan_steps(reading.offered, reading.changed, placed, plan)
    return tuple(step for step in steps if step.action is not CacheAction.WRITE or step.group not in reading.external)
