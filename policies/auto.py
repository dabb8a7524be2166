"""`auto`: static weights until an SLA is violated; then the weights that are predicted to violate the fewest.

It starts as `priority` does. Each application has a *level*: its VMs get the critical weight, or a fourth, a sixteenth
or a sixty-fourth of it. Where the critical VMs together want more than the host has, somebody's SLA is violated
whatever the weights; equal weights then often violate several. So, while an SLA is violated or at risk, a model of the
host (``policies.auto_model``), fitted to what was measured, predicts the number of violated SLAs under other levels.
Only an application that violates its SLA anyway, on average or again and again, that is above its agreed load under
`isolation`, or that is far below its target (``policies.auto_lending``), is ever lowered, and nobody while nobody else
is at risk.

Each change is a trial: the applications that it was to save must do better by more than chance, or it is taken back,
and the application is not lowered again for a while. Levels end as soon as none is predicted to do as well.

Where neither weights nor room (``policies.auto_room``) suffice, steps of a ladder are tried (``policies.auto_trials``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from operator import itemgetter

from manager.control.feedback_law import average
from manager.control.placer import usable_cpus
from manager.model.decision import Decision, Memory, Note, Snapshot, VmView, WeightGoal
from manager.model.host import WeightScale
from manager.model.registration import Sla
from policies.auto_candidates import waits_materially
from policies.auto_crowd import next_crowd, share_pcpus
from policies.auto_explanation import Decided, explain
from policies.auto_kept import kept_text, recalled, resumed
from policies.auto_ladder import climbed, migration_notes
from policies.auto_lending import short_lenders, tolerable, willing, with_credit
from policies.auto_memory import HOLD_S, PAUSED_S, TRIAL_S, AutoMemory, Cooling, Courses, Levels, TakenBack, Trial
from policies.auto_model import AT_RISK, SPREAD, STEP, AppFit, AppModel, HostModel, VmUse, fit_model, weight_at
from policies.auto_resources import resource_goals
from policies.auto_room import Room, next_room, room_goals
from policies.auto_siblings import with_siblings
from policies.auto_step_goals import step_goals
from policies.cores import batch_vms, enforced

LOWEST = 3
"""The lowest level."""
MOST_FREE = 4
"""Of so many applications other levels are predicted at a time, those that miss their targets by most."""
WORTH = 0.08
"""How many violated SLAs, of those in an interval, levels must save to be tried."""
SWAP = 0.3
"""And how many others must save that take the place of levels in force."""
OFTEN = 0.12
"""An SLA is violated again and again in more than this part of the intervals, by ``usual``: twice within 15 of them."""
SIMPLER = 0.02
"""What each step down must save."""
SHOWN = 1.64
"""Standard errors by which those to be saved must do better: 5 % of changes without any effect pass."""
SHOWN_LENT = 0.0
"""Where only lenders are lowered: a trial that brings nothing harms nobody, as each lender stays below its target."""
COURSE_SMOOTHING = 0.3
COURSE_INTERVALS = (2 - COURSE_SMOOTHING) / COURSE_SMOOTHING
"""Of so many independent intervals a moving average has the variance."""
COOL_DOWN_S = 120.0
LONGEST_COOL_DOWN_S = 1920.0
_MOST_DOUBLINGS = 16


@dataclass(frozen=True, slots=True)
class Auto:
    """See the module."""

    name: str = "auto"
    summary: str = (
        "Static weights while SLAs are met; else those predicted to violate the fewest, and further steps on trial."
    )

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        """A weight for every managed VM; nothing where the host has no weights."""
        scale = snapshot.capabilities.weights
        if scale is None:
            return Decision()
        before = _until_now(memory, snapshot) if isinstance(memory, AutoMemory) else AutoMemory()
        slas = {view.application.name: view.application.sla for view in snapshot.applications if view.application.sla}
        slas = {**before.slas, **slas}
        before = _of_slas(before, slas)
        model, fits = fit_model(snapshot, scale, before.fits)
        known = {app.name for app in model.applications}  # of others nobody knows whether it is right any more
        levels = {name: level for name, level in before.levels.items() if name in known}
        learnt = replace(
            before,
            fits=fits,
            levels=levels,
            courses=_courses(model, before.courses),
            lenders=before.lenders.intersection(levels),
            known_s=snapshot.steady_s if before.known_s is None and known else before.known_s,
            slas=slas,
            decided_s=snapshot.steady_s,
        )
        crowd = next_crowd(before.crowd, snapshot, needed=_is_at_risk_on_average(model, learnt.courses))
        if crowd.floats != before.crowd.floats:  # what was measured before says little of those that have moved
            learnt = replace(learnt, changed_s=snapshot.steady_s)
        pinning = False if crowd.floats else step_goals(before.ladder, snapshot).pinning
        pinned = snapshot.host.pinning if pinning is None else pinning
        shared = not pinned or len(usable_cpus(snapshot)) == 1
        learnt = _observed(model, learnt, snapshot)
        weighed = share_pcpus(snapshot)
        now = _next(model, learnt, snapshot.steady_s) if weighed else _without(learnt)
        may = shared and before.ladder.may_have_room(snapshot.steady_s)
        room = _room(model, snapshot, before, fits.uses, may=may)
        left = before.room.pcpus and enforced(batch_vms(snapshot))
        now = replace(now, room=room, before_room=before.before_room if left else now.courses, crowd=crowd)
        now = climbed(snapshot, model, before, now)
        goals, cpus = tuple(_goal(vm, now, scale) for vm in snapshot.vms), tuple(room_goals(now.room, snapshot))
        steps = step_goals(now.ladder, snapshot)
        apps = {app.name: app for app in model.applications}
        decided = Decided(now, scale, apps, {goal.vm for goal in cpus}, shared, weighed)
        return Decision(
            weights=goals,
            memory=now,
            notes=(*_notes(now), *migration_notes(now.ladder, snapshot.steady_s)),
            idle=steps.idle,
            cpus=with_siblings(now.ladder, snapshot, cpus),
            quotas=(*steps.quotas, *now.experiments.goals),
            ways=steps.ways,
            pinning=False if crowd.floats else steps.pinning,
            explanations=tuple(explain(snapshot, decided)),
            bandwidths=steps.bandwidths if snapshot.memory_limits else None,
            resources=tuple(resource_goals(now.ladder, snapshot)),
            warps=steps.warps,
            on_trial=now.trial is not None or now.ladder.trial is not None or now.experiments.running is not None,
        )

    def keep(self, memory: Memory) -> str:
        """See ``RememberingPolicy``."""
        return kept_text(memory) if isinstance(memory, AutoMemory) else ""

    def recall(self, text: str, now_s: float) -> Memory:
        """See ``RememberingPolicy``."""
        return recalled(text, now_s)


def _until_now(memory: AutoMemory, snapshot: Snapshot) -> AutoMemory:
    """Without what a pause has cut off: what happened in it is nobody's merit or harm."""
    now_s, longest_s = snapshot.steady_s, max(PAUSED_S, 3 * snapshot.interval_s)
    paused = memory.decided_s is not None and now_s - memory.decided_s > longest_s
    return resumed(memory, now_s) if paused else memory


def _room(model: HostModel, snapshot: Snapshot, before: AutoMemory, uses: Mapping[str, VmUse], *, may: bool) -> Room:
    """Room as of now: as it is while a step is on trial, so that nothing else changes meanwhile."""
    at_risk = any(app.at_risk for app in model.applications)
    violated = any(app.at_risk and app.log_miss > 0 for app in model.applications)
    waits = any(waits_materially(snapshot, uses, app.name) for app in model.applications if app.at_risk)
    on_trial = before.ladder.trial is not None or before.experiments.running is not None
    return next_room(before.room, snapshot, at_risk=at_risk, violated=violated, waits=waits, may=may, stays=on_trial)


def _is_at_risk_on_average(model: HostModel, courses: Courses) -> bool:
    return any(courses[app.name] > math.log(AT_RISK) for app in model.applications if not app.over)


def _of_slas(memory: AutoMemory, slas: Mapping[str, Sla]) -> AutoMemory:
    """Without courses of applications whose SLA is another one now: they are parts of its target before."""
    changed = {name for name, sla in memory.slas.items() if slas[name] != sla}
    if not changed:
        return memory

    def of_others(values: Mapping[str, float]) -> dict[str, float]:
        return {name: value for name, value in values.items() if name not in changed}

    return replace(
        memory,
        fits=replace(memory.fits, applications=_of_percentiles(memory, slas)),
        courses=of_others(memory.courses),
        trial=memory.trial and replace(memory.trial, before=of_others(memory.trial.before)),
        usual=of_others(memory.usual),
        before_levels=of_others(memory.before_levels),
        before_room=of_others(memory.before_room),
    )


def _of_percentiles(memory: AutoMemory, slas: Mapping[str, Sla]) -> dict[str, AppFit]:
    """What was learnt of applications; of another percentile nothing is known yet."""
    return {
        name: replace(fit, log_ratio=None)
        if name in memory.slas and memory.slas[name].percentile != slas[name].percentile
        else fit
        for name, fit in memory.fits.applications.items()
    }


def _courses(model: HostModel, before: Courses) -> dict[str, float]:
    return {app.name: average(before.get(app.name), app.log_miss, COURSE_SMOOTHING) for app in model.applications}


def _next(model: HostModel, now: AutoMemory, steady_s: float) -> AutoMemory:
    """The levels for the next interval: as they are, others to try, or none."""
    now = _repaid(model, with_credit(model, now, steady_s), steady_s)
    if now.trial and steady_s - now.trial.since_s >= TRIAL_S:
        shown = SHOWN_LENT if now.lenders == now.levels.keys() else SHOWN
        if not helped(now.trial.before, now.courses, shown):
            return _taken_back(now, steady_s)
        now = replace(now, trial=None)
    if steady_s - now.changed_s < HOLD_S:
        return now
    if not now.levels and not _misses(model):
        return now
    lowerable = [app for app in model.applications if _may_be_lowered(app, now, steady_s)]
    worst = sorted(lowerable, key=lambda app: (app.name not in now.levels, -app.log_miss, app.name))
    free = frozenset(app.name for app in worst[:MOST_FREE])
    if now.lenders:
        return _lending(model, now, free, steady_s)
    levels = best_levels(model, now.levels, free)
    if not levels and not now.levels:
        return _lending(model, now, frozenset(), steady_s)
    return _changed(model, now, levels, steady_s)


def _lending(model: HostModel, now: AutoMemory, free: frozenset[str], steady_s: float) -> AutoMemory:
    """With levels of applications that meet their targets, and of those that are ``free`` anyway."""
    lenders = frozenset(name for name in willing(model, now, steady_s) if not _is_cooling(name, now, steady_s)) - free
    if not lenders:
        return now
    anchored = model.anchored(now.levels)
    return _changed(model, now, best_levels(anchored, now.levels, free | lenders, lenders), steady_s, lenders)


def _changed(
    model: HostModel, now: AutoMemory, levels: Levels, steady_s: float, lenders: frozenset[str] = frozenset()
) -> AutoMemory:
    if levels == now.levels or (levels and not _saves(model, levels, now.courses)):
        return now
    lenders = lenders.intersection(levels)
    return _begun(model, replace(now, levels=levels, lenders=lenders, changed_s=steady_s), steady_s)


def _repaid(model: HostModel, now: AutoMemory, steady_s: float) -> AutoMemory:
    """Without levels of lenders, where one of them comes too near to its target; that one does not lend for a while."""
    short = short_lenders(model, now.lenders, now.courses, now.saved)
    if not short:
        return now
    levels = {name: level for name, level in now.levels.items() if name not in now.lenders}
    trial = now.trial if levels else None
    cooling = _cooled(now, short, steady_s)
    return replace(now, levels=levels, lenders=frozenset(), changed_s=steady_s, trial=trial, cooling=cooling)


def _without(now: AutoMemory) -> AutoMemory:
    return replace(now, levels={}, lenders=frozenset(), trial=None)


def _saves(model: HostModel, levels: Levels, courses: Courses) -> bool:
    """Whether somebody is at risk now, or was on average, who is not lowered: with nobody to save levels only harm."""
    others = [app for app in model.applications if app.name not in levels and not app.over]
    return any(app.at_risk or courses[app.name] > math.log(AT_RISK) for app in others)


def _begun(model: HostModel, now: AutoMemory, steady_s: float) -> AutoMemory:
    """With a trial of its levels that begins now."""
    to_save = {
        app.name: now.courses[app.name]
        for app in model.applications
        if app.name not in now.levels and now.courses[app.name] > math.log(AT_RISK)
    }
    return replace(now, trial=Trial(steady_s, to_save) if now.levels else None, before_levels=now.courses)


def _observed(model: HostModel, now: AutoMemory, snapshot: Snapshot) -> AutoMemory:
    """Where levels are not written, because of mode observe, their trial begins with the first that is."""
    lowered = [vm for vm in snapshot.vms if vm.application in now.levels]
    if not lowered or enforced(lowered):
        return now
    return _begun(model, now, snapshot.steady_s)


def _may_be_lowered(app: AppModel, now: AutoMemory, steady_s: float) -> bool:
    if app.name in now.lenders or _is_cooling(app.name, now, steady_s):
        return False
    return app.name in now.levels or app.over or (app.log_miss > 0 and _violates_often(app, now))


def _violates_often(app: AppModel, now: AutoMemory) -> bool:
    """Whether it violates its SLA on average or again and again: lowered for one by chance it would violate many."""
    return now.courses[app.name] > 0 or now.usual.get(app.name, 0.0) > OFTEN


def _is_cooling(application: str, now: AutoMemory, steady_s: float) -> bool:
    cooling = now.cooling.get(application)
    return cooling is not None and steady_s < cooling.until_s


def helped(before: Courses, after: Courses, shown: float = SHOWN) -> bool:
    """Whether those to be saved do better by more than chance: the mean of ln(percentile / target) before and after.

    A one-sided test of two means with a known variance, ``shown`` standard errors. With no one to compare it passes.
    """
    both = [name for name in before if name in after]
    if not both:
        return True
    gain = sum(before[name] - after[name] for name in both) / len(both)
    return gain > shown * SPREAD * math.sqrt(2 / COURSE_INTERVALS / len(both))


def _taken_back(now: AutoMemory, steady_s: float) -> AutoMemory:
    before = now.trial.before if now.trial else {}
    after = {name: course for name, course in now.courses.items() if name in before}
    taken_back = TakenBack(now.levels, steady_s, before, after) if now.levels else now.taken_back
    cooling = _cooled(now, now.levels, steady_s)
    return replace(_without(now), changed_s=steady_s, cooling=cooling, taken_back=taken_back)


def _cooled(now: AutoMemory, names: Iterable[str], steady_s: float) -> dict[str, Cooling]:
    """All that are not lowered for a while, these among them: twice as long each time."""
    cooling = dict(now.cooling)
    for name in names:
        times = cooling[name].times + 1 if name in cooling else 1
        length_s = min(COOL_DOWN_S * 2 ** min(times - 1, _MOST_DOUBLINGS), LONGEST_COOL_DOWN_S)
        cooling[name] = Cooling(steady_s + length_s, times)
    return cooling


def best_levels(
    model: HostModel, levels: Levels, free: frozenset[str], lenders: frozenset[str] = frozenset()
) -> Levels:
    """The levels to have: those in force, or others that are predicted to save enough. ``free`` may be lowered.

    ``lenders`` of them only as far as they are predicted to stay below their targets.
    """
    if not levels and not _misses(model):
        return levels
    in_force, without = model.violated(levels), model.violated({})
    if levels and without <= in_force:
        return {}
    best: Levels = {}
    best_cost = without
    while True:
        candidates = [
            (model.violated(other) + SIMPLER * sum(other.values()), other)
            for other in _neighbours(best, free)
            if tolerable(model, other, lenders)
        ]
        cost, other = min(candidates, key=itemgetter(0), default=(math.inf, best))
        if cost >= best_cost - SIMPLER / 2:
            break
        best, best_cost = other, cost
    return best if best_cost < in_force - (SWAP if levels else WORTH) else levels


def _misses(model: HostModel) -> bool:
    """Whether any percentile is above the part of its target from which on an SLA is at risk."""
    return any(app.log_miss > math.log(AT_RISK) for app in model.applications)


def _neighbours(levels: Levels, free: frozenset[str]) -> Iterator[dict[str, int]]:
    for name in sorted(free):
        for other in range(LOWEST + 1):
            if other != levels.get(name, 0):
                yield {app: level for app, level in {**levels, name: other}.items() if level}


def _goal(vm: VmView, now: AutoMemory, scale: WeightScale) -> WeightGoal:
    if vm.spec.weight is not None:
        return WeightGoal(vm.name, vm.spec.weight, "auto: weight registered for this VM")
    if not vm.critical:
        return WeightGoal(vm.name, scale.batch, "auto: batch VM")
    level = now.levels.get(vm.application or "", 0)
    if not level:
        return WeightGoal(vm.name, scale.critical, "auto: critical VM")
    state = "on trial" if now.trial else "kept"
    has = "it is far below its target" if vm.application in now.lenders else "its SLA is violated anyway"
    why = f"auto: {has}; with a {STEP**level}th of the weight others are predicted to meet theirs"
    return WeightGoal(vm.name, weight_at(level, scale), f"{why} ({state})")


def _notes(now: AutoMemory) -> tuple[Note, ...]:
    return tuple(
        Note(name, f"its SLA cannot be met beside the others now: it has a {STEP**level}th of their weight")
        for name, level in sorted(now.levels.items())
        if name not in now.lenders
    )


POLICY = Auto()
