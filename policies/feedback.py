"""What `fair` and `isolation` share: weights of critical VMs from measured response times.

``Law.published`` gives the law exactly as printed. Otherwise the same equations work on what can be believed: the
percentiles of enough samples, averaged over intervals, with exponents on C and on RT / RT_SLA that do better than 1,
and a weight is changed only by a step that is worth it. An application without fresh response times keeps its weights,
then gets those of `priority`; one without requests keeps them, then decays to the least weight. Batch VMs get the
smallest weight; that they keep their floor is seen to for every policy (manager.control.batch).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from manager.control.feedback_law import (
    LEAST_SAMPLES,
    UNBOUND_MS,
    average,
    demand,
    miss,
    performance_factor,
    rate_over,
    step_towards,
    wanted_pcpus,
    weight_of,
    within,
)
from manager.control.helping import NO_HELP, Help, Standing, judge
from manager.control.judged_windows import enough, fresh
from manager.model.decision import ApplicationView, Decision, Memory, Note, Snapshot, VmView, WeightGoal
from manager.model.host import WeightScale
from manager.model.law import Law
from manager.model.numbers import digits
from manager.model.registration import Sharing, Sla, VmClass
from manager.model.units import percent
from manager.model.vcpu_wait import MATERIAL, wait_share
from policies.cores import released_applications

IDLE_PCPUS = 0.05
"""VMs of an application that use less than this of a pCPU have nothing to do: that nothing is measured is no fault.

And a vCPU that waits for less than this is not starved.
"""
BOUND_OF_MISS = 1000.0
"""Beyond so many times the target, or its inverse, all are the same."""
LASTING_INTERVALS = 3
"""For so many intervals in a row a small difference must last until a weight is changed for it."""


@dataclass(frozen=True, slots=True)
class AppMemory:
    """What is remembered of an application.

    ``miss`` is the average of ln(RT / RT_SLA) within its bounds, ``whole_miss`` beyond them. ``at_s`` is when a
    percentile was believed last, ``idle_s`` since when it has no requests, both in steady seconds; ``over``: it is
    above its agreed load.
    """

    miss: float | None = None
    at_s: float = 0.0
    idle_s: float | None = None
    over: bool = False
    whole_miss: float | None = None


@dataclass(frozen=True, slots=True)
class Kept:
    """The memory of the feedback policies: applications, and average CPU shares that critical VMs want, by name.

    ``help``: what came of weight that was taken from others, by application. ``off`` counts for each VM the intervals
    in a row in which its weight was outside the dead band, negative below.
    """

    applications: Mapping[str, AppMemory] = field(default_factory=dict)
    cpu_shares: Mapping[str, float] = field(default_factory=dict)
    off: Mapping[str, int] = field(default_factory=dict)
    help: Mapping[str, Help] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class JudgedApp:
    """An application in this interval.

    ``factor`` is what the CPU its VMs want is multiplied by to get the demand; None where nothing can be said, then
    ``reason`` says what becomes of its weights: held, or ``fallback`` (to `priority`), or ``decay`` (a factor).
    ``newest`` is what the factor would be without averaging.
    """

    held: AppMemory
    reason: str
    factor: float | None = None
    fallback: bool = False
    decay: float | None = None
    note: str = ""
    newest: float = 0.0


@dataclass(frozen=True, slots=True)
class Feedback:
    """A policy by which applications without a ``sharing`` of their own share as it says."""

    name: str
    summary: str
    sharing: Sharing

    def decide(self, snapshot: Snapshot, memory: Memory) -> Decision:
        """A weight for every managed VM; nothing where the host has no weights."""
        scale = snapshot.capabilities.weights
        if scale is None:
            return Decision()
        before = memory if isinstance(memory, Kept) else Kept()
        law, released = snapshot.host.law, released_applications(snapshot)
        judged = {
            view.application.name: _judge(view, sla, view.application.sharing or self.sharing, snapshot, before)
            for view in snapshot.applications
            if (sla := view.application.sla) is not None and view.application.name not in released
        }
        smoothing = 1.0 if law.published else law.smoothing
        pcpus = max(len(snapshot.capabilities.online_cpus), 1)
        wanted = {
            vm.name: vm.cpu_share if law.published else wanted_pcpus(vm, pcpus) / pcpus
            for vm in snapshot.vms
            if vm.critical
        }
        shares = {vm: average(before.cpu_shares.get(vm), share, smoothing) for vm, share in wanted.items()}
        standings = {} if law.published else _standings(snapshot, judged, shares)
        help_now = judge(standings, before.help, law, snapshot.steady_s)
        goals, off = _goals(self.name, snapshot, scale, judged, shares, before, help_now)
        # Who cannot be measured for a while is not forgotten: failures count.
        earlier = {app: help_app for app, help_app in before.help.items() if app in judged}
        kept = Kept({app: judgement.held for app, judgement in judged.items()}, shares, off, earlier | help_now)
        notes = tuple(Note(app, judgement.note) for app, judgement in sorted(judged.items()) if judgement.note)
        return Decision(tuple(goals), kept, notes)


def _judge(view: ApplicationView, sla: Sla, sharing: Sharing, snapshot: Snapshot, before: Kept) -> JudgedApp:
    law, now_s, steady_s = snapshot.host.law, snapshot.now_s, snapshot.steady_s
    held = before.applications.get(view.application.name, AppMemory(at_s=steady_s))
    if sharing is Sharing.ISOLATION and sla.max_rate_rps is not None:
        held, rate_rps = _over(view, sla.max_rate_rps, held, snapshot)
        if held.over:
            known = f"{rate_rps:.0f} of" if rate_rps is not None else "not known now whether still above"
            text = f"over its agreed load: {known} {sla.max_rate_rps:g} req/s"
            measured_ms = _percentile_ms(view, sla, law, now_s) or sla.response_time_ms
            factor = 1 + performance_factor(measured_ms, UNBOUND_MS) if law.published else 0.0
            at_s = held.at_s if rate_rps is None else steady_s
            held = replace(held, miss=None, whole_miss=None, at_s=at_s, idle_s=None)
            return JudgedApp(held, text, factor, note="over its agreed load")
    elif held.over:  # there is no agreed rate any more, or it does not pay for more
        held = replace(held, over=False)
    response_ms = _percentile_ms(view, sla, law, now_s)
    if _idle(view, snapshot):
        return _judge_idle(held, law, steady_s)
    if response_ms is None:
        return _judge_unknown(held, law, steady_s)
    if law.published:
        factor = 1 + performance_factor(response_ms, sla.response_time_ms)
        return JudgedApp(AppMemory(at_s=steady_s, over=held.over), _measured(response_ms, sla), factor)
    now = miss(response_ms, sla.response_time_ms, law.largest_miss, fold=law.fold_misses)
    averaged = average(held.miss, now, law.smoothing)
    whole = average(held.whole_miss, miss(response_ms, sla.response_time_ms, BOUND_OF_MISS), law.smoothing)
    held = AppMemory(averaged, steady_s, None, held.over, whole)
    return JudgedApp(held, _measured(response_ms, sla), math.exp(law.gain * averaged), newest=math.exp(law.gain * now))


def _measured(response_ms: float, sla: Sla) -> str:
    return f"p{sla.percentile:g} {digits(response_ms, 4)} ms of {sla.response_time_ms:g} ms"


def _over(
    view: ApplicationView, max_rate_rps: float, held: AppMemory, snapshot: Snapshot
) -> tuple[AppMemory, float | None]:
    """Whether an application is above its agreed load now, and its rate.

    Where that is unknown it is as before, for as long as weights are held. The rate is that of a whole slot at least.
    """
    law, now_s = snapshot.host.law, snapshot.now_s
    if law.published:
        fresh_window = view.window if view.window and view.window.age_s(now_s) <= law.max_age_s else None
        rate_rps = fresh_window.rate_rps if fresh_window else None
        return replace(held, over=rate_rps is not None and rate_rps > max_rate_rps), rate_rps
    whole_s = max((slot.end_s - slot.start_s for slot in view.slots[-2:]), default=0.0)  # the newest may be unfinished
    rate_rps = rate_over(view.slots, now_s, max(law.over_rate_s, whole_s))
    if rate_rps is None:
        is_held = snapshot.steady_s - held.at_s <= law.max_age_s + law.hold_s
        return held if is_held else replace(held, over=False), None
    limit_rps = max_rate_rps * (1 - law.over_rate_margin) if held.over else max_rate_rps
    return replace(held, over=rate_rps > limit_rps), rate_rps


def _percentile_ms(view: ApplicationView, sla: Sla, law: Law, now_s: float) -> float | None:
    """The SLA's percentile, where there are fresh response times enough for one."""
    if law.published:
        window = view.window if view.window and view.window.age_s(now_s) <= law.max_age_s else None
    else:
        window = enough(view.slots, now_s, law.max_age_s, law.min_samples, LEAST_SAMPLES)
    return window.percentile_ms(sla.percentile) if window else None


def _idle(view: ApplicationView, snapshot: Snapshot) -> bool:
    """Whether nobody asks anything of an application: its sources say so, or are silent while its VMs do nothing."""
    law, slots = snapshot.host.law, view.slots
    if slots and slots[-1].age_s(snapshot.now_s) <= law.max_age_s and slots[-1].has_samples(1):  # mostly so
        return False
    recent = fresh(slots, snapshot.now_s, law.max_age_s)
    if any(slot.has_samples(1) for slot in recent):
        return False
    served_by = [vm for vm in snapshot.vms if vm.application == view.application.name]
    pcpus = len(snapshot.capabilities.online_cpus)
    if any(_starved(vm, pcpus) for vm in served_by) and not law.published:
        return False
    counts = [slot.requests for slot in recent if slot.requests is not None]
    if counts:
        return sum(counts) == 0
    return bool(served_by) and all(vm.cpu_share * pcpus < IDLE_PCPUS for vm in served_by)


def _starved(vm: VmView, pcpus: int) -> bool:
    """Whether a vCPU waits for a pCPU for a material part of the time in which it could run: it has something to do."""
    if len(vm.vcpu_pcpus) == len(vm.vcpu_waits) == vm.vcpus:
        rates = tuple(zip(vm.vcpu_pcpus, vm.vcpu_waits, strict=True))
    else:
        rates = ((vm.cpu_share * pcpus, vm.run_delay_share),)
    return any(waited >= IDLE_PCPUS and wait_share(used, waited) >= MATERIAL for used, waited in rates)


def _judge_idle(held: AppMemory, law: Law, steady_s: float) -> JudgedApp:
    since_s = steady_s if held.idle_s is None else held.idle_s
    held = replace(held, miss=None, whole_miss=None, at_s=steady_s, idle_s=since_s)
    spare_s = steady_s - since_s - law.idle_hold_s
    if spare_s <= 0:
        return JudgedApp(held, "no requests")
    return JudgedApp(held, "no requests: decays", decay=0.5 ** (spare_s / law.idle_half_life_s))


def _judge_unknown(held: AppMemory, law: Law, steady_s: float) -> JudgedApp:
    held = replace(held, idle_s=None)
    if steady_s - held.at_s <= law.max_age_s + law.hold_s:
        return JudgedApp(
            held, "too few fresh response times: held", note="too few fresh response times: weights are held"
        )
    note = "too few fresh response times for long: weights as under `priority`"
    return JudgedApp(
        replace(held, miss=None, whole_miss=None), "no response times: as under priority", fallback=True, note=note
    )


def _standings(snapshot: Snapshot, judged: Mapping[str, JudgedApp], shares: Mapping[str, float]) -> dict[str, Standing]:
    """The applications whose response times were believed, and that do not pay for load above their agreed rate."""
    pcpus = len(snapshot.capabilities.online_cpus)
    serving: dict[str, list[VmView]] = {}
    for vm in snapshot.vms:
        if vm.application is not None and vm.critical and vm.spec.weight is None:
            serving.setdefault(vm.application, []).append(vm)
    standings: dict[str, Standing] = {}
    for view in snapshot.applications:
        name, sla = view.application.name, view.application.sla
        judgement, driven = judged.get(name), serving.get(name)
        if sla and driven and judgement and judgement.factor is not None and judgement.held.whole_miss is not None:
            wanted = sum(shares[vm.name] for vm in driven) * pcpus
            weight = max(vm.weight or 0 for vm in driven)
            standings[name] = Standing(judgement.held.whole_miss, wanted, sla.response_time_ms, weight)
    return standings


def _goals(
    name: str,
    snapshot: Snapshot,
    scale: WeightScale,
    judged: Mapping[str, JudgedApp],
    shares: Mapping[str, float],
    before: Kept,
    help_now: Mapping[str, Help],
) -> tuple[list[WeightGoal], dict[str, int]]:
    """Goals of all VMs, and how long each critical one has been outside the dead band."""
    law = snapshot.host.law
    demands = _demands(snapshot, judged, shares, help_now)
    tiers: dict[tuple[str | None, str | None], float] = {}
    for vm in snapshot.vms:
        wanted = demands.get(vm.spec.name)
        if wanted is not None:
            tier = (vm.application, vm.tier)
            tiers[tier] = tiers.get(tier, 0.0) + wanted
    largest = max(tiers.values(), default=0.0)
    helped = {app: _helped(help_app) for app, help_app in help_now.items()}
    goals: list[WeightGoal] = []
    off: dict[str, int] = {}
    for vm in snapshot.vms:
        spec = vm.spec
        if spec.weight is not None:
            goals.append(WeightGoal(spec.name, spec.weight, f"{name}: weight registered for this VM"))
            continue
        if spec.vm_class is not VmClass.CRITICAL:
            goals.append(_batch_goal(spec.name, scale.batch, name))
            continue
        judgement = judged.get(vm.application or "")
        if judgement is None or judgement.fallback or (judgement.factor is not None and not largest):
            why = (
                judgement.reason if judgement and judgement.fallback else "no SLA or no CPU use yet: as under priority"
            )
            goals.append(WeightGoal(spec.name, scale.critical, f"{name}: {why}"))
        elif judgement.factor is None:
            goals.append(_kept_goal(name, vm, judgement, scale))
        else:
            goal = weight_of(demands[spec.name], largest, scale)
            share = percent(shares[spec.name], 1)
            text = f"{name}: {judgement.reason}, CPU {share} of the host{helped.get(vm.application or '', '')}"
            if not law.published and not judgement.held.over:
                goal, off[spec.name] = _steady(vm, goal, law, scale, before)
            goals.append(WeightGoal(spec.name, goal, text))
    return goals, off


def _demands(
    snapshot: Snapshot, judged: Mapping[str, JudgedApp], shares: Mapping[str, float], help_now: Mapping[str, Help]
) -> dict[str, float]:
    """The demand of each critical VM of which something can be said.

    Who cannot be helped counts as one that has its margin, and no other that is measured has less weight than that.
    """
    law = snapshot.host.law
    factors = {
        app: _factor(judgement, judgement.factor, help_now.get(app, NO_HELP), law) - 1
        for app, judgement in judged.items()
        if judgement.factor is not None
    }
    exponent = 1.0 if law.published else law.demand_exponent
    demands: dict[str, float] = {}
    measured: list[str] = []
    level = 0.0
    for vm in snapshot.vms:
        application = vm.application or ""
        if application in factors and vm.critical:
            name = vm.spec.name
            demands[name] = wanted = demand(shares[name] ** exponent, factors[application])
            if application in help_now:
                measured.append(name)
                if help_now[application].hopeless:
                    level = max(level, wanted)
    if level:
        demands |= {name: max(demands[name], level) for name in measured}
    return demands


def _helped(help_app: Help) -> str:
    """What is to be said of helping an application."""
    if help_app.hopeless:
        return "; more weight would cost others their SLA and not save its own"
    return "; has precedence over an application that cannot be saved" if help_app.protected else ""


def _factor(judgement: JudgedApp, factor: float, help_app: Help, law: Law) -> float:
    """The factor of an application as it is to be helped."""
    if help_app.hopeless:
        return min(factor, math.pow(1 - law.help_margin, law.gain))
    return max(factor, judgement.newest) if help_app.protected else factor


@lru_cache(maxsize=4096)
def _batch_goal(vm: str, weight: int, policy: str) -> WeightGoal:
    """Always the same: there are many, in each interval."""
    return WeightGoal(vm, weight, f"{policy}: batch VM")


def _kept_goal(name: str, vm: VmView, judgement: JudgedApp, scale: WeightScale) -> WeightGoal:
    """The weight it has, decaying to the least one where the application is idle."""
    weight = scale.critical if vm.weight is None else max(vm.weight, scale.critical_min)
    if judgement.decay is not None:
        decayed = round(scale.critical_min + (scale.maximum - scale.critical_min) * judgement.decay)
        weight = min(weight, decayed)
    return WeightGoal(vm.name, weight, f"{name}: {judgement.reason}")


def _steady(vm: VmView, wanted: int, law: Law, scale: WeightScale, before: Kept) -> tuple[int, int]:
    """The weight to have now on the way to ``wanted``, and for how many intervals it has been outside the dead band.

    A small difference must last three intervals, because percentiles are off by chance now and then; twice the dead
    band is acted on at once. One that is below the least of critical VMs, as that of a batch VM, begins there.
    """
    if vm.weight is None:
        return wanted, 0
    current = max(vm.weight, scale.critical_min)
    if within(current, wanted, law.dead_band):
        return current, 0
    side = 1 if wanted > current else -1
    earlier = before.off.get(vm.name, 0)
    count = earlier + side if earlier * side > 0 else side
    if abs(count) < LASTING_INTERVALS and within(current, wanted, 2 * law.dead_band):
        return current, count
    return step_towards(current, wanted, law.max_step), count
