"""Causes by experiment: where `auto` has nothing left to try, it finds out which batch VM slows an application.

Each suspect in turn is held back to a small quota for one turn, see ``manager.control.hold_experiment``. Who is shown
to slow it is a candidate of the ladder from then on, with what the experiment showed as the gain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from manager.control.hold_experiment import (
    MOST_SUSPECTS,
    NOBODY,
    HoldExperiment,
    HoldFinding,
    begun,
    next_turn,
)
from manager.model.decision import QuotaGoal, Snapshot, VmView
from manager.model.registration import LEAST_LIMIT_PCPUS
from manager.model.window import merge
from policies.auto_candidates import HELD_TO, driven
from policies.auto_steps import StepCooling, StepKind, StepsMemory, StepsMoment
from policies.auto_trials import is_firm
from policies.cores import closed_since, least_samples

LEAST_USE = 0.02
"""A batch VM that uses less of the host is not suspected."""
FEWEST_SUSPECTS = 2
VALID_S = 1800.0
"""A finding counts for so long: its cause may be gone."""
COOL_DOWN_S, LONGEST_COOL_DOWN_S = 1800.0, 4 * 3600.0
"""From the beginning of an experiment for an application to that of its next, doubled while none finds anybody."""
_MOST_DOUBLINGS = 8


@dataclass(frozen=True, slots=True)
class Experiments:
    """What is remembered of experiments; times are steady seconds.

    ``quotas``: to how many pCPUs each suspect of the ``running`` one is held back. ``findings`` and ``cooling`` are by
    application. ``upcoming``: the suspects of the one that would be next, for an application.
    """

    running: HoldExperiment | None = None
    quotas: Mapping[str, float] = field(default_factory=dict)
    findings: Mapping[str, HoldFinding] = field(default_factory=dict)
    cooling: Mapping[str, StepCooling] = field(default_factory=dict)
    upcoming: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def goals(self) -> tuple[QuotaGoal, ...]:
        """The quota of who is held back now."""
        if self.running is None or self.running.held == NOBODY:
            return ()
        reason = f"auto: an experiment for the SLA of {self.running.application}"
        return (QuotaGoal(self.running.held, self.quotas[self.running.held], reason),)

    @property
    def shown(self) -> dict[str, HoldFinding]:
        """By application, who was found to slow it."""
        return {name: finding for name, finding in self.findings.items() if finding.neighbour != NOBODY}


def next_experiments(
    before: Experiments, ladder: StepsMemory, moment: StepsMoment, snapshot: Snapshot, *, settled: bool
) -> Experiments:
    """As of now. One begins where an SLA stays violated, and nothing that is predicted to help is left to try.

    ``settled``: weights and room did not change since the decision before; else what is seen has two reasons, and the
    experiment ends.
    """
    now = _without_old(before, moment)
    if now.running is not None:
        if not (settled and moment.acts and moment.batch.issuperset(now.running.suspects)):
            return replace(now, running=None)
        return _continued(now, now.running, moment, snapshot)
    upcoming = {
        name: tuple(vm.name for vm in suspects)
        for name in moment.at_risk
        if name in ladder.exhausted and name not in now.findings and not _is_cooling(now, name, moment)
        if len(suspects := _suspects(snapshot, ladder)) >= FEWEST_SUSPECTS
    }
    now = replace(now, upcoming=upcoming)
    ready = ladder.trial is None and ladder.upcoming is None and moment.may_begin and moment.acts
    firm = [name for name in sorted(upcoming) if is_firm(ladder, name)]
    if not ready or not firm:
        return now
    worst = max(firm, key=lambda name: moment.at_risk[name])
    return _with_running(now, worst, _suspects(snapshot, ladder), snapshot, moment)


def _without_old(experiments: Experiments, moment: StepsMoment) -> Experiments:
    """Without findings of long ago, or about VMs that are gone, or not batch any more."""
    findings = {
        name: finding
        for name, finding in experiments.findings.items()
        if moment.now_s - finding.at_s < VALID_S
        and name in moment.there
        and (finding.neighbour == NOBODY or finding.neighbour in moment.batch)
    }
    cooling = {
        name: each
        for name, each in experiments.cooling.items()
        if moment.now_s < each.until_s + LONGEST_COOL_DOWN_S and name in moment.there
    }
    return replace(experiments, findings=findings, cooling=cooling)


def _suspects(snapshot: Snapshot, ladder: StepsMemory) -> Sequence[VmView]:
    """The batch VMs that use most, and that no step has limited."""
    limited = {step.target for step in ladder.steps if step.kind is StepKind.QUOTA}
    may = [
        vm
        for vm in driven(snapshot)
        if vm.quota_period_us is not None and vm.cpu_share >= LEAST_USE and vm.name not in limited
    ]
    return sorted(may, key=lambda vm: (-vm.cpu_share, vm.name))[:MOST_SUSPECTS]


def _is_cooling(experiments: Experiments, application: str, moment: StepsMoment) -> bool:
    cooling = experiments.cooling.get(application)
    return cooling is not None and moment.now_s < cooling.until_s


def _with_running(
    now: Experiments, application: str, suspects: Sequence[VmView], snapshot: Snapshot, moment: StepsMoment
) -> Experiments:
    """It cools down from its beginning on, so that an agent that is killed in each of them soon begins none."""
    pcpus = len(snapshot.capabilities.online_cpus)
    times = now.cooling[application].times + 1 if application in now.cooling else 1
    length_s = min(COOL_DOWN_S * 2 ** min(times - 1, _MOST_DOUBLINGS), LONGEST_COOL_DOWN_S)
    return replace(
        now,
        running=begun(application, [vm.name for vm in suspects], moment.now_s),
        quotas={vm.name: max(HELD_TO * vm.cpu_share * pcpus, LEAST_LIMIT_PCPUS) for vm in suspects},
        cooling={**now.cooling, application: StepCooling(moment.now_s + length_s, times)},
        upcoming={},
    )


def _continued(now: Experiments, running: HoldExperiment, moment: StepsMoment, snapshot: Snapshot) -> Experiments:
    after = next_turn(running, moment.now_s, _sample(running, snapshot))
    if not isinstance(after, HoldFinding):
        return replace(now, running=after)
    cooling = now.cooling
    if after.neighbour != NOBODY and after.application in cooling:
        cooling = {**cooling, after.application: replace(cooling[after.application], times=0)}
    return replace(now, running=None, findings={**now.findings, after.application: after}, cooling=cooling)


def _sample(running: HoldExperiment, snapshot: Snapshot) -> float | None:
    """ln(percentile) of the response times of this turn."""
    for view in snapshot.applications:
        sla = view.application.sla
        if view.application.name != running.application or sla is None:
            continue
        slots = closed_since(view, snapshot, running.turn_s)
        window = merge(slots) if slots else None
        if window is None or not window.has_samples(least_samples(snapshot.host.law)):
            return None
        return math.log(max(window.percentile_ms(sla.percentile) or 0.0, 1e-6))
    return None
