"""What `auto` says of each application: steps in force, what they brought and cost, what was taken back, what is next.

Response times are moving averages of percentile / target. What is not written, because of mode observe, is what would
be done; nothing of it can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from manager.model.decision import Explanation, Snapshot, VmView
from manager.model.host import WeightScale
from manager.model.numbers import digits, duration
from manager.model.registration import Application, Mode
from manager.model.units import percent
from manager.model.vcpu_wait import MATERIAL
from policies.auto_candidates import most_waiting
from policies.auto_experiment_told import shown_cause, told_experiments
from policies.auto_lending import PATIENCE, SHORT
from policies.auto_memory import HOLD_S, TRIAL_S, AutoMemory, Courses
from policies.auto_model import AT_RISK, AppModel, weight_at
from policies.auto_room import AVERAGED_S, LASTING_S, MOST_LOST
from policies.auto_steps_told import told_steps
from policies.cores import batch_vms, enforced

MOST_NAMED = 3
"""Of so many applications names and response times are said at a time."""
_MOST, _LEAST = percent(MOST_LOST), percent(MOST_LOST / 2, 1)
_LASTING = duration(LASTING_S)
_MATERIAL = percent(MATERIAL)
_WAS_AT_RISK = f"an SLA was at risk in the last {_LASTING}"
_WHY = "as that is predicted to violate fewer SLAs"
_MULTIPLE = math.log(10)
"""From there on a percentile is a multiple of its target."""


@dataclass(frozen=True, slots=True)
class Decided:
    """What was decided: ``now`` is remembered. ``applications`` are those with response times, by name.

    ``left_by`` names the batch VMs that are kept off the pCPUs of room. ``shared``: room may be left. ``weighed``:
    weights may differ.
    """

    now: AutoMemory
    scale: WeightScale
    applications: Mapping[str, AppModel]
    left_by: Collection[str]
    shared: bool
    weighed: bool


@dataclass(frozen=True, slots=True)
class _Host:
    """``vms``: critical ones, by application; ``leaving``: the VMs of ``left_by``; ``at_risk``: applications.

    ``longest_wait``: the largest part of its runnable time that a VM of one at risk waits for pCPUs; None: not known.
    ``acts``: what is decided for some VM at least is written.
    """

    decided: Decided
    steady_s: float
    vms: Mapping[str, Sequence[VmView]]
    leaving: Sequence[VmView]
    at_risk: Sequence[str]
    longest_wait: float | None
    acts: bool

    def enforces(self, application: str) -> bool:
        """Whether what is decided for the application is written."""
        return enforced(self.vms.get(application, ()))


def explain(snapshot: Snapshot, decided: Decided) -> Iterator[Explanation]:
    """For each application with critical VMs here."""
    vms: dict[str, list[VmView]] = {}
    for vm in snapshot.vms:
        if vm.critical and vm.application:
            vms.setdefault(vm.application, []).append(vm)
    leaving = [vm for vm in batch_vms(snapshot) if vm.name in decided.left_by] if decided.left_by else []
    at_risk = [name for name, app in decided.applications.items() if app.at_risk]
    uses = decided.now.fits.uses
    waits = [most_waiting(snapshot, uses, name) for name in at_risk]
    longest_wait = max((wait for vm, wait in waits if vm is not None), default=None)
    host = _Host(decided, snapshot.steady_s, vms, leaving, at_risk, longest_wait, enforced(snapshot.vms))
    for view in snapshot.applications:
        if view.application.name in vms:
            name = view.application.name
            cause = shown_cause(decided.now.experiments, name, snapshot.steady_s)
            yield Explanation(name, " ".join(_sentences(host, view.application)), cause)


def _sentences(host: _Host, application: Application) -> Iterator[str]:
    if all(vm.mode is Mode.RELEASED for vm in host.vms[application.name]):
        yield "Its VMs are released: nothing is done for them."
        return
    app = host.decided.applications.get(application.name)
    if app is None:
        yield f"It has {'too few recent response times' if application.sla else 'no SLA'}, so no step is taken for it."
        yield from _floating(host, application.name)
        return
    if app.over:
        yield "It is above its agreed rate, so its violations count for nothing."
    steps = [*_lowering(host, app), *_room(host, app), *_floating(host, app.name)]
    yield from steps
    yield from _no_longer(host, app)
    ladder = host.decided.now.ladder
    if not (host.decided.now.levels or host.leaving):
        yield from _nothing(host, app, besides=bool(steps or ladder.steps))
    yield from told_steps(ladder, app.name, _label(app, app), host.steady_s, acts=host.acts)
    experiments = host.decided.now.experiments
    yield from told_experiments(experiments, app.name, _label(app, app), host.steady_s, acts=host.acts)


def _lowering(host: _Host, app: AppModel) -> Iterator[str]:
    """The levels in force, what they brought and cost, and what becomes of them."""
    now = host.decided.now
    if not now.levels:
        return
    if not any(map(host.enforces, now.levels)):
        weights = _weights(host, app, "would have")
        yield f"In mode enforce, {weights}, {_WHY}{_effects(host, app, (), {}, now.courses)}."
        return
    effects = _effects(host, app, sorted(now.levels), now.before_levels, now.courses)
    weights = _weights(host, app, "would, in mode enforce, have")
    text = f"{weights}, {_WHY}{effects}; {_verdict(host)}."
    yield f"It{text[2:]}" if app.name in now.levels else f"Application {text}"


def _verdict(host: _Host) -> str:
    """What becomes of the levels, and when."""
    now = host.decided.now
    if now.trial is None:
        text = "its trial is passed, and it ends once as few violations are predicted without it"
        return f"{text}{_until_short(now)}"
    left = duration(round(now.trial.since_s + TRIAL_S - host.steady_s))
    saved = [name for name in now.trial.before if name in now.courses]
    if not saved:
        return f"it is on trial, and kept in {left}, as there is no other SLA at risk to compare"
    better = f"{_names(saved)} {'does' if len(saved) == 1 else 'do'} better"
    if now.lenders != now.levels.keys():
        better += " by more than chance"
    return f"it is on trial, and taken back in {left} unless {better}"


def _until_short(now: AutoMemory) -> str:
    if not now.lenders:
        return ""
    any_of = "" if len(now.lenders) == 1 else "one of "
    who = f"{any_of}{_names(sorted(now.lenders))}"
    if now.saved > -PATIENCE:
        return f", or {who} violates its SLA on average, or at all once that has cost a violation more than it saved"
    return f", or {who} violates its SLA, or is above {percent(SHORT)} of target on average"


def _weights(host: _Host, app: AppModel, otherwise: str) -> str:
    """Who has which weight, or ``otherwise``; the application itself first."""
    levels, scale = host.decided.now.levels, host.decided.scale
    parts = [
        f"{'it' if name == app.name else name} {'has' if host.enforces(name) else otherwise}"
        f" weight {weight_at(levels[name], scale):,}"
        for name in sorted(levels, key=lambda name: (name != app.name, name))
    ]
    lenders = host.decided.now.lenders
    spare = f" ({_names(sorted(lenders))} with response times to spare)" if lenders else ""
    return f"{_listed(parts)} in place of {scale.critical:,}{spare}"


def _room(host: _Host, app: AppModel) -> Iterator[str]:
    """What batch VMs leave, what that brought and cost, and when it ends."""
    now = host.decided.now
    cost = f"{percent(now.room.lost)} of their CPU time over {duration(AVERAGED_S)}"
    if host.leaving:
        risk = f"{_names(host.at_risk)} {'is' if len(host.at_risk) == 1 else 'are'} at risk"
        why = f"as {risk if host.at_risk else _WAS_AT_RISK}"
        pcpus = f"{now.room.pcpus} pCPU{'s' * (now.room.pcpus != 1)} to critical VMs, {why}"
        if not enforced(host.leaving):
            yield f"In mode enforce, batch VMs would leave {pcpus}{_effects(host, app, (), {}, now.courses)}."
            return
        effects = _effects(host, app, (), now.before_room, now.courses)
        ends = f"ends {_LASTING} after the last risk or above {_MOST}"
        yield f"Batch VMs leave {pcpus}{effects}; it costs them {cost}, and {ends}."
    elif now.room.spent and app.at_risk:
        yield f"Batch VMs leave no pCPUs: that cost them {cost}, and is to be less than {_LEAST} first."
    elif host.decided.shared and app.at_risk and host.longest_wait is not None and host.longest_wait < MATERIAL:
        wait = f"{percent(host.longest_wait)} of their runnable time, less than {_MATERIAL}"
        yield f"Batch VMs leave no pCPUs, as VMs at risk wait for pCPUs for {wait}."


def _floating(host: _Host, application: str) -> Iterator[str]:
    floating = [vm for vm in host.vms[application] if vm.spec.pin is None and vm.mode is not Mode.RELEASED]
    crowd = host.decided.now.crowd
    if not (crowd.vcpus and floating):
        return
    why = f"{crowd.vcpus} critical vCPUs outnumber the {crowd.pcpus} pCPUs they may be pinned to"
    if crowd.floats:
        yield f"Its VMs float, as {why}." if enforced(floating) else f"In mode enforce, its VMs would float, as {why}."
    elif crowd.may_float:
        yield f"Its VMs stay packed until an SLA is at risk on average, although {why}."
    else:
        yield f"Its VMs stay packed although {why}, as VMs with a vCPU on most of these use much of them."


def _no_longer(host: _Host, app: AppModel) -> Iterator[str]:
    """What was taken back of what concerned the application, while it is not tried again."""
    last, cooling = host.decided.now.taken_back, host.decided.now.cooling
    if last is None or app.name not in {*last.levels, *last.before}:
        return
    until_s = max((cooling[name].until_s for name in last.levels if name in cooling), default=-math.inf)
    if until_s <= host.steady_s:
        return
    left, ago_s = duration(round(until_s - host.steady_s)), round(host.steady_s - last.at_s)
    ago = f"{duration(ago_s)} ago" if ago_s else "just now"
    weights = [
        f"weight {weight_at(level, host.decided.scale):,} for {name}" for name, level in sorted(last.levels.items())
    ]
    effects = _effects(host, app, sorted(last.before), last.before, last.after, "under it")
    yield f"Taken back {ago}, and not tried again for {left}: {_listed(weights)}{effects}."


def _nothing(host: _Host, app: AppModel, *, besides: bool) -> Iterator[str]:
    """Why no weight is changed, and when one may be."""
    measured = f"{_label(app, app)} is {_of_target(app.log_miss)}"
    again_s = host.decided.now.changed_s + HOLD_S - host.steady_s
    if app.log_miss <= math.log(AT_RISK):
        yield f"Nothing {'else ' if besides else ''}is needed: {measured}, at static weights."
        if host.decided.weighed:
            room = ", and pCPUs without batch VMs" if host.decided.shared else ""
            yield f"Above {percent(AT_RISK)}, other weights are considered{room}."
    elif not host.decided.weighed:
        yield f"Its {measured}; weights stay static, as no two critical VMs share a pCPU."
    elif again_s >= 0.5:
        yield f"Its {measured}; other weights are considered again in {duration(round(again_s))}."
    else:
        yield f"Its {measured}; no weights that may be tried are predicted to violate clearly fewer SLAs."


def _effects(
    host: _Host, app: AppModel, others: Sequence[str], before: Courses, after: Courses, when: str = "now"
) -> str:
    """In brackets, average response times of the application and the first few others before and after a step.

    Those that are not known are left out.
    """
    names, applications = [app.name, *(name for name in others if name != app.name)], host.decided.applications
    known = [applications[name] for name in names if name in applications and name in after]
    parts = [
        f"{_label(each, app)}: {_change(before.get(each.name), after[each.name], when)}" for each in known[:MOST_NAMED]
    ]
    return f" ({'; '.join(parts)})" if parts else ""


def _change(before: float | None, after: float, when: str) -> str:
    """Where the step has just begun, there is no difference yet."""
    if before is None or before == after:
        return _of_target(after)
    return f"{_of_target(before)} before, {_amount(after)} {when}"


def _label(app: AppModel, page: AppModel) -> str:
    """Its percentile, as it is called in what is said of the application ``page``."""
    return f"p{app.sla.percentile:g}{'' if app is page else f' of {app.name}'}"


def _of_target(course: float) -> str:
    """A percentile as a part of its target, or as a multiple."""
    return f"{_amount(course)} {'of ' * (course < _MULTIPLE)}its target"


def _amount(course: float) -> str:
    return percent(math.exp(course)) if course < _MULTIPLE else f"{digits(math.exp(course))} times"


def _names(names: Sequence[str]) -> str:
    """The first few, and how many others."""
    others = len(names) - MOST_NAMED
    return _listed([*sorted(names)[:MOST_NAMED], *([f"{others} more"] if others > 0 else [])])


def _listed(parts: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(parts[:-1]), *parts[-1:])))
