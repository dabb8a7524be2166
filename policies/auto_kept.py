"""What `auto` keeps when the agent ends: steps in force, verdicts, and how much of the error budget is spent.

What is measured anew within minutes, such as averages and samples, is not kept. A trial that the end of the agent cut
off counts as one that made things worse: an agent that is killed in each of its trials soon begins none. An experiment
that was cut off is over; the next for its application waits as long as after a whole one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter

from manager.control.hold_experiment import HoldFinding
from policies.auto_experiment import Experiments
from policies.auto_memory import AutoMemory, Cooling, TakenBack
from policies.auto_steps import StepCooling, StepInForce, StepsMemory, StepTakenBack, StepTrial
from policies.auto_trials import INTERRUPTED_S, LONGEST_COOL_DOWN_S, LONGEST_TRIAL_S


@dataclass(frozen=True, slots=True)
class AutoKept:
    """See the module, and ``StepsMemory`` and ``AutoMemory`` for what the fields are."""

    in_force: tuple[StepInForce, ...] = ()
    trial: StepTrial | None = None
    cooling: Mapping[str, StepCooling] = field(default_factory=dict)
    brought: Mapping[str, float] = field(default_factory=dict)
    taken_back: tuple[StepTakenBack, ...] = ()
    began_s: float | None = None
    worse_s: float = 0.0
    no_room_s: float | None = None
    levels_cooling: Mapping[str, Cooling] = field(default_factory=dict)
    levels_taken_back: TakenBack | None = None
    no_loans: Cooling | None = None
    findings: Mapping[str, HoldFinding] = field(default_factory=dict)
    experiments_cooling: Mapping[str, StepCooling] = field(default_factory=dict)


_KEPT = TypeAdapter(AutoKept)


def kept_text(memory: AutoMemory) -> str:
    """As JSON; the same text while nothing begins and nothing ends."""
    ladder = memory.ladder
    trial = ladder.trial and replace(ladder.trial, before={}, before_rps={})
    kept = AutoKept(
        ladder.in_force,
        trial,
        ladder.cooling,
        ladder.brought,
        ladder.taken_back,
        ladder.began_s,
        ladder.worse_s,
        ladder.no_room_s if math.isfinite(ladder.no_room_s) else None,
        memory.cooling,
        memory.taken_back,
        memory.no_loans if math.isfinite(memory.no_loans.until_s) else None,
        memory.experiments.findings,
        memory.experiments.cooling,
    )
    return _KEPT.dump_json(kept, exclude_defaults=True).decode()


def recalled(text: str, now_s: float) -> AutoMemory:
    """The memory that ``kept_text`` wrote, at ``now_s``. No time is in the future, whatever the clock was then.

    Raises ValueError for what is none.
    """
    kept = _KEPT.validate_json(text)
    latest_s = now_s + LONGEST_COOL_DOWN_S
    ladder = StepsMemory(
        in_force=tuple(
            replace(each, since_s=min(each.since_s, now_s), again_s=min(each.again_s, now_s)) for each in kept.in_force
        ),
        cooling={name: replace(each, until_s=min(each.until_s, latest_s)) for name, each in kept.cooling.items()},
        brought=kept.brought,
        taken_back=tuple(replace(each, at_s=min(each.at_s, now_s)) for each in kept.taken_back),
        changed_s=now_s,
        began_s=None if kept.began_s is None else min(kept.began_s, now_s),
        worse_s=kept.worse_s,
        known_s=dict.fromkeys((each.step.application for each in kept.in_force), now_s),
        no_room_s=-math.inf if kept.no_room_s is None else min(kept.no_room_s, latest_s),
    )
    if kept.trial is not None:
        ladder = _cut_off(ladder, kept.trial, now_s)
    levels_cooling = {
        name: replace(each, until_s=min(each.until_s, latest_s)) for name, each in kept.levels_cooling.items()
    }
    taken_back, no_loans = kept.levels_taken_back, kept.no_loans or AutoMemory().no_loans
    return AutoMemory(
        cooling=levels_cooling,
        no_loans=replace(no_loans, until_s=min(no_loans.until_s, latest_s)),
        taken_back=taken_back and replace(taken_back, at_s=min(taken_back.at_s, now_s)),
        ladder=ladder,
        experiments=Experiments(
            findings={name: replace(each, at_s=min(each.at_s, now_s)) for name, each in kept.findings.items()},
            cooling={
                name: replace(each, until_s=min(each.until_s, latest_s))
                for name, each in kept.experiments_cooling.items()
            },
        ),
    )


def resumed(memory: AutoMemory, now_s: float) -> AutoMemory:
    """The memory after a pause in which nothing was decided: as of an agent that starts again, but no trial harmed."""
    return recalled(kept_text(replace(memory, ladder=replace(memory.ladder, trial=None))), now_s)


def _cut_off(ladder: StepsMemory, trial: StepTrial, now_s: float) -> StepsMemory:
    """What was in force before the trial is again, and the trial may have made things worse until it was judged."""
    lasted_s = min(max(now_s - trial.since_s, 0.0), LONGEST_TRIAL_S)
    before = ladder.cooling.get(trial.step.name)
    cooled = StepCooling(now_s + INTERRUPTED_S, before.times if before else 0)
    return replace(ladder, worse_s=ladder.worse_s + lasted_s, cooling={**ladder.cooling, trial.step.name: cooled})
