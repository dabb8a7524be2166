"""Which steps `auto` would try for an application: whom it suspects, what it predicts, and what it then sets."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from manager.control.hold_experiment import HoldFinding, begun
from manager.control.resolve import validate
from manager.model.decision import Decision, Snapshot, VmView
from manager.model.registration import LEAST_LIMIT_PCPUS, HostSpec, Mode, Sla, VmClass
from manager.model.warp import Mechanism, Offer, WarpUse
from policies.auto import POLICY as AUTO
from policies.auto_candidates import candidates
from policies.auto_experiment import Experiments
from policies.auto_memory import AutoMemory
from policies.auto_model import AppModel, VmUse
from policies.auto_step_goals import step_goals
from policies.auto_steps import (
    LadderStep,
    StepCandidate,
    StepCooling,
    StepEnd,
    StepInForce,
    StepKind,
    StepsMemory,
    StepTakenBack,
    StepTrial,
)
from policies.auto_steps_told import told_steps
from tests.unit.build import capabilities, view
from tests.unit.test_auto import app_model, application, moment

NOW_S = 1000.0


def batch(name: str, cpu_share: float, gbps: float | None = None, **fields: object) -> VmView:
    traffic = None if gbps is None else gbps * 1e9
    made = view(name, VmClass.BATCH)
    return replace(made, cpu_share=cpu_share, idle=False, quota_period_us=100_000, memory_bytes_per_s=traffic, **fields)  # type: ignore[arg-type]


def shop(gbps: float | None = None) -> VmView:
    traffic = None if gbps is None else gbps * 1e9
    return replace(view("shop"), application="shop", cpu_share=0.1, memory_bytes_per_s=traffic)


def seen(*vms: VmView, **fields: object) -> Snapshot:
    one_pcpu = moment(NOW_S, application("shop", [150], 100.0, NOW_S), vms=vms)
    return replace(one_pcpu, capabilities=capabilities(), **fields)  # type: ignore[arg-type]


def offered(
    snapshot: Snapshot,
    wait: float,
    in_force: tuple[StepInForce, ...] = (),
    model: AppModel | None = None,
    finding: HoldFinding | None = None,
) -> dict[StepKind, StepCandidate]:
    """By kind, where the shop waits for this part of its runnable time."""
    uses = {"shop": VmUse(0.4, 0.4 * wait / (1 - wait))}
    apps = [model or app_model("shop", 0, 150.0)]
    findings = {"shop": finding} if finding else {}
    return {each.step.kind: each for each in candidates(snapshot, apps, uses, in_force, findings)}


def kept(candidate: StepCandidate) -> StepInForce:
    return StepInForce(candidate, NOW_S, 0.3, NOW_S)


def test_one_that_waits_suspects_who_uses_most_of_what_it_does_not_use_itself() -> None:
    found = offered(seen(shop(), batch("hog", 0.6), batch("meek", 0.2)), 0.5)
    quota = found[StepKind.QUOTA]
    pcpus = len(seen().capabilities.online_cpus)
    assert (quota.step.target, quota.step.amount) == ("hog", pytest.approx(0.3 * pcpus))
    assert quota.gain == pytest.approx(math.log(2) * 0.75 * 0.5)
    assert quota.batch_cost == pytest.approx(0.75 * 0.5)
    assert quota.why == "shop waits for pCPUs 50 % of its runnable time, and hog uses 75 % of the CPU time beside it"
    assert StepKind.IDLE in found
    assert {StepKind.WAYS, StepKind.BANDWIDTH}.isdisjoint(found), "nothing is known of memory"


def test_where_none_of_many_uses_most_no_quota_is_tried() -> None:
    many = [batch(f"batch{number}", 0.1) for number in range(8)]
    assert StepKind.QUOTA not in offered(seen(shop(), *many), 0.5)


def test_who_was_shown_to_slow_it_is_limited_however_little_it_uses() -> None:
    host = seen(shop(), batch("small", 0.1), batch("large", 0.8))
    finding = HoldFinding("shop", "small", 0.9, 0.992, NOW_S)
    found = offered(host, 0.0, finding=finding)[StepKind.QUOTA]
    assert (found.step.target, found.gain) == ("small", pytest.approx(0.5))
    assert found.why == "small is shown by experiment to slow it (confidence 99.2 %)"
    gone = replace(finding, neighbour="gone")
    assert offered(host, 0.5, finding=gone)[StepKind.QUOTA].step.target == "large"


def test_one_that_neither_waits_nor_shares_memory_has_no_candidates() -> None:
    assert offered(seen(shop(), batch("hog", 0.6)), 0.05) == {}
    calm = app_model("shop", 0, 50.0)
    assert offered(seen(shop(), batch("hog", 0.6)), 0.5, model=calm) == {}, "its SLA is met"


def test_each_step_is_followed_by_a_further_one_until_the_last() -> None:
    snapshot, in_force, amounts = seen(shop(), batch("hog", 0.6)), tuple[StepInForce, ...](), []
    for _ in range(3):
        quota = offered(snapshot, 0.5, in_force)[StepKind.QUOTA]
        amounts.append(quota.step.amount / quota.of)
        in_force = (kept(quota),)
        snapshot = seen(shop(), batch("hog", 0.6 * amounts[-1]))
    assert amounts == pytest.approx([0.5, 0.25, 0.1])
    assert in_force[0].candidate.batch_cost == pytest.approx(0.9)
    assert StepKind.QUOTA not in offered(snapshot, 0.5, in_force)


def test_what_was_taken_back_is_known_again_where_its_vm_uses_another_amount() -> None:
    names = {
        offered(seen(shop(), batch("hog", cpu_share)), 0.5)[StepKind.QUOTA].step.name for cpu_share in (0.6, 0.55, 0.5)
    }
    assert len(names) == 1


def test_vms_that_are_only_observed_have_no_steps_beside_others() -> None:
    observed = replace(shop(), mode=Mode.OBSERVE)
    assert offered(seen(observed, batch("hog", 0.6)), 0.5) == {}
    all_observed = seen(observed, replace(batch("hog", 0.6), mode=Mode.OBSERVE))
    assert StepKind.QUOTA in offered(all_observed, 0.5), "it is said what would be tried"


def test_no_quota_is_below_the_least() -> None:
    tiny = batch("hog", LEAST_LIMIT_PCPUS / 100)
    assert offered(seen(shop(), tiny), 0.5)[StepKind.QUOTA].step.amount == LEAST_LIMIT_PCPUS


def test_who_moves_most_of_the_memory_traffic_is_limited_and_ways_are_given() -> None:
    fields = {"cache_ways": 20, "memory_limits": True}
    snapshot = seen(shop(1.0), batch("hog", 0.6, 8.0), batch("meek", 0.2, 1.0), **fields)
    found = offered(snapshot, 0.0)
    assert (found[StepKind.BANDWIDTH].step.target, found[StepKind.BANDWIDTH].step.amount) == ("hog", 0.5)
    assert found[StepKind.BANDWIDTH].why == "hog moves 80 % of the memory traffic"
    assert (found[StepKind.WAYS].step.target, found[StepKind.WAYS].step.amount) == ("shop", 5.0)
    further = offered(snapshot, 0.0, tuple(kept(each) for each in found.values()))
    assert (further[StepKind.BANDWIDTH].step.amount, further[StepKind.WAYS].step.amount) == (0.25, 10.0)
    quiet = seen(shop(8.0), batch("hog", 0.6, 1.0), **fields)
    assert offered(quiet, 0.0) == {}, "the traffic is its own"


def test_an_application_with_a_cache_of_its_own_keeps_that() -> None:
    snapshot = seen(shop(1.0), batch("hog", 0.6, 8.0), cache_ways=20, memory_limits=True)
    [asked] = snapshot.applications
    own = replace(snapshot, applications=(replace(asked, application=replace(asked.application, cache="4 ways")),))
    assert StepKind.WAYS not in offered(own, 0.0)
    assert StepKind.BANDWIDTH in offered(own, 0.0)


@pytest.mark.parametrize(("pinning", "kind"), [(True, StepKind.FLOAT), (False, StepKind.PIN)])
def test_the_other_placement_is_tried_where_both_are_possible(pinning: bool, kind: StepKind) -> None:
    snapshot = seen(shop(), batch("hog", 0.6))
    host = replace(snapshot.host, pinning=pinning)
    assert kind in offered(replace(snapshot, host=host), 0.5)
    crowd = seen(replace(shop(), vcpus=99), batch("hog", 0.6))
    assert kind not in offered(replace(crowd, host=host), 0.5)


def test_the_registered_idle_class_is_not_a_step() -> None:
    snapshot = replace(seen(shop(), batch("hog", 0.6)), host=HostSpec("h1", batch_idle=True))
    assert StepKind.IDLE not in offered(snapshot, 0.5)


def steps(*made: LadderStep, on_trial: LadderStep | None = None) -> StepsMemory:
    trial = StepTrial(StepCandidate(on_trial, 0.3, 0.1, 0.0, "hog is noisy"), NOW_S - 20, {}) if on_trial else None
    kept_ = tuple(
        StepInForce(StepCandidate(step, 0.3, 0.1, 0.0, "hog is noisy"), NOW_S - 90, 0.5, NOW_S) for step in made
    )
    return StepsMemory(kept_, trial)


QUOTA = LadderStep(StepKind.QUOTA, "hog", 0.5, "shop", 0.5)
FURTHER = LadderStep(StepKind.QUOTA, "hog", 0.25, "shop", 0.25)
WAYS = LadderStep(StepKind.WAYS, "shop", 5.0, "shop", 0.25)
IDLE = LadderStep(StepKind.IDLE, "", 1.0, "shop")
LIMIT = LadderStep(StepKind.BANDWIDTH, "hog", 0.25, "shop", 0.25)


def test_steps_become_goals_with_one_for_each_knob() -> None:
    snapshot = seen(shop(), batch("hog", 0.6), batch("own", 0.1), cache_ways=20, memory_limits=True)
    goals = step_goals(steps(QUOTA, WAYS, IDLE, LIMIT, on_trial=FURTHER), snapshot)
    assert [(goal.vm, goal.pcpus, goal.reason) for goal in goals.quotas] == [
        ("hog", 0.25, "auto: for the SLA of shop (on trial)")
    ]
    assert [(goal.application, goal.ways, goal.reason) for goal in goals.ways] == [
        ("shop", 5, "auto: for the SLA of shop (kept)")
    ]
    assert [(goal.vm, goal.share) for goal in goals.bandwidths] == [("hog", 0.25)]
    assert [goal.vm for goal in goals.idle] == ["hog", "own"]
    assert goals.pinning is None
    assert step_goals(steps(LadderStep(StepKind.PIN, "", 1.0, "shop")), snapshot).pinning is True
    assert step_goals(steps(LadderStep(StepKind.FLOAT, "", 1.0, "shop")), snapshot).pinning is False


def test_what_is_decided_is_valid() -> None:
    snapshot = seen(shop(), batch("hog", 0.6), cache_ways=20, memory_limits=True)
    goals = step_goals(steps(QUOTA, WAYS, IDLE, LIMIT), snapshot)
    decision = Decision((), None, (), goals.idle, (), goals.quotas, goals.ways, None, (), goals.bandwidths, True)
    assert validate(decision, snapshot) is None


def decided(ladder: StepsMemory, experiments: Experiments, *vms: VmView) -> tuple[Decision, Snapshot]:
    """What `auto` decides with these steps in force, and these findings."""
    snapshot = seen(shop(), *vms, memory_limits=True)
    memory = AutoMemory(ladder=replace(ladder, known_s={"shop": NOW_S}), experiments=experiments)
    return AUTO.decide(snapshot, memory), snapshot


def test_who_becomes_critical_is_not_held_back_any_more() -> None:
    """Else it would keep the quota; and a goal for its bandwidth is refused, so that nothing would be decided."""
    hog = batch("hog", 0.6)
    running = Experiments(running=begun("shop", ["hog", "meek"], NOW_S - 1), quotas={"hog": 0.1, "meek": 0.1})
    for vm_class, limited in ((VmClass.BATCH, True), (VmClass.CRITICAL, False)):
        now = replace(hog, spec=replace(hog.spec, vm_class=vm_class))
        decision, snapshot = decided(steps(QUOTA, LIMIT), Experiments(), now)
        assert validate(decision, snapshot) is None
        assert bool(decision.quotas) is bool(decision.bandwidths) is limited
        memory = decided(StepsMemory(), running, now, batch("meek", 0.1))[0].memory
        assert isinstance(memory, AutoMemory)
        assert (memory.experiments.running is not None) is limited


@pytest.mark.parametrize(("cache", "ways"), [(None, 5), ("40%", None), ("auto", None)])
def test_a_cache_that_is_registered_counts_before_ways_of_a_step(cache: str | None, ways: int | None) -> None:
    snapshot = seen(shop(), batch("hog", 0.6), cache_ways=20)
    [application_] = snapshot.applications
    registered = replace(application_, application=replace(application_.application, cache=cache))
    memory = AutoMemory(ladder=replace(steps(WAYS), known_s={"shop": NOW_S}))
    decision = AUTO.decide(replace(snapshot, applications=(registered,)), memory)
    assert [goal.ways for goal in decision.ways] == ([] if ways is None else [ways])


@pytest.mark.parametrize("sla", [Sla(400.0), Sla(60.0), Sla(100.0, 50.0)])
def test_response_times_are_not_compared_with_those_under_another_sla(sla: Sla) -> None:
    """They are parts of targets: a step that changes nothing would be kept for a looser one, or blamed for harm."""
    hold = StepCandidate(QUOTA, 0.3, 0.1, 0.0, "hog is noisy")
    before = {"shop": (math.log(1.5),) * 8}
    trial = StepTrial(hold, NOW_S - 60, before, {"shop": (36.0,) * 8})
    ladder = StepsMemory(trial=trial, changed_s=NOW_S - 60, known_s={"shop": NOW_S}, began_s=0.0)
    memory = AutoMemory(ladder=ladder, courses={"shop": 0.4})
    for tick in range(8):
        at_s = NOW_S + 5 * tick
        shop_now = application("shop", [150] * 18, 100.0, at_s)
        if tick:
            shop_now = replace(shop_now, application=replace(shop_now.application, sla=sla))
        held = batch("hog", 0.6), replace(shop(), vcpu_pcpus=(0.4,), vcpu_waits=(0.4,), run_delay_share=0.4)
        now = replace(moment(at_s, shop_now, vms=held), capabilities=capabilities())
        after = AUTO.decide(now, memory).memory
        assert isinstance(after, AutoMemory)
        memory = after
        if tick:
            assert memory.courses["shop"] == pytest.approx(math.log(150 / sla.response_time_ms), abs=0.05)
    assert not memory.ladder.in_force and not memory.ladder.taken_back
    assert not memory.ladder.brought and not memory.ladder.worse_s


def test_who_is_gone_is_no_cause_any_more() -> None:
    """A decision that names it is refused, and nothing would be decided for as long as the finding counts."""
    findings = Experiments(findings={"shop": HoldFinding("shop", "hog", 0.9, 0.992, NOW_S - 5)})
    decision, snapshot = decided(StepsMemory(), findings, batch("hog", 0.6))
    assert validate(decision, snapshot) is None
    assert [each.cause and each.cause.vm for each in decision.explanations] == ["hog"]
    decision, snapshot = decided(StepsMemory(), findings, batch("meek", 0.6))
    assert validate(decision, snapshot) is None
    assert [each.cause for each in decision.explanations] == [None]


def told(memory: StepsMemory, application: str = "shop", *, acts: bool = True) -> str:
    return " ".join(told_steps(memory, application, "p95", NOW_S, acts=acts))


def test_it_says_what_is_in_force_what_that_brought_and_cost_and_what_is_on_trial() -> None:
    assert told(steps(QUOTA, on_trial=WAYS)) == (
        "Batch VM hog has a quota of 0.5 pCPUs (for 90 s): that lowered p95 of shop by 39 %, and is taken to cost batch"
        " VMs 10 % of their progress. On trial application shop has 5 cache ways for itself, as hog is noisy: p95 is"
        " predicted to fall by 26 %. It is kept once shop does better by more than chance, taken back at once where it"
        " harms, else in 2 min."
    )
    assert told(steps(QUOTA, on_trial=WAYS), "mail") == ""
    assert told(steps(IDLE), "mail").startswith("Batch VMs are in the idle class (for 90 s)"), "it concerns all"


def test_what_was_predicted_is_said_beside_what_was_brought() -> None:
    in_force = StepInForce(StepCandidate(QUOTA, 0.3, 0.1, 0.0, "hog is noisy"), NOW_S, 0.5, NOW_S, predicted=0.22)
    assert "that lowered p95 of shop by 39 % (20 % predicted), and" in told(StepsMemory(in_force=(in_force,)))
    back = StepTakenBack(WAYS, NOW_S - 5, StepEnd.NO_EFFECT, 0.02, "shop", 0.15)
    memory = StepsMemory(taken_back=(back,), cooling={WAYS.name: StepCooling(NOW_S + 60, 1)})
    assert "(p95 of shop rose by 2 %, where a fall by 14 % was predicted), and" in told(memory)
    elsewhere = replace(memory, taken_back=(replace(back, seen_at="mail", end=StepEnd.HARMED),))
    assert "predicted" not in told(elsewhere)


def test_it_says_what_would_be_tried_where_nothing_is_written() -> None:
    memory = StepsMemory(upcoming=StepCandidate(LIMIT, 0.3, 0.1, 0.0, "hog moves 80 % of the memory traffic"))
    assert told(memory, acts=False) == (
        "In mode enforce, it would be tried whether it helps that the memory bandwidth of hog is limited to 25 %,"
        " as hog moves 80 % of the memory traffic."
    )


def warping(target_ms: float = 10.0, use: WarpUse = WarpUse.ON, **spec: object) -> Snapshot:
    """A host that has the BVT patch, and an SLA of ``target_ms``."""
    vms = replace(shop(), spec=replace(shop().spec, **spec)), batch("hog", 0.6)  # type: ignore[arg-type]
    one_pcpu = moment(NOW_S, application("shop", [1.5 * target_ms], target_ms, NOW_S), vms=vms)
    bvt = replace(capabilities(), warps=(Offer(Mechanism.BVT, True, "patched"),))
    return replace(one_pcpu, capabilities=bvt, host=HostSpec("h1", warp=use))


def test_a_warp_is_tried_where_the_host_can_and_nobody_registered_one() -> None:
    model = app_model("shop", 0, 15.0, 10.0)
    warp = offered(warping(), 0.5, model=model)[StepKind.WARP]
    assert (warp.step.target, warp.step.amount) == ("shop", 29_651.0)
    assert warp.gain > offered(warping(), 0.2, model=model)[StepKind.WARP].gain
    assert StepKind.WARP not in offered(warping(), 0.05, model=model), "it waits for nothing"
    assert StepKind.WARP not in offered(warping(), 0.5, (kept(warp),), model)
    assert StepKind.WARP not in offered(warping(use=WarpUse.OFF), 0.5, model=model)
    assert StepKind.WARP not in offered(warping(warp_us=5_000), 0.5, model=model)
    assert StepKind.WARP not in offered(warping(200.0), 0.5), "an SLA that asks for none"


def test_warps_are_given_by_steps_alone_where_the_host_can() -> None:
    assert step_goals(StepsMemory(), seen(shop())).warps is None, "as registered"
    assert step_goals(StepsMemory(), warping()).warps == ()
    step = LadderStep(StepKind.WARP, "shop", 29_651.0, "shop")
    memory = StepsMemory(in_force=(kept(StepCandidate(step, 0.3, 0.02, 0.0, "it waits")),))
    [goal] = step_goals(memory, warping()).warps or ()
    assert (goal.vm, goal.warp_us, goal.reason) == ("shop", 29_651, "auto: for the SLA of shop (kept)")
    assert validate(Decision(warps=(goal,)), warping()) is None
    [text, *_] = told_steps(memory, "shop", "p95", NOW_S, acts=True)
    assert text.startswith("VMs of shop have a warp of 30 ms")
