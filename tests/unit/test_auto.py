"""`auto`: what its model says, whom it lowers, and when it takes that back."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.contention import Contender
from manager.control.feedback_law import average
from manager.control.resolve import validate
from manager.model.decision import ApplicationView, Decision, Snapshot, VmView
from manager.model.histogram import Histogram
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, WeightScale
from manager.model.law import Law
from manager.model.registration import Application, HostSpec, Mode, Sharing, Sla, Tier, VmClass
from manager.model.window import SlaState, Window
from policies.auto import COURSE_SMOOTHING, LONGEST_COOL_DOWN_S, LOWEST, best_levels, helped
from policies.auto import POLICY as AUTO
from policies.auto_crowd import Crowd
from policies.auto_memory import HOLD_S, TRIAL_S, AutoMemory, Cooling
from policies.auto_model import SPREAD, AppModel, HostModel, fit_model, weight_at
from policies.auto_steps import LadderStep, StepCandidate, StepInForce, StepKind, StepsMemory, StepTrial
from policies.cores import Sampling
from policies.priority import POLICY as PRIORITY
from tests.unit.build import capabilities, view


def app_model(name: str, vm: int, measured_ms: float, target_ms: float = 100.0, backlog_s: float = 0.0) -> AppModel:
    """An application of one VM whose requests take 10 ms of CPU time."""
    return AppModel(name, Sla(target_ms), (vm,), (0.01,), measured_ms, 2.5, 50.0, backlog_s=backlog_s, bottleneck=vm)


def host(*applications: tuple[AppModel, Contender], pcpus: float = 2.0) -> HostModel:
    apps, contenders = zip(*applications, strict=True)
    owners = tuple(app.name for app in apps)
    return HostModel(contenders, owners, (None,) * len(apps), apps, CPU_WEIGHT_V2, 2.0, pcpus)


CROWDED = host(
    (app_model("calm", 0, 105.0), Contender(0.4, 1)),
    (app_model("crowded", 1, 3000.0, backlog_s=3.0), Contender(0.9, 1)),
    pcpus=1,
)
"""On one pCPU one wants nearly all, and the other violates its SLA for that."""


def test_the_one_that_cannot_be_saved_is_lowered_for_those_that_can() -> None:
    levels = best_levels(CROWDED, {}, frozenset({"calm", "crowded"}))
    assert set(levels) == {"crowded"}
    assert CROWDED.violated(levels) < CROWDED.violated({}) - 0.1


def test_only_free_ones_are_lowered() -> None:
    assert best_levels(CROWDED, {}, frozenset({"calm"})) == {}
    assert best_levels(CROWDED, {}, frozenset()) == {}


def test_nothing_is_done_while_all_targets_are_met_with_room() -> None:
    calm = host((app_model("one", 0, 50.0), Contender(0.9, 1)), (app_model("two", 1, 70.0), Contender(0.9, 1)), pcpus=1)
    assert best_levels(calm, {}, frozenset({"one", "two"})) == {}


def test_levels_that_save_nothing_any_more_end() -> None:
    idle = host((app_model("one", 0, 50.0), Contender(0.1, 1)), (app_model("two", 1, 70.0), Contender(0.1, 1)))
    assert best_levels(idle, {"two": 2}, frozenset({"two"})) == {}


def test_an_application_above_its_agreed_load_counts_for_nothing() -> None:
    [calm, crowded] = CROWDED.applications
    over = replace(CROWDED, applications=(calm, replace(crowded, over=True)))
    assert over.violated({}) < CROWDED.violated({})


@pytest.mark.parametrize(
    ("scale", "weights"), [(CPU_SHARES_V1, [10_000, 2500, 1024, 1024]), (CPU_WEIGHT_V2, [10_000, 2500, 625, 156])]
)
def test_weights_of_levels(scale: WeightScale, weights: list[int]) -> None:
    assert [weight_at(level, scale) for level in range(LOWEST + 1)] == weights


def test_a_change_without_effect_passes_in_one_of_twenty_trials() -> None:
    """Percentiles that differ by chance alone, as the test takes them to: three applications to be saved."""
    random = Random(1)
    between = round((TRIAL_S) / 5)

    def course(start: float | None, intervals: int) -> float:
        value = start
        for _ in range(intervals):
            value = average(value, random.gauss(0, SPREAD), COURSE_SMOOTHING)
        assert value is not None
        return value

    passed = 0
    for _ in range(4000):
        before = {name: course(None, 30) for name in "abc"}
        passed += helped(before, {name: course(before[name], between) for name in "abc"})
    assert passed / 4000 < 0.06


def test_a_change_that_halves_response_times_passes() -> None:
    assert helped({"shop": math.log(1.4)}, {"shop": math.log(0.6)})
    assert not helped({"shop": math.log(1.4)}, {"shop": math.log(1.3)})
    assert helped({}, {"shop": 0.0}), "nobody was to be saved"


def application(
    name: str, times_ms: Sequence[float], target_ms: float, end_s: float, **fields: object
) -> ApplicationView:
    """Two slots of 5 s with these response times."""
    spec = replace(Application(name, (Tier("web", (f"{name}-web",)),), Sla(target_ms, 95.0, 15.0)), **fields)
    histogram = Histogram.of(time_ms * 1000 for time_ms in times_ms for _ in range(10))
    slots = tuple(Window(name, end - 5, end, histogram, histogram.count) for end in (end_s - 5, end_s))
    return ApplicationView(spec, slots[-1], SlaState.MET, slots)


def vm(name: str, used: float, waited: float) -> VmView:
    busy = replace(view(f"{name}-web", weight=10_000), cpu_share=used, run_delay_share=waited)
    return replace(busy, application=name, tier="web", vcpu_pcpus=(used,), vcpu_waits=(waited,))


def batch() -> VmView:
    return replace(view("batch", VmClass.BATCH, weight=1), cpu_share=0.05, run_delay_share=0.5)


def moment(at_s: float, *applications: ApplicationView, vms: Sequence[VmView], **fields: object) -> Snapshot:
    spec = HostSpec("h1", policy="auto", law=Law(), **fields)
    one_pcpu = replace(capabilities(CPU_WEIGHT_V2), online_cpus=frozenset({0}), managed_cpus=frozenset({0}))
    return Snapshot(at_s, 5.0, spec, one_pcpu, tuple(vms), applications)


def overloaded(at_s: float, saved_ms: float = 150.0, **fields: object) -> Snapshot:
    """`flooded` has a backlog of 2 s that grows, and `other` misses its target beside it."""
    return moment(
        at_s,
        application("flooded", [1500, 1900, 2000], 200.0, at_s, **fields),
        application("other", [saved_ms / 3, saved_ms / 2, saved_ms], 120.0, at_s),
        vms=[batch(), vm("flooded", 0.55, 0.45), vm("other", 0.4, 0.35)],
    )


def weights(decision: Decision) -> dict[str, int]:
    return {goal.vm: goal.weight for goal in decision.weights}


def test_it_begins_as_priority_and_stays_so_while_slas_are_met() -> None:
    met = moment(1000.0, application("shop", [10, 20, 30], 100.0, 1000.0), vms=[batch(), vm("shop", 0.3, 0.0)])
    decision = AUTO.decide(met, None)
    assert weights(decision) == weights(PRIORITY.decide(met, None))
    assert weights(AUTO.decide(met, decision.memory)) == weights(PRIORITY.decide(met, None))


def test_stale_response_times_end_levels() -> None:
    memory = AutoMemory(levels={"flooded": 3}, changed_s=1000.0)
    assert weights(AUTO.decide(overloaded(1005.0), memory))["flooded-web"] < 10_000, "fresh ones keep them"
    stale = replace(overloaded(1005.0), now_s=1100.0)
    assert weights(AUTO.decide(stale, memory))["flooded-web"] == 10_000


def test_levels_that_did_not_help_are_taken_back_and_not_tried_again_for_a_while() -> None:
    memory: object = None
    lowered: list[bool] = []
    for tick in range(60):
        decision = AUTO.decide(overloaded(1000.0 + 5 * tick), memory)
        memory = decision.memory
        lowered.append(weights(decision)["flooded-web"] < 10_000)
    assert lowered[0], "it is tried"
    assert not lowered[round(TRIAL_S / 5)], "`other` is as slow as before"
    again = lowered.index(True, round(TRIAL_S / 5))
    assert (again - TRIAL_S / 5) * 5 >= 120.0
    assert isinstance(memory, AutoMemory)
    assert memory.cooling["flooded"].times >= 1


def test_levels_that_never_help_are_taken_back_without_number() -> None:
    memory: object = AutoMemory(cooling={"flooded": Cooling(0.0, 1024)})
    for tick in range(round(TRIAL_S / 5) + 1):
        memory = AUTO.decide(overloaded(1000.0 + 5 * tick), memory).memory
    assert isinstance(memory, AutoMemory)
    assert memory.cooling["flooded"] == Cooling(1000.0 + TRIAL_S + LONGEST_COOL_DOWN_S, 1025)


def test_what_is_only_observed_is_not_judged_until_it_is_enforced() -> None:
    def seen(tick: int, mode: Mode) -> Snapshot:
        at_s = 1000.0 + 5 * tick
        moment = overloaded(at_s)
        return replace(moment, vms=tuple(replace(vm, mode=mode) for vm in moment.vms))

    memory: object = None
    for tick in range(60):
        decision = AUTO.decide(seen(tick, Mode.OBSERVE), memory)
        memory = decision.memory
        assert weights(decision)["flooded-web"] < 10_000, "it says so for as long as that is predicted to help"
    assert isinstance(memory, AutoMemory)
    assert not memory.cooling
    for tick in range(60, 60 + round(TRIAL_S / 5)):
        decision = AUTO.decide(seen(tick, Mode.ENFORCE), memory)
        memory = decision.memory
        lowered = weights(decision)["flooded-web"] < 10_000
    assert not lowered, "a trial began when it was written, and brought nothing"
    assert isinstance(memory, AutoMemory)
    assert memory.cooling["flooded"].times == 1


@pytest.mark.parametrize(("pause_s", "worse_s", "returned"), [(5.0, 50.0, 1), (3600.0, 0.0, 0)])
def test_a_pause_in_a_trial_is_nobodys_harm(pause_s: float, worse_s: float, returned: int) -> None:
    """As while the host was released: the SLA is violated then, and the error budget of trials is for trials."""
    quota = StepCandidate(LadderStep(StepKind.QUOTA, "batch", 0.5, "shop", 0.5), 0.3, 0.1, 0.0, "it is noisy")
    kept = StepInForce(quota, 500.0, 0.3, 500.0)
    trial = StepTrial(quota, 1000.0, {"shop": (-1.0,) * 6}, replaces=kept, off=True, at_risk=False)
    ladder = StepsMemory(
        (kept,), trial, {"shop": (-0.9, -0.8)}, changed_s=1000.0, began_s=0.0, known_s={"shop": 1040.0}
    )
    samplings = {"shop": Sampling(1040.0, 5, (45.0,), 1040.0)}
    memory = AutoMemory(ladder=ladder, samplings=samplings, decided_s=1045.0)
    at_s = 1045.0 + pause_s
    seen = moment(at_s, application("shop", [300, 500, 600], 100.0, at_s), vms=[batch(), vm("shop", 0.5, 0.45)])
    after = AUTO.decide(replace(seen, host=replace(seen.host, law=Law(min_samples=20))), memory).memory
    assert isinstance(after, AutoMemory)
    assert after.ladder.trial is None
    assert [(each.step, each.returned) for each in after.ladder.in_force] == [(quota.step, returned)]
    assert after.ladder.worse_s == worse_s


def test_levels_that_helped_are_kept() -> None:
    memory: object = AUTO.decide(overloaded(1000.0), None).memory
    for tick in range(1, 30):
        decision = AUTO.decide(overloaded(1000.0 + 5 * tick, saved_ms=60.0), memory)
        memory = decision.memory
        assert weights(decision)["flooded-web"] < 10_000, tick
    [note] = decision.notes
    assert note.application == "flooded"


@pytest.mark.parametrize(("other_ms", "lowered"), [(60.0, False), (90.0, False), (110.0, True)])
def test_nobody_is_lowered_while_nobody_else_is_at_risk(other_ms: float, lowered: bool) -> None:
    decision = AUTO.decide(overloaded(1000.0, saved_ms=other_ms), None)
    assert (weights(decision)["flooded-web"] < 10_000) is lowered, "`other` has a target of 120 ms"


@pytest.mark.parametrize(
    ("on_average", "usual", "lowered"), [(0.7, 0.1, False), (0.7, 0.19, True), (1.3, 0.0, True), (0.1, 0.0, False)]
)
def test_nobody_is_lowered_for_a_violation_that_may_be_chance(on_average: float, usual: float, lowered: bool) -> None:
    """`flooded` violates its SLA in this interval by far; of those before ``on_average`` of its target is left."""
    now_and_before = math.log(10.0), math.log(on_average)
    before = (now_and_before[1] - COURSE_SMOOTHING * now_and_before[0]) / (1 - COURSE_SMOOTHING)
    memory = AutoMemory(courses={"flooded": before, "other": 0.5}, usual={"flooded": usual / 0.9 - 0.1 / 0.9})
    decision = AUTO.decide(overloaded(1000.0), memory)
    assert isinstance(decision.memory, AutoMemory)
    assert decision.memory.courses["flooded"] == pytest.approx(math.log(on_average), abs=0.05)
    assert (weights(decision)["flooded-web"] < 10_000) is lowered


def test_nothing_is_done_at_the_cost_of_others_for_an_application_that_is_released() -> None:
    memory: object = None
    for tick in range(4):
        seen = overloaded(1000.0 + 5 * tick)
        assert weights(AUTO.decide(seen, None))["flooded-web"] < 10_000, "it would give its weight for `other`"
        released = [replace(vm, mode=Mode.RELEASED) if vm.application == "other" else vm for vm in seen.vms]
        decision = AUTO.decide(replace(seen, vms=tuple(released)), memory)
        memory = decision.memory
        assert weights(decision)["flooded-web"] == 10_000


def test_batch_vms_leave_no_room_for_an_application_that_is_released() -> None:
    room: dict[Mode, int] = {}
    for mode in Mode:
        memory: object = None
        for tick in range(4):
            at_s = 1000.0 + 5 * tick
            waiting = replace(vm("shop", 0.5, 0.45), mode=mode)
            seen = moment(at_s, application("shop", [300, 500, 600], 200.0, at_s), vms=[batch(), waiting])
            pcpus = replace(seen.capabilities, online_cpus=frozenset({0, 1}), managed_cpus=frozenset({0, 1}))
            decision = AUTO.decide(replace(seen, capabilities=pcpus, host=replace(seen.host, pinning=False)), memory)
            memory = decision.memory
        room[mode] = len(decision.cpus)
    assert room[Mode.ENFORCE] == 1
    assert room[Mode.RELEASED] == 0, "that is what is said of it"


def test_who_pays_for_load_above_the_agreed_rate_is_lowered_though_its_target_is_met() -> None:
    def crowd(sharing: Sharing | None) -> Snapshot:
        at_s = 1000.0
        return moment(
            at_s,
            application("crowd", [40, 80, 150] * 5, 200.0, at_s, sharing=sharing),
            application("other", [50, 75, 150], 120.0, at_s),
            vms=[batch(), vm("crowd", 0.55, 0.4), vm("other", 0.4, 0.35)],
        )

    model, _ = fit_model(crowd(Sharing.ISOLATION), CPU_WEIGHT_V2, AutoMemory().fits)
    assert [app.over for app in model.applications] == [True, False]
    model, _ = fit_model(crowd(None), CPU_WEIGHT_V2, AutoMemory().fits)
    assert [app.over for app in model.applications] == [False, False]


@pytest.mark.parametrize("answers_ms", [[], [200.0], [1.0] * 5])
def test_a_slot_that_has_just_begun_changes_nothing_of_rates(answers_ms: list[float]) -> None:
    """An agent's tick comes some milliseconds after a slot has ended."""
    shop = application("shop", [40, 80, 150], 200.0, 1000.0)
    histogram = Histogram.of(time_ms * 1000 for time_ms in answers_ms)
    begun = Window("shop", 1000.0, 1000.03, histogram, histogram.count)
    before = moment(1000.0, shop, vms=[batch(), vm("shop", 0.5, 0.1)])
    after = replace(before, applications=(replace(shop, slots=(*shop.slots, begun)),), now_s=1000.03)
    [then], [now] = (fit_model(seen, CPU_WEIGHT_V2, AutoMemory().fits)[0].applications for seen in (before, after))
    assert (now.arrivals_rps, now.request_s) == (then.arrivals_rps, then.request_s)
    assert now.measured_ms == pytest.approx(then.measured_ms, rel=0.1)


def test_nothing_is_learnt_of_an_interval_in_which_cpu_time_is_not_known() -> None:
    """The agent's first: nobody has used anything then, so that requests would seem to take no CPU time at all."""

    def seen(at_s: float, used: float, waited: float) -> Snapshot:
        shop = application("shop", [40, 80, 150], 200.0, at_s)
        return moment(at_s, shop, vms=[batch(), vm("shop", used, waited)])

    _, unknown = fit_model(seen(1000.0, 0.0, 0.0), CPU_WEIGHT_V2, AutoMemory().fits)
    [after] = fit_model(seen(1005.0, 0.5, 0.1), CPU_WEIGHT_V2, unknown)[0].applications
    [fresh] = fit_model(seen(1005.0, 0.5, 0.1), CPU_WEIGHT_V2, AutoMemory().fits)[0].applications
    assert unknown.applications["shop"].log_ratio is None
    assert (after.request_s, after.ratio) == (pytest.approx(fresh.request_s), pytest.approx(fresh.ratio))


def on_pcpus(seen: Snapshot, count: int) -> Snapshot:
    cpus = frozenset(range(count))
    return replace(seen, capabilities=replace(seen.capabilities, online_cpus=cpus, managed_cpus=cpus))


@pytest.mark.parametrize(
    ("pcpus", "vms", "pinning"), [(3, 4, False), (3, 3, None), (2, 4, None), (1, 3, None), (4, 9, False)]
)
def test_critical_vms_float_where_they_crowd_three_pcpus_or_more(pcpus: int, vms: int, pinning: bool | None) -> None:
    assert AUTO.decide(on_pcpus(crowded(1000.0, vms), pcpus), None).pinning is pinning


def crowded(at_s: float, vms: int = 4, percentile_ms: float = 150.0) -> Snapshot:
    """Packed VMs with a vCPU each; the first of their applications has a target of 120 ms."""
    times_ms = [percentile_ms / 3, percentile_ms / 2, percentile_ms]
    views = [vm(f"app-{number}", 0.1, 0.05) for number in range(vms)]
    return moment(at_s, application("app-0", times_ms, 120.0, at_s), vms=views, pinning=True)


def test_a_crowd_floats_once_an_sla_is_at_risk_on_average() -> None:
    memory: object = None
    pinnings = []
    for tick in range(16):
        at_s = 1000.0 + 5 * tick
        percentile_ms = 130.0 if tick == 4 or tick >= 8 else 30.0
        decision = AUTO.decide(on_pcpus(crowded(at_s, percentile_ms=percentile_ms), 3), memory)
        memory, pinnings = decision.memory, [*pinnings, decision.pinning]
    assert pinnings[:9] == [None] * 9, "one interval above the target may be chance"
    assert pinnings[-1] is False


def test_levels_stay_until_something_was_measured_of_a_crowd_that_has_just_begun_to_float() -> None:
    """Levels that are of no use any more: they would end at once."""

    def levels(floats: bool) -> Mapping[str, int]:
        before = AutoMemory(crowd=Crowd(4, 3, 0.3, floats), levels={"app-0": 1}, courses={"app-0": 1.0})
        decision = AUTO.decide(on_pcpus(crowded(1000.0, percentile_ms=30.0), 3), before)
        assert decision.pinning is False
        assert isinstance(decision.memory, AutoMemory)
        return decision.memory.levels

    assert levels(floats=True) == {}
    assert levels(floats=False) == {"app-0": 1}


def test_pinned_vms_are_lowered_where_they_share_a_pcpu_and_not_where_each_has_its_own() -> None:
    floating = on_pcpus(overloaded(1000.0), 2)
    usual = weights(PRIORITY.decide(floating, None))
    lowered = AutoMemory(levels={"flooded": 3}, changed_s=999.0)
    assert weights(AUTO.decide(with_pins(floating, (0,), (0,)), lowered)) != usual
    assert weights(AUTO.decide(with_pins(floating, (0, 1), (1,)), lowered)) != usual
    assert weights(AUTO.decide(with_pins(floating, (0,), (1,)), lowered)) == usual
    assert weights(AUTO.decide(with_pins(floating, (0,), ()), lowered)) != usual, "one of them floats"


def with_pins(snapshot: Snapshot, *pins: tuple[int, ...]) -> Snapshot:
    """With the critical VMs pinned to these pCPUs, in their order."""
    left = iter(pins)
    vms = tuple(replace(vm, pinned=frozenset(next(left))) if vm.critical else vm for vm in snapshot.vms)
    return replace(snapshot, vms=vms, host=replace(snapshot.host, pinning=True))


times = st.lists(st.floats(0.1, 60_000), min_size=1, max_size=8)


@given(st.lists(st.tuples(times, times), min_size=1, max_size=12), st.sampled_from([Sharing.ISOLATION, None]))
def test_whatever_is_measured_weights_are_legal_and_equal_input_gives_equal_output(
    ticks: list[tuple[list[float], list[float]]], sharing: Sharing | None
) -> None:
    memory: object = None
    for number, (first_ms, second_ms) in enumerate(ticks):
        at_s = 1000.0 + HOLD_S * number
        seen = moment(
            at_s,
            application("first", first_ms, 200.0, at_s, sharing=sharing),
            application("second", second_ms, 120.0, at_s),
            vms=[batch(), vm("first", 0.9, 0.1), vm("second", 0.2, 0.7)],
        )
        decision = AUTO.decide(seen, memory)
        assert decision == AUTO.decide(seen, memory)
        assert validate(decision, seen) is None
        memory = decision.memory
        scale = CPU_WEIGHT_V2
        assert all(
            scale.critical_min <= goal.weight <= scale.critical for goal in decision.weights if goal.vm != "batch"
        )
