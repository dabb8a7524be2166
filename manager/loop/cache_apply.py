"""Carries out the steps of the cache's keeper, one after the other, each read back."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from manager.control.cache_plan import BATCH_GROUP, HELD_GROUP, CachePlan
from manager.control.cache_steps import CacheAction, CacheStep
from manager.errors import HostError, VmVanished
from manager.host.port import CachePort
from manager.loop.cache_reading import CacheOutcome, CacheReading, CacheSeen, group_text
from manager.model.cache import Group, Schemata
from manager.model.knobs import Knob
from manager.model.records import OutcomeKind
from manager.model.registration import Mode

DONE = frozenset({OutcomeKind.APPLIED, OutcomeKind.RESTORED})
_EXTERNAL = "left alone; `equipoise adopt` takes it back"


@dataclass(frozen=True, slots=True)
class CacheReasons:
    """Why ways of an application's group change, by application, and why VMs are held back."""

    ways: Mapping[str, str]
    held: str


class CacheApplier:
    """Remembers the values that our groups, and the default one, were left with."""

    def __init__(self) -> None:
        self.left: dict[str, Schemata] = {}

    def external_changes(self, present: Mapping[str, Group], external: Mapping[str, int]) -> Iterator[CacheOutcome]:
        """Groups that are not as we left them, but for those given up before."""
        for name in sorted(self.left.keys() - external.keys()):
            left, group = self.left[name], present.get(name)
            # Of a domain that went offline there is nothing, and it comes back with all its ways.
            if group is not None and all(group.values.get(slot, value) == value for slot, value in left.items()):
                continue
            before, after = group_text(name, left), "" if group is None else group_text(name, group.values)
            what = "somebody removed it" if group is None else "somebody else changed it"
            yield CacheOutcome(Knob.CACHE_WAYS, None, name, before, after, what, OutcomeKind.EXTERNAL, _EXTERNAL)

    def apply(
        self,
        port: CachePort,
        seen: CacheSeen,
        reading: CacheReading,
        plan: CachePlan,
        steps: Sequence[CacheStep],
        reasons: CacheReasons,
    ) -> tuple[tuple[CacheOutcome, ...], bool]:
        """What came of the steps, and whether the kernel had no CLOSID left.

        What is in order only after a step that failed is left for the next tick.
        """
        outcomes: list[CacheOutcome] = []
        exhausted = False
        for step in steps:
            outcome = self.expected(seen, reading, plan, step, reasons)
            try:
                outcome = self._take(port, seen, step, outcome)
            except VmVanished as error:
                outcome = replace(outcome, kind=OutcomeKind.VANISHED, detail=str(error))
            except HostError as error:
                outcome = replace(outcome, kind=OutcomeKind.FAILED, detail=str(error))
                exhausted = step.action is CacheAction.MAKE and error.errno == errno.ENOSPC
                if step.action is CacheAction.WRITE:  # it may have been written and not been read
                    self.left.pop(step.group, None)
            if outcome.kind is OutcomeKind.APPLIED and len(plan.groups) <= 1:
                outcome = replace(outcome, kind=OutcomeKind.RESTORED)
            outcomes.append(outcome)
            if step.action is not CacheAction.MOVE and outcome.kind not in DONE:
                break
        return tuple(outcomes), exhausted

    def expected(
        self, seen: CacheSeen, reading: CacheReading, plan: CachePlan, step: CacheStep, reasons: CacheReasons
    ) -> CacheOutcome:
        """The outcome of a step that is not taken."""
        knob, vm, name = Knob.CACHE_WAYS, None, step.group
        left = self.left.get(name, {})
        before, after = group_text(name, left), ""
        if step.action is CacheAction.MOVE:
            knob, vm = Knob.CACHE_GROUP, step.vm
            before, after = ", ".join(sorted(filter(None, reading.homes[vm]))), name
        elif step.action is CacheAction.MAKE:
            before, after = "", name
        elif step.action is CacheAction.WRITE:
            values = {slot: left[slot] for slot in step.values if slot in left}
            before, after = group_text(name, values), group_text(name, step.values)
        held_back = HELD_GROUP in (name, *reading.homes.get(step.vm, ()))
        reason = _reason(seen, plan, step, reasons, held_back=held_back)
        reason += "; shared for an instant" if step.shares else ""
        return CacheOutcome(knob, vm, name, before, after, reason, OutcomeKind.OBSERVED)

    def _take(self, port: CachePort, seen: CacheSeen, step: CacheStep, outcome: CacheOutcome) -> CacheOutcome:
        """Raises VmVanished, HostError."""
        done = replace(outcome, kind=OutcomeKind.APPLIED)
        if step.action is CacheAction.MOVE:
            port.move(step.group, seen.running[step.vm])
        elif step.action is CacheAction.REMOVE:
            port.remove(step.group)
            self.left.pop(step.group, None)
        elif step.action is CacheAction.MAKE:
            port.create(step.group)
            self.left[step.group] = {}
        else:
            held = port.write(step.group, step.values)
            self.left[step.group] = {**self.left.get(step.group, {}), **held}
            if held != step.values:
                kept = group_text(step.group, held)
                return replace(done, kind=OutcomeKind.IGNORED, after=kept, detail=f"the kernel keeps {kept}")
        return done


def _reason(seen: CacheSeen, plan: CachePlan, step: CacheStep, reasons: CacheReasons, *, held_back: bool) -> str:
    group = plan.groups.get(step.group)
    if seen.only is not None or seen.snapshot.host.mode is Mode.RELEASED:
        return seen.undo_reason
    if not seen.wanted:
        return "the cache is not to be divided any more"
    if held_back and reasons.held:
        return reasons.held
    if group is not None and group.apps:
        whys = "; ".join(reasons.ways[app] for app in group.apps if app in reasons.ways)
        return f"for {', '.join(group.apps)}" + (f": {whys}" if whys else "")
    if step.group == BATCH_GROUP and group is not None:
        return "batch VMs share the rest"
    return "nobody needs it any more" if step.action is CacheAction.REMOVE else "the rest is for everything else"
