"""What `auto` says of its ladder: steps in force, what each brought, the trial, what was taken back, what is next."""

from __future__ import annotations

import math
from collections.abc import Iterator

from manager.model.numbers import digits, duration
from manager.model.units import percent
from policies.auto_ladder import PROPOSED_S
from policies.auto_steps import LadderStep, StepCandidate, StepEnd, StepInForce, StepKind, StepsMemory, StepTrial
from policies.auto_trials import LONGEST_TRIAL_S, MOST_TRIAL_S, OFF_TRIAL_S

_HOST_WIDE = frozenset({StepKind.IDLE, StepKind.FLOAT, StepKind.PIN, StepKind.DISK_WEIGHTS, StepKind.UPLINK_SHARES})
_ENDS = {StepEnd.NO_EFFECT: "it was not shown to help", StepEnd.HARMED: "it did harm"}


def told_steps(ladder: StepsMemory, application: str, percentile: str, now_s: float, *, acts: bool) -> Iterator[str]:
    """Sentences for an application whose SLA is about ``percentile``, as p95. ``acts``: what is decided is written."""
    if not acts:
        upcoming = ladder.upcoming
        if upcoming is not None and upcoming.step.application == application:
            yield f"In mode enforce, it would be tried whether it helps that {_words(upcoming.step)}, {_why(upcoming)}."
        return
    for kept in ladder.in_force:
        off = ladder.trial is not None and ladder.trial.off and ladder.trial.step == kept.step
        if _concerns(kept.step, application) and not off:
            yield _in_force(kept, percentile, now_s)
    if ladder.trial is not None and _concerns(ladder.trial.step, application):
        yield _trial(ladder.trial, percentile, now_s)
    yield from _taken_back(ladder, application, percentile, now_s)
    yield from _next(ladder, application, now_s)


def _concerns(step: LadderStep, application: str) -> bool:
    return step.application == application or step.kind in _HOST_WIDE


def _in_force(kept: StepInForce, percentile: str, now_s: float) -> str:
    step, cost = kept.step, kept.candidate.batch_cost
    predicted = f" ({_fall(kept.predicted)} predicted)" if kept.predicted > 0 else ""
    brought = f"that lowered {percentile} of {step.application} by {_fall(kept.brought)}{predicted}"
    costs = f", and is taken to cost batch VMs {percent(cost)} of their progress" if cost >= 0.005 else ""
    lasts = f"for {duration(round(now_s - kept.since_s))}" if now_s - kept.since_s >= 1 else "from now on"
    return f"{_capital(_words(step))} ({lasts}): {brought}{costs}."


def _trial(trial: StepTrial, percentile: str, now_s: float) -> str:
    elapsed_s = now_s - trial.since_s
    if trial.off:
        left = duration(round(max(OFF_TRIAL_S - elapsed_s, 1.0)))
        what = _words(trial.step)
        return f"It is tried to do without this: {what}. That ends in {left}, or at once where an SLA suffers."
    most_s = MOST_TRIAL_S if elapsed_s < MOST_TRIAL_S else LONGEST_TRIAL_S
    left = duration(round(max(most_s - elapsed_s, 1.0)))
    fall = f"{percentile} is predicted to fall by {_fall(trial.candidate.gain)}"
    return (
        f"On trial {_words(trial.step)}, {_why(trial.candidate)}: {fall}. It is kept once {trial.step.application} does"
        f" better by more than chance, taken back at once where it harms, else in {left}."
    )


def _taken_back(ladder: StepsMemory, application: str, percentile: str, now_s: float) -> Iterator[str]:
    """What is not tried again yet, the latest of it."""
    for last in reversed(ladder.taken_back):
        cooling = ladder.cooling.get(last.step.name)
        if last.step.application != application or cooling is None or cooling.until_s <= now_s:
            continue
        change = f"{percentile} of {last.seen_at} {_change(last.change)}" if last.change is not None else ""
        if change and last.seen_at == application and last.predicted > 0:
            change += f", where a fall by {_fall(last.predicted)} was predicted"
        seen = f"{_ENDS[last.end]}{f' ({change})' if change else ''}"
        ago = duration(round(max(now_s - last.at_s, 1.0)))
        left = duration(round(max(cooling.until_s - now_s, 1.0)))
        yield f"Taken back {ago} ago, as {seen}, and not tried again for {left}: that {_words(last.step)}."
        return


def _next(ladder: StepsMemory, application: str, now_s: float) -> Iterator[str]:
    upcoming, exhausted = ladder.upcoming, ladder.exhausted.get(application)
    if upcoming is not None and upcoming.step.application == application:
        yield f"If that stays so, it is tried next whether it helps that {_words(upcoming.step)}, {_why(upcoming)}."
    elif exhausted is not None and now_s - exhausted.since_s >= PROPOSED_S:
        yield f"Nothing is left to try on this host ({exhausted.why}): migrate one of the VMs."
    elif application in ladder.uncaused and not any(kept.step.application == application for kept in ladder.in_force):
        yield (
            "No cause is seen on this host: its VMs wait little for pCPUs, and no batch VM is known to move most of the"
            " memory traffic. Look at the application itself."
        )


def _words(step: LadderStep) -> str:
    """A clause in the present tense."""
    words = {
        StepKind.IDLE: "batch VMs are in the idle class",
        StepKind.QUOTA: f"batch VM {step.target} has a quota of {digits(step.amount)} pCPUs",
        StepKind.WAYS: f"application {step.target} has {step.amount:.0f} cache ways for itself",
        StepKind.BANDWIDTH: f"the memory bandwidth of {step.target} is limited to {percent(step.amount)}",
        StepKind.FLOAT: "critical VMs float",
        StepKind.PIN: "critical VMs are pinned",
        StepKind.SIBLINGS: f"batch VMs leave the siblings of the cores of {step.target} idle",
        StepKind.MEMORY_PROTECTION: f"the memory of {step.target} is protected",
        StepKind.MEMORY_CEILING: f"batch VM {step.target} has a ceiling of memory",
        StepKind.DISK_WEIGHTS: "critical VMs are weighted over batch VMs on disks",
        StepKind.DISK_CEILING: f"{f'batch VM {step.target}' if step.target else 'each batch VM'} may make"
        f" {step.amount:.0f} requests/s of a disk",
        StepKind.UPLINK_SHARES: "uplinks are divided, critical VMs first",
        StepKind.WARP: f"VMs of {step.target} have a warp of {step.amount / 1000:.0f} ms",
        StepKind.ROOM: "batch VMs leave pCPUs",
    }
    return words[step.kind]


def _why(candidate: StepCandidate) -> str:
    return f"as {candidate.why}"


def _fall(brought: float) -> str:
    return percent(1 - math.exp(-brought)) if brought > 0 else "nothing"


def _change(change: float) -> str:
    """Of a percentile, as a part of what it was."""
    return f"{'rose' if change > 0 else 'fell'} by {percent(abs(math.expm1(change)))}"


def _capital(text: str) -> str:
    return text[0].upper() + text[1:]
