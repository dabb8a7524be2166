"""The ladder of `auto` on a host: what is seen for it, and when it may go on beside weights and room."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

from manager.model.decision import Note, Snapshot
from policies.auto_candidates import LEAST_WAIT, candidates, most_waiting
from policies.auto_experiment import next_experiments
from policies.auto_memory import AutoMemory
from policies.auto_model import HostModel
from policies.auto_resources import allowed_steps, resource_candidates
from policies.auto_siblings import sibling_candidates
from policies.auto_steps import LadderStep, StepCandidate, StepKind, StepsMemory, StepsMoment
from policies.auto_trials import SETTLE_S, next_steps, with_room_trial
from policies.cores import Sampling, batch_vms, enforced, managed, sample

ROOM_TRIAL_S = 120.0
"""Room that does not suffice for so long may be taken off on trial."""
PROPOSED_S = 300.0
"""Migration is proposed when nothing was left to try for so long."""
ROOM_GAIN = 0.2
"""What room is taken to bring."""


def climbed(snapshot: Snapshot, model: HostModel, before: AutoMemory, now: AutoMemory) -> AutoMemory:
    """With the ladder as of now. ``before``: the decision before; ``now``: this one, with its levels and room."""
    same_slas = before.slas.items() <= now.slas.items()  # else samples of before are of something else
    settled = now.levels == before.levels and bool(now.room.pcpus) == bool(before.room.pcpus) and same_slas
    samplings, samples = _sampled(snapshot, before.samplings)
    counting = {app.name for app in model.applications if not app.over}
    ladder, running = allowed_steps(before.ladder, snapshot), before.experiments.running is not None
    moment = StepsMoment(
        snapshot.steady_s,
        {name: value for name, value in samples.items() if name in counting},
        {app.name: app.arrivals_rps for app in model.applications},
        {app.name: app.log_miss for app in model.applications if app.at_risk},
        tuple(_candidates(snapshot, model, now)),
        frozenset(vm.name for vm in managed(snapshot)) | {view.application.name for view in snapshot.applications},
        frozenset(vm.name for vm in batch_vms(snapshot)),
        may_begin=now.trial is None and settled and not snapshot.ways_trial and not running,
        settled=settled and not running,
        interrupts=now.levels != before.levels or not same_slas,
        acts=enforced(snapshot.vms),
    )
    after = next_steps(ladder, moment)
    room = _room_candidate(now, after, moment, snapshot)
    if room is not None:
        after = with_room_trial(after, moment, room)
    if after.changed_s != ladder.changed_s or not (settled or after.trial):
        samplings = {name: each.restarted(snapshot.steady_s + SETTLE_S) for name, each in samplings.items()}
    experiments = next_experiments(before.experiments, after, moment, snapshot, settled=settled)
    return replace(now, ladder=after, samplings=samplings, experiments=experiments)


def _candidates(snapshot: Snapshot, model: HostModel, now: AutoMemory) -> Iterator[StepCandidate]:
    """What may be tried; no pins while there are levels, which VMs must share pCPUs for."""
    findings = now.experiments.shown
    for each in candidates(snapshot, model.applications, now.fits.uses, now.ladder.in_force, findings):
        if each.step.kind is not StepKind.PIN or not now.levels:
            yield each
    yield from sibling_candidates(snapshot, model.applications, now.ladder.in_force)
    yield from resource_candidates(snapshot, model.applications, now.ladder.in_force)


def _sampled(snapshot: Snapshot, before: Mapping[str, Sampling]) -> tuple[dict[str, Sampling], dict[str, float]]:
    """The samples of all applications with an SLA, and ln(percentile / target) of those that are new."""
    samplings: dict[str, Sampling] = {}
    new: dict[str, float] = {}
    for view in snapshot.applications:
        name, sla = view.application.name, view.application.sla
        if sla is None:
            continue
        earlier = before.get(name)
        samplings[name] = sampling = sample(view, sla, snapshot, earlier)
        if sampling.number > (earlier.number if earlier else 0):
            new[name] = math.log(max(sampling.latencies_ms[-1], 1e-6) / sla.response_time_ms)
    return samplings, new


def _room_candidate(
    now: AutoMemory, ladder: StepsMemory, moment: StepsMoment, snapshot: Snapshot
) -> StepCandidate | None:
    """Room, for the application that is most at risk, where nobody at risk waits for pCPUs: is it of use?"""
    room = now.room
    if not room.pcpus or moment.now_s - room.began_s < ROOM_TRIAL_S or ladder.trial is not None or not moment.at_risk:
        return None
    if any(most_waiting(snapshot, now.fits.uses, name)[1] >= LEAST_WAIT for name in moment.at_risk):
        return None
    worst = max(sorted(moment.at_risk), key=lambda name: moment.at_risk[name])
    step = LadderStep(StepKind.ROOM, "", 1.0, worst)
    return StepCandidate(step, ROOM_GAIN, room.lost, 0.0, "room does not suffice")


def migration_notes(ladder: StepsMemory, now_s: float) -> Iterator[Note]:
    """The last step: for applications for which nothing is left to try here for long."""
    for name, each in sorted(ladder.exhausted.items()):
        if now_s - each.since_s >= PROPOSED_S:
            yield Note(name, f"no step on this host is left that may help it ({each.why}): migrate one of the VMs")
