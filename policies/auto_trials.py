"""How the ladder of `auto` goes on: one step at a time is tried, judged, kept or taken back, and taken off again.

While an SLA stays violated or at risk although weights and room are as they should be, the step that is predicted to
gain most for what it costs is tried. Its trial ends as soon as a sequential test says that it helped or that somebody
was harmed (``policies.auto_verdict``), and after MOST_TRIAL_S in any case. What did not help is taken back and not
tried again for a time that doubles. With slack for long the dearest step is taken off, also on trial.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean

from policies.auto_model import AT_RISK
from policies.auto_steps import (
    CALM_S,
    HOLDING_BACK,
    Exhausted,
    LadderStep,
    Samples,
    StepCandidate,
    StepCooling,
    StepEnd,
    StepInForce,
    StepKind,
    StepsMemory,
    StepsMoment,
    StepTakenBack,
    StepTrial,
)
from policies.auto_verdict import FEWEST, compare, since_last_change

BEFORE_SAMPLES = 6
"""So many samples there are before a step at least, with weights, room and steps as they are."""
MOST_SAMPLES = 12
"""So many are kept of before."""
SETTLE_S = 10.0
"""After a change samples do not count for so long: what had waited before is answered late, whatever is done."""
MOST_TRIAL_S, LONGEST_TRIAL_S = 150.0, 300.0
"""A trial ends without a verdict after so long; the longer time is for one that looks like an effect."""
OFF_TRIAL_S = 60.0
"""A step that was taken off is gone when the SLAs hold for so long."""
OFF_SAMPLES = 3
REST_S = 30.0
"""For so long nothing is tried after a trial."""
COOL_DOWN_S, LONGEST_COOL_DOWN_S = 300.0, 4 * 3600.0
INTERRUPTED_S = 60.0
SLACK = 0.6
"""All percentiles below this part of their targets for CALM_S: a step is taken off."""
UNKNOWN_S = 120.0
"""A step goes when the application that it is for has had no response times for so long."""
SAME_LOAD = 0.85
"""Nothing is said to have helped while some application has fewer arrivals than this part of those before."""
LEAST_WORTH = 0.15
"""Predicted gain for what it costs from which on a step is tried."""
LEAST_GAIN = 0.05
"""Predicted fall of ln(percentile / target) from which on a step is tried,"""
LEAST_PART = 0.15
"""and as a part of what it is above that at which an SLA is at risk."""
MOST_BATCH_COST = 0.5
"""Steps in force cost batch VMs no more than this part of their progress, as predicted."""
TOLERATED = 0.05
"""Rise of ln(percentile / target) that is none."""
FIRST_BUDGET_S, ERROR_BUDGET = 120.0, 0.01
"""Trials may make things worse for FIRST_BUDGET_S, and this part of the time: the error budget of an SLA of 99 %."""
_MOST_DOUBLINGS = 16
MOST_TAKEN_BACK = 3
"""So many are remembered for the explanation."""


def next_steps(memory: StepsMemory, moment: StepsMoment) -> StepsMemory:
    """What is remembered after this interval; its ``steps`` are to be in force."""
    now = _noted(_without_gone(memory, moment), moment)
    if now.trial is not None:
        return _judged(now, now.trial, moment)
    now = _calm(now, moment)
    open_ = _open(now, moment)
    uncaused = frozenset(moment.at_risk) - {each.step.application for each in moment.candidates}
    now = replace(now, upcoming=_best(open_), exhausted=_exhausted(now, moment, open_), uncaused=uncaused)
    rested = moment.now_s - now.changed_s >= REST_S
    if not (rested and moment.acts and moment.may_begin and _has_budget(now, moment)):
        return now
    best = _best([each for each in open_ if is_firm(now, each.step.application)])
    if best is not None:
        replaces = next((each for each in now.in_force if each.step.knob == best.step.knob), None)
        return _changed(now, moment, StepTrial(best, moment.now_s, now.samples, now.rates_rps, replaces))
    off = _to_take_off(now, moment)
    if off is None:
        return now
    at_risk = bool(moment.at_risk)
    trial = StepTrial(off.candidate, moment.now_s, now.samples, now.rates_rps, off, off=True, at_risk=at_risk)
    return _changed(now, moment, trial)


def with_room_trial(memory: StepsMemory, moment: StepsMoment, candidate: StepCandidate) -> StepsMemory:
    """Take room off on trial, where nothing else is left to try and it does not suffice."""
    rested = moment.now_s - memory.changed_s >= REST_S and memory.trial is None and memory.upcoming is None
    ready = rested and moment.acts and moment.may_begin and _has_budget(memory, moment)
    if not ready or not is_firm(memory, candidate.step.application) or _is_cooling(memory, candidate, moment):
        return memory
    return _changed(memory, moment, StepTrial(candidate, moment.now_s, memory.samples, memory.rates_rps, off=True))


def _changed(memory: StepsMemory, moment: StepsMoment, trial: StepTrial | None) -> StepsMemory:
    """Another setting from now on, whose effect shows in new samples alone."""
    return replace(memory, trial=trial, samples={}, rates_rps={}, changed_s=moment.now_s, calm_s=None, upcoming=None)


def _without_gone(memory: StepsMemory, moment: StepsMoment) -> StepsMemory:
    """Without steps for applications that are gone or silent, or against VMs that are gone, or not batch any more."""
    known = {name: at_s for name, at_s in memory.known_s.items() if name in moment.there}
    known |= dict.fromkeys(moment.samples, moment.now_s)
    began_s = moment.now_s if memory.began_s is None else memory.began_s
    cooling = {name: each for name, each in memory.cooling.items() if moment.now_s < each.until_s + LONGEST_COOL_DOWN_S}
    brought = {name: fall for name, fall in memory.brought.items() if name.partition("/")[0] in moment.there}
    memory = replace(memory, known_s=known, began_s=began_s, cooling=cooling, brought=brought)

    def stays(step: LadderStep) -> bool:
        heard_s = known.get(step.application, -math.inf)
        there = moment.batch if step.kind in HOLDING_BACK else moment.there
        return moment.now_s - heard_s <= UNKNOWN_S and (not step.target or step.target in there)

    in_force = tuple(each for each in memory.in_force if stays(each.step))
    trial = memory.trial if memory.trial is None or stays(memory.trial.step) else None
    if len(in_force) == len(memory.in_force) and trial is memory.trial:
        return memory
    return _changed(replace(memory, in_force=in_force), moment, trial)


def _noted(memory: StepsMemory, moment: StepsMoment) -> StepsMemory:
    """With this interval's samples; none of before where weights or room changed outside a trial."""
    if not moment.settled and memory.trial is None:
        return replace(memory, samples={}, rates_rps={})
    if moment.now_s - memory.changed_s < SETTLE_S:
        return memory
    most = 0 if memory.trial else MOST_SAMPLES
    rates_rps = {name: moment.rates_rps[name] for name in moment.samples if name in moment.rates_rps}
    noted = replace(
        memory,
        samples=_with_newest(memory.samples, moment.samples, most),
        rates_rps=_with_newest(memory.rates_rps, rates_rps, most),
    )
    return noted if memory.trial or not moment.samples else _since_last_change(noted)


def _since_last_change(memory: StepsMemory) -> StepsMemory:
    """Without samples of another state: those of before a cause began would make it the step's harm."""
    samples = {name: since_last_change(values) for name, values in memory.samples.items()}
    rates_rps = {name: values[-len(samples[name]) :] for name, values in memory.rates_rps.items()}
    return replace(memory, samples=samples, rates_rps=rates_rps)


def _with_newest(samples: Samples, newest: Mapping[str, float], most: int) -> Samples:
    """With one more of each; the last ``most``, 0: all."""
    return {**samples, **{name: (*samples.get(name, ()), value)[-most:] for name, value in newest.items()}}


def is_firm(memory: StepsMemory, application: str) -> bool:
    """Whether its SLA stayed violated or at risk, by as many samples as a trial needs of before.

    The newest ones are all at risk: by fewer, a cause that begins is not told from chance (``since_last_change``).
    """
    samples = memory.samples.get(application, ())
    enough = len(samples) >= BEFORE_SAMPLES and fmean(samples) > math.log(AT_RISK)
    return enough and min(samples[-FEWEST:]) > math.log(AT_RISK)


def _has_budget(memory: StepsMemory, moment: StepsMoment) -> bool:
    elapsed_s = moment.now_s - (moment.now_s if memory.began_s is None else memory.began_s)
    return memory.worse_s <= FIRST_BUDGET_S + ERROR_BUDGET * elapsed_s


def _is_cooling(memory: StepsMemory, candidate: StepCandidate, moment: StepsMoment) -> bool:
    cooling = memory.cooling.get(candidate.step.name)
    return cooling is not None and moment.now_s < cooling.until_s


def _best(open_: Sequence[StepCandidate]) -> StepCandidate | None:
    """What gains most for its cost."""
    return max(open_, key=lambda each: (each.worth, each.step.name), default=None)


def _open(memory: StepsMemory, moment: StepsMoment) -> list[StepCandidate]:
    """What may be tried for those at risk, with gains as far as they are known."""
    costs = {each.step.knob: each.candidate.batch_cost for each in memory.in_force}
    return [
        learnt
        for each in moment.candidates
        if each.step.application in moment.at_risk
        and not _is_cooling(memory, each, moment)
        and (learnt := _learnt(memory, each)).gain >= _least_gain(memory, moment, each.step.application)
        and learnt.worth >= LEAST_WORTH
        and sum({**costs, each.step.knob: each.batch_cost}.values()) <= MOST_BATCH_COST
    ]


def _least_gain(memory: StepsMemory, moment: StepsMoment, application: str) -> float:
    """What is not a part of what is missing is not worth a trial."""
    samples = memory.samples.get(application)
    missing = (fmean(samples) if samples else moment.at_risk[application]) - math.log(AT_RISK)
    return max(LEAST_GAIN, LEAST_PART * missing)


def _learnt(memory: StepsMemory, candidate: StepCandidate) -> StepCandidate:
    """With the mean of what is predicted and what the like of it brought, where that is known."""
    brought = memory.brought.get(candidate.step.learnt_as)
    return candidate if brought is None else replace(candidate, gain=(candidate.gain + brought) / 2)


def _exhausted(memory: StepsMemory, moment: StepsMoment, open_: Sequence[StepCandidate]) -> dict[str, Exhausted]:
    """Applications whose SLA stays violated though nothing that is predicted to help is left to try."""
    helped = {each.step.application for each in open_}
    found: dict[str, Exhausted] = {}
    for each in reversed(moment.candidates):
        name, samples = each.step.application, memory.samples.get(each.step.application, ())
        since_s = memory.exhausted[name].since_s if name in memory.exhausted else moment.now_s
        if name not in helped and is_firm(memory, name) and fmean(samples) > 0:
            found[name] = Exhausted(each.why, since_s)
    for name, before in memory.exhausted.items():
        samples = memory.samples.get(name, ())
        recovered = len(samples) >= BEFORE_SAMPLES and fmean(samples) <= 0
        if name in moment.there and name not in helped and not recovered:
            found.setdefault(name, before)
    return found


def _calm(memory: StepsMemory, moment: StepsMoment) -> StepsMemory:
    """Since when all have slack; what is not known now is as it was."""
    if moment.at_risk or any(value > math.log(SLACK) for value in moment.samples.values()):
        return replace(memory, calm_s=None)
    if memory.calm_s is None and moment.samples:
        return replace(memory, calm_s=moment.now_s)
    return memory


def _to_take_off(memory: StepsMemory, moment: StepsMoment) -> StepInForce | None:
    """The dearest after long slack, else one that is due to be tested while nobody is at risk."""
    dearest = sorted(
        memory.in_force, key=lambda each: (-each.candidate.batch_cost, -each.candidate.others_cost, each.step.name)
    )
    if memory.calm_s is not None and moment.now_s - memory.calm_s >= CALM_S:
        return next((each for each in dearest if moment.now_s >= each.slack_s), None)
    if moment.at_risk:
        return None
    return next((each for each in dearest if moment.now_s >= each.retest_s), None)


def _judged(memory: StepsMemory, trial: StepTrial, moment: StepsMoment) -> StepsMemory:
    """The trial goes on, or ends with a verdict."""
    if moment.interrupts or not moment.acts:
        return _ended(memory, trial, moment, StepEnd.INTERRUPTED)
    harmed = _harmed(memory, trial)
    if trial.off:
        return _judged_off(memory, trial, moment, harmed)
    if harmed:
        worse_s = memory.worse_s + moment.now_s - trial.since_s
        return _ended(replace(memory, worse_s=worse_s), trial, moment, StepEnd.HARMED, harmed)
    name = trial.step.application
    compared = compare(trial.before.get(name, ()), memory.samples.get(name, ()))
    if compared is not None and compared.helped and _same_load(memory, trial) and not _violates_anew(memory, trial):
        return _kept(memory, trial, moment, -compared.change)
    most_s = LONGEST_TRIAL_S if compared is not None and compared.promising else MOST_TRIAL_S
    if moment.now_s - trial.since_s >= most_s or (compared is not None and compared.futile):
        return _ended(memory, trial, moment, StepEnd.NO_EFFECT, name)
    return memory


def _harmed(memory: StepsMemory, trial: StepTrial) -> str:
    """Who is at risk and worse off by more than chance, empty: nobody."""
    for name, before in sorted(trial.before.items()):
        under = memory.samples.get(name, ())
        compared = compare(before, under)
        if compared is not None and compared.harmed and fmean(under) > math.log(AT_RISK):
            return name
    return ""


def _same_load(memory: StepsMemory, trial: StepTrial) -> bool:
    """Whether no application has clearly less to do than before: that helps, too."""
    both = [(before, memory.rates_rps.get(name, ())) for name, before in trial.before_rps.items()]
    return all(min(fmean(under), under[-1]) >= SAME_LOAD * fmean(before) for before, under in both if before and under)


def _violates_anew(memory: StepsMemory, trial: StepTrial) -> bool:
    """Whether somebody violates its SLA on average who did not before: that is not kept, be it by chance."""
    return any(
        fmean(before) <= 0 < fmean(memory.samples[name])
        for name, before in trial.before.items()
        if before and memory.samples.get(name)
    )


def _judged_off(memory: StepsMemory, trial: StepTrial, moment: StepsMoment, harmed: str) -> StepsMemory:
    """Back as soon as somebody is worse off, or at risk who was not; gone after the trial."""
    at_risk = [
        name
        for name, under in memory.samples.items()
        if len(under) >= 2 and fmean(under[-2:]) > math.log(AT_RISK) and not trial.at_risk
    ]
    if harmed or at_risk:
        worse_s = memory.worse_s + moment.now_s - trial.since_s
        return _returned(replace(memory, worse_s=worse_s), trial, moment)
    name = trial.step.application
    samples = memory.samples.get(name, ())
    if moment.now_s - trial.since_s < OFF_TRIAL_S or len(samples) < OFF_SAMPLES:
        return memory if moment.now_s - trial.since_s < MOST_TRIAL_S else _returned(memory, trial, moment)
    before = trial.before.get(name, ())
    if trial.at_risk and before and fmean(samples) - fmean(before) > TOLERATED:
        return _returned(memory, trial, moment)
    in_force = tuple(each for each in memory.in_force if each.step.knob != trial.step.knob)
    now = replace(memory, in_force=in_force)
    if trial.step.kind is StepKind.ROOM:
        now = _cooled(now, trial.step, moment)
        now = replace(now, no_room_s=now.cooling[trial.step.name].until_s)
    return _changed(now, moment, None)


def _returned(memory: StepsMemory, trial: StepTrial, moment: StepsMoment) -> StepsMemory:
    """In force again, and for longer."""
    if trial.replaces is None:
        return _changed(_cooled(memory, trial.step, moment), moment, None)
    again = replace(trial.replaces, again_s=moment.now_s, returned=trial.replaces.returned + 1)
    others = (each for each in memory.in_force if each.step.knob != trial.step.knob)
    return _changed(replace(memory, in_force=(*others, again)), moment, None)


def _kept(memory: StepsMemory, trial: StepTrial, moment: StepsMoment, brought: float) -> StepsMemory:
    step, before = trial.step, trial.replaces
    predicted = trial.candidate.gain + (before.predicted if before else 0.0)
    in_all = brought + (before.brought if before else 0.0)
    kept = StepInForce(trial.candidate, moment.now_s, in_all, moment.now_s, predicted=predicted)
    others = tuple(each for each in memory.in_force if each.step.knob != step.knob)
    cooling = {name: each for name, each in memory.cooling.items() if name != step.name}
    known = {**memory.brought, step.learnt_as: brought}
    return _changed(replace(memory, in_force=(*others, kept), cooling=cooling, brought=known), moment, None)


def _cooled(memory: StepsMemory, step: LadderStep, moment: StepsMoment) -> StepsMemory:
    times = memory.cooling[step.name].times + 1 if step.name in memory.cooling else 1
    length_s = min(COOL_DOWN_S * 2 ** min(times - 1, _MOST_DOUBLINGS), LONGEST_COOL_DOWN_S)
    return replace(memory, cooling={**memory.cooling, step.name: StepCooling(moment.now_s + length_s, times)})


def _ended(memory: StepsMemory, trial: StepTrial, moment: StepsMoment, end: StepEnd, seen_at: str = "") -> StepsMemory:
    """Without the step: what was in force before is again."""
    if trial.off:
        return _changed(memory, moment, None)
    if end is StepEnd.INTERRUPTED:
        times = memory.cooling[trial.step.name].times if trial.step.name in memory.cooling else 0
        cooling = {**memory.cooling, trial.step.name: StepCooling(moment.now_s + INTERRUPTED_S, times)}
        return _changed(replace(memory, cooling=cooling), moment, None)
    memory = _cooled(memory, trial.step, moment)
    compared = compare(trial.before.get(seen_at, ()), memory.samples.get(seen_at, ()))
    change = compared.change if compared else None
    if seen_at == trial.step.application and change is not None:
        memory = replace(memory, brought={**memory.brought, trial.step.learnt_as: -change})
    last = StepTakenBack(trial.step, moment.now_s, end, change, seen_at, trial.candidate.gain)
    return _changed(replace(memory, taken_back=(*memory.taken_back, last)[-MOST_TAKEN_BACK:]), moment, None)
