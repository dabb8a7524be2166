"""Divides the cache: at each tick from the groups of resctrl that are there to those that are to be, step by step.

Groups of ours are known by their names: after a kill at any point the next tick goes on from what is there. What
resctrl itself does not tell is in the journal before the first change, see ``CacheNote``.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from manager.control.bandwidth_demand import NOBODY, holding, judge_held
from manager.control.cache_demand import JudgedWays, demand_of, judge, limited
from manager.control.cache_memory import judged_text, read_judged
from manager.control.cache_plan import BATCH_GROUP, HELD_GROUP, CacheDemand, CachePlan, allocate
from manager.control.cache_steps import CacheAction, CacheStep, plan_steps
from manager.control.monitoring import UNMEASURED
from manager.errors import HostError, JournalError, VmVanished
from manager.host.port import CachePort
from manager.loop.cache_found import (
    NOTHING,
    CacheOutcome,
    CacheReading,
    CacheResult,
    CacheSeen,
    GroupSeen,
    group_text,
    groups_of,
    homes_of,
    left_there,
    wants_cache,
)
from manager.loop.cache_watch import CacheWatch
from manager.loop.journal import CacheNote, Journal
from manager.loop.planner import Trouble
from manager.model.cache import DEFAULT, BandwidthResource, Group, Resctrl, Schemata, is_ours
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind
from manager.model.registration import HostSpec, Mode

_DONE = frozenset({OutcomeKind.APPLIED, OutcomeKind.RESTORED})
_UNDONE = frozenset({OutcomeKind.FAILED, OutcomeKind.IGNORED})
_GIVEN_UP = "given up; `equipoise adopt` takes it back"


class CacheKeeper:
    """Keeps the groups of one host. Not thread-safe: belongs to the control loop."""

    def __init__(self, port: CachePort | None, journal: Journal, now_s: Callable[[], float]) -> None:
        """``port`` None: the host has no resctrl. ``now_s``: a monotonic time in seconds."""
        self._port = port
        self._journal = journal
        self._watch = CacheWatch(journal, now_s)
        self._held = NOBODY
        self._left: dict[str, Schemata] = {}
        self._judged: Mapping[str, JudgedWays] = {}
        self._whys: Mapping[str, str] = {}
        self._most: tuple[int, int] | None = None
        self._refused: tuple[HostSpec, str] | None = None
        self._idle = False
        self._last = NOTHING

    def concerns(self, host: HostSpec) -> bool:
        """Whether there is something to do, or may be; mostly not."""
        return wants_cache(host) or not (self._port is None or (self._idle and self._journal.cache is None))

    def tick(self, seen: CacheSeen, troubles: list[Trouble]) -> CacheResult:
        """Bring the groups where they are to be; what cannot be done is added to ``troubles``."""
        port = self._port
        if port is None:
            if seen.wanted:
                troubles.append(Trouble("cache", "this host has no resctrl: its cache is not divided"))
            return NOTHING
        self._idle = False
        if seen.wanted and seen.unread:  # it keeps what it has, and so do all others
            return replace(self._last, outcomes=(), measured=UNMEASURED)
        outcomes: list[CacheOutcome] = []
        try:
            self._last = self._tick(port, seen, outcomes, troubles)
        except HostError as error:
            troubles.append(Trouble("cache", str(error)))
        except JournalError as error:
            troubles.append(Trouble("journal", str(error)))
        else:
            return self._last
        owned = int(self._journal.cache is not None)
        return replace(self._last, outcomes=tuple(outcomes), owned=owned, measured=UNMEASURED)

    def _tick(
        self, port: CachePort, seen: CacheSeen, outcomes: list[CacheOutcome], troubles: list[Trouble]
    ) -> CacheResult:
        offered = self._mounted(port, seen, troubles)
        if offered is None:
            self._idle = not seen.wanted
            return CacheResult(owned=int(self._journal.cache is not None))
        if self._last is NOTHING:
            self._judged = read_judged(self._journal.cache_memory, seen.snapshot.steady_s)
        present = port.groups()
        outcomes += self._give_up(seen, present)
        note = self._journal.cache or CacheNote()
        found = CacheReading(
            offered, present, dict(homes_of(port, seen, present, troubles)), note.given_up, port.domains()
        )
        demand, plan, notes = self._plan(seen, found, note)
        steps = self._steps(seen, found, plan)
        self._left = {name: one.values for name, one in found.changed.items() if not one.foreign}
        if steps:
            self._journal.note_cache(replace(note, original=demand.original))
            self._carry_out(port, seen, found, plan, steps, outcomes)
            present = port.groups()
        elif seen.wanted:
            outcomes += self._observed(seen, found, demand)
        if note.original is None and not steps:
            self._left = {}
        troubles += [Trouble("cache", one.detail) for one in outcomes if one.kind is OutcomeKind.FAILED]
        moved = {one.vm: one.group for one in outcomes if one.vm and one.kind in _DONE}
        measured = self._watch.tick(port, seen, found, present, moved, troubles)
        if seen.only is None and len(plan.groups) == 1 and not any(one.kind in _UNDONE for one in outcomes):
            self._finish(port, seen, present)
            self._idle = self._idle and not measured.owned
        holds = self._held.memory.before is not None
        self._judged, self._whys = judge(self._judged, seen.snapshot, demand, plan, offered, busy=holds)
        if seen.only is None:
            self._journal.note_cache_memory(judged_text(self._judged))
        busy = any(one.memory.before is not None for one in self._judged.values())
        placed, resource = found.placed(seen), self._limits(found)
        self._held = judge_held(self._held, seen.snapshot, demand, placed, measured, resource, busy=busy)
        groups: tuple[GroupSeen, ...] = ()
        if seen.wanted:
            troubles += [Trouble("cache", text) for text in left_there(seen, found)]
            groups = tuple(groups_of(seen, found, plan, present))
        owned = measured.owned + sum(is_ours(name) and name not in note.given_up for name in present)
        noted = self._journal.cache is not None and not note.given_up
        foreign = sum(one.foreign for one in present.values())
        notes = (*notes, *measured.notes)
        return CacheResult(tuple(outcomes), offered, groups, notes, foreign, owned or int(noted), measured)

    def _mounted(self, port: CachePort, seen: CacheSeen, troubles: list[Trouble]) -> Resctrl | None:
        """What is offered, after mounting where that is allowed; None where nothing can be done."""
        host, note = seen.snapshot.host, self._journal.cache
        online = seen.snapshot.capabilities.online_cpus
        offered = port.offered(online)
        if offered is not None:
            if note is not None and note.original is None and note.given_up:  # mounted again by somebody else
                self._journal.note_cache(None)
            return offered
        self._left = {}
        unmounted = note is not None and (note.original is not None or bool(note.given_up))
        if note is not None and (unmounted or not seen.wanted):  # its groups and values ended with the mount
            adoptions = note.given_up.get(DEFAULT, host.adoptions)
            stays = unmounted and seen.wanted and host.adoptions <= adoptions
            self._journal.note_cache(CacheNote(given_up={DEFAULT: adoptions}) if stays else None)
            if stays:
                troubles.append(Trouble("cache", "somebody unmounted resctrl: `equipoise adopt` takes it back"))
                return None
        if not seen.wanted:
            return None
        why = "resctrl is not mounted, and cache_mount does not allow to" if not host.cache_mount else ""
        if self._refused and self._refused[0] == host:
            why = self._refused[1]
        if why or host.mode is not Mode.ENFORCE:
            troubles.append(Trouble("cache", f"the cache is not divided: {why or 'resctrl is not mounted'}"))
            return None
        self._journal.note_cache(CacheNote(mounted=True))
        try:
            ours = port.mount()
        except HostError as error:
            self._refused = host, str(error)
            troubles.append(Trouble("cache", f"the cache is not divided: {error}"))
            ours = False
        if not ours:
            self._journal.note_cache(None)
        return port.offered(online)

    def _give_up(self, seen: CacheSeen, present: Mapping[str, Group]) -> Iterator[CacheOutcome]:
        """Groups that are not as we left them; and those that were adopted since, as they are now."""
        note = self._journal.cache
        if note is None:
            return
        adoptions = seen.snapshot.host.adoptions
        given_up = {name: number for name, number in note.given_up.items() if adoptions <= number}
        original = note.original
        if DEFAULT in note.given_up and DEFAULT not in given_up:
            original = present[DEFAULT].values
        for name in sorted(self._left.keys() - given_up.keys()):
            left, now = self._left[name], present.get(name)
            # Of a domain that went offline there is nothing, and it comes back with all its ways.
            if now is not None and all(now.values.get(slot, value) == value for slot, value in left.items()):
                continue
            given_up[name] = adoptions
            before, after = group_text(name, left), "" if now is None else group_text(name, now.values)
            what = "somebody removed it" if now is None else "somebody else changed it"
            yield CacheOutcome(Knob.CACHE_WAYS, None, name, before, after, what, OutcomeKind.FOREIGN, _GIVEN_UP)
        self._journal.note_cache(replace(note, original=original, given_up=given_up))

    def _plan(
        self, seen: CacheSeen, found: CacheReading, note: CacheNote
    ) -> tuple[CacheDemand, CachePlan, tuple[str, ...]]:
        """What is asked for by those whose mode is enforce, and the groups for it."""
        original = note.original
        if original is None:  # without a note of it, what we left of it is no original
            ours = any(is_ours(name) for name in found.present)
            original = {} if ours else found.present[DEFAULT].values
        demand, notes = self._demand(seen, found, frozenset({Mode.ENFORCE}))
        demand = replace(demand, original=original)
        plan = allocate(self._offered(found), found.avoided, demand)
        return demand, plan, (*notes, *plan.notes)

    def _demand(
        self, seen: CacheSeen, found: CacheReading, modes: frozenset[Mode]
    ) -> tuple[CacheDemand, tuple[str, ...]]:
        if not seen.wanted:
            return CacheDemand(), ()
        placed = found.placed(seen)
        demand, notes = demand_of(seen.snapshot, placed, modes, self._judged, found.given_up, found.offered)
        return holding(demand, self._held, placed, self._limits(found)), notes

    @staticmethod
    def _limits(found: CacheReading) -> BandwidthResource | None:
        """By which VMs are held back; None where they cannot be."""
        return next((one for one in found.offered.bandwidths if HELD_GROUP not in found.given_up), None)

    def _offered(self, found: CacheReading) -> Resctrl:
        """With no more CLOSIDs than the kernel had to give, while the others' groups are as many as then."""
        if self._most and self._most[1] != found.foreign:
            self._most = None
        return limited(found.offered, self._most[0] if self._most else None)

    @staticmethod
    def _steps(seen: CacheSeen, found: CacheReading, plan: CachePlan) -> tuple[CacheStep, ...]:
        if seen.only is not None:
            leaving = (uuid for uuid in found.homes if seen.names.get(uuid) == seen.only and not found.stays(uuid))
            return tuple(
                CacheStep(CacheAction.MOVE, DEFAULT, uuid) for uuid in leaving if found.homes[uuid] != {DEFAULT}
            )
        goes_to = {uuid: group.name for group in plan.groups.values() for uuid in group.vms}
        placed = {}
        for uuid, names in found.homes.items():
            wanted = goes_to.get(uuid, DEFAULT)
            if not found.stays(uuid):  # where some threads are elsewhere, the VM is
                placed[uuid] = max((name for name in names if name != wanted), default=wanted)
        steps = plan_steps(found.offered, found.changed, placed, plan)
        return tuple(step for step in steps if step.action is not CacheAction.WRITE or step.group not in found.given_up)

    def _observed(self, seen: CacheSeen, found: CacheReading, demand: CacheDemand) -> Iterator[CacheOutcome]:
        """What would be done for those whose mode is observe, too."""
        wished, _ = self._demand(seen, found, frozenset({Mode.ENFORCE, Mode.OBSERVE}))
        wished = replace(wished, original=demand.original)
        if wished != demand:
            plan = allocate(self._offered(found), found.avoided, wished)
            for step in self._steps(seen, found, plan):
                yield self._outcome(seen, found, plan, step)

    def _carry_out(
        self,
        port: CachePort,
        seen: CacheSeen,
        found: CacheReading,
        plan: CachePlan,
        steps: Sequence[CacheStep],
        outcomes: list[CacheOutcome],
    ) -> None:
        """One after the other; what is in order only after one that failed is left for the next tick."""
        for step in steps:
            outcome = self._outcome(seen, found, plan, step)
            try:
                outcome = self._carried_out(port, seen, step, outcome)
            except VmVanished as error:
                outcome = replace(outcome, kind=OutcomeKind.VANISHED, detail=str(error))
            except HostError as error:
                outcome = replace(outcome, kind=OutcomeKind.FAILED, detail=str(error))
                if step.action is CacheAction.MAKE and error.errno == errno.ENOSPC:
                    self._most = len(port.groups()), found.foreign
                if step.action is CacheAction.WRITE:  # it may have been written and not been read
                    self._left.pop(step.group, None)
            if outcome.kind is OutcomeKind.APPLIED and len(plan.groups) <= 1:
                outcome = replace(outcome, kind=OutcomeKind.RESTORED)
            outcomes.append(outcome)
            if step.action is not CacheAction.MOVE and outcome.kind not in _DONE:
                return

    def _carried_out(self, port: CachePort, seen: CacheSeen, step: CacheStep, outcome: CacheOutcome) -> CacheOutcome:
        """One step, read back. Raises VmVanished, HostError."""
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
                kept = group_text(step.group, held)
                return replace(done, kind=OutcomeKind.IGNORED, after=kept, detail=f"the kernel keeps {kept}")
        return done

    def _outcome(self, seen: CacheSeen, found: CacheReading, plan: CachePlan, step: CacheStep) -> CacheOutcome:
        """A step that nobody has taken."""
        knob, vm, name = Knob.CACHE_WAYS, None, step.group
        left = self._left.get(name, {})
        before, after = group_text(name, left), ""
        if step.action is CacheAction.MOVE:
            knob, vm = Knob.CACHE_GROUP, step.vm
            before, after = ", ".join(sorted(filter(None, found.homes[vm]))), name
        elif step.action is CacheAction.MAKE:
            before, after = "", name
        elif step.action is CacheAction.WRITE:
            known = {slot: left[slot] for slot in step.values if slot in left}
            before, after = group_text(name, known), group_text(name, step.values)
        held = HELD_GROUP in (name, *found.homes.get(step.vm, ()))
        reason = self._reason(seen, plan, step, held=held) + ("; shared for an instant" if step.shares else "")
        return CacheOutcome(knob, vm, name, before, after, reason, OutcomeKind.OBSERVED)

    def _reason(self, seen: CacheSeen, plan: CachePlan, step: CacheStep, *, held: bool) -> str:
        group = plan.groups.get(step.group)
        if seen.only is not None or seen.snapshot.host.mode is Mode.RELEASED:
            return seen.undo_reason
        if not seen.wanted:
            return "the cache is not to be divided any more"
        if held and self._held.why:
            return self._held.why
        if group is not None and group.apps:
            whys = "; ".join(self._whys[app] for app in group.apps if app in self._whys)
            return f"for {', '.join(group.apps)}" + (f": {whys}" if whys else "")
        if step.group == BATCH_GROUP and group is not None:
            return "batch VMs share the rest"
        return "nobody needs it any more" if step.action is CacheAction.REMOVE else "the rest is for everything else"

    def _finish(self, port: CachePort, seen: CacheSeen, present: Mapping[str, Group]) -> None:
        """Nothing is divided: nothing is ours any more but what was given up, and while it may be needed the mount."""
        note, foreign = self._journal.cache, any(one.foreign for one in present.values())
        if note is not None and note.given_up and (seen.wanted or not present.keys().isdisjoint(note.given_up)):
            return
        self._left = {}
        stays = seen.wanted and seen.snapshot.host.mode is Mode.ENFORCE
        if note is not None and note.mounted and (stays or not foreign):
            self._journal.note_cache(CacheNote(mounted=True))  # unmounting puts everything back
            if stays:
                return
            port.unmount()
        self._journal.note_cache(None)
        if not seen.wanted:
            port.close()
            self._idle = True
