"""`parties`: who is upsized and downsized, by which wheel and from whom, what is undone; and what always holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.resolve import validate
from manager.model.decision import ApplicationView, Decision, Snapshot, VmView
from manager.model.histogram import Histogram
from manager.model.host import CPU_WEIGHT_V2, WeightScale
from manager.model.registration import Application, HostSpec, Sla, Tier, VmClass
from manager.model.window import SlaState, Window
from policies.cores import Sampling
from policies.parties import (
    HOLD_SAMPLES,
    POLICY,
    REST,
    PartiesMemory,
    Slack,
    StepMoment,
    StepPhase,
    UnitPool,
    Wheel,
    first_wheel,
    next_wheel,
    start,
    step,
)
from tests.unit.build import capabilities, view

BOTH = (Wheel.CORES, Wheel.CACHE)


def pool(cores: int = 6, *, ways: int = 0, batch: bool = True) -> UnitPool:
    units = [(Wheel.CORES, tuple(range(cores)))]
    if ways:
        units.append((Wheel.CACHE, tuple(range(ways))))
    return UnitPool(tuple(units), ("a", "b"), batch)


def begin(cores: int = 6, *, ways: int = 0, batch: bool = True, wheel: Wheel = Wheel.CORES) -> PartiesMemory:
    kept = start(pool(cores, ways=ways, batch=batch))
    return replace(kept, wheels={"a": wheel, "b": wheel}, samplings={"a": Sampling(0.0, 1), "b": Sampling(0.0, 1)})


def slack(now: float, long: float | None = None, at_s: float = 1e9) -> Slack:
    """``at_s``: when that sample was complete; usually after whatever step."""
    return Slack(now, now if long is None else long, 100 * (1 - now), at_s)


def after(kept: PartiesMemory, a: Slack | None, b: Slack | None, *, times: int = 1) -> PartiesMemory:
    """So many more samples of both applications, all with these slacks."""
    for _ in range(times):
        samplings = {name: replace(held, number=held.number + 1) for name, held in kept.samplings.items()}
        slacks = {name: seen for name, seen in (("a", a), ("b", b)) if seen is not None}
        at_s = float(samplings["a"].number)
        kept = step(replace(kept, samplings=samplings), StepMoment(at_s, 30.0, slacks), new=True)
    return kept


def sizes(kept: PartiesMemory, wheel: Wheel = Wheel.CORES) -> tuple[int, int, int]:
    return tuple(len(kept.shares[wheel][owner]) for owner in ("a", "b", REST))


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (slack(-0.1), slack(0.1), (3, 2, 1)),
        (slack(0.1), slack(0.04), (2, 3, 1)),
        (slack(0.04), slack(-0.5), (2, 3, 1)),  # the one of least long slack
        (slack(-0.5, 0.04), slack(0.0, 0.01), (2, 3, 1)),
        (slack(-0.1, 0.1), slack(0.1), (2, 2, 2)),  # a single bad sample is none
        (slack(0.1, -0.1), slack(0.1), (2, 2, 2)),
        (slack(0.5), slack(0.1), (1, 2, 3)),
        (slack(0.5), slack(0.6), (2, 1, 3)),  # the one of most slack
        (slack(0.5), slack(0.0), (2, 3, 1)),  # upsizing comes first
        (slack(0.5, 0.1), slack(0.1), (2, 2, 2)),
        (slack(0.2), slack(0.05), (2, 2, 2)),
        (None, None, (2, 2, 2)),  # no SLA, or no data
        (None, slack(-0.1), (2, 3, 1)),
    ],
)
def test_who_is_upsized_or_downsized(a, b, expected) -> None:
    assert sizes(after(begin(), a, b)) == expected


@pytest.mark.parametrize(
    ("cores", "batch", "b", "expected"),
    [
        (6, True, slack(0.1), (3, 2, 1)),  # of the rest
        (3, True, slack(0.1), (2, 1, 0)),  # the last one, too
        (4, False, None, (2, 2, 0)),  # nothing is known of b
        (4, False, slack(0.1), (3, 1, 0)),
        (2, False, slack(0.1), (1, 1, 0)),
    ],
)
def test_of_whom_an_upsize_is(cores: int, batch: bool, b, expected) -> None:
    assert sizes(after(begin(cores, batch=batch), slack(-0.1), b)) == expected


@pytest.mark.parametrize(("wheel", "expected"), [(Wheel.CORES, Wheel.CACHE), (Wheel.CACHE, Wheel.CORES)])
def test_wheels_turn(wheel: Wheel, expected: Wheel) -> None:
    assert next_wheel(wheel, BOTH) is expected
    assert next_wheel(Wheel.CORES, (Wheel.CORES,)) is Wheel.CORES


def test_first_wheels_differ_by_name_and_are_always_the_same() -> None:
    names = [f"app-{number}" for number in range(20)]
    assert {first_wheel(name, BOTH) for name in names} == set(BOTH)
    assert [first_wheel(name, BOTH) for name in names] == [first_wheel(name, BOTH) for name in names]


def test_a_wheel_with_fewer_units_than_sharers_is_skipped() -> None:
    assert pool(6, ways=2).wheels == (Wheel.CORES,)
    assert pool(1, ways=6).wheels == (Wheel.CACHE,)
    assert pool(1).wheels == ()
    assert pool(2, ways=3).wheels == BOTH


def test_an_upsize_that_helps_is_kept_and_so_is_its_wheel() -> None:
    upsized = after(begin(ways=6), slack(-0.2), slack(0.1))
    assert upsized.watch is not None
    judged = after(upsized, slack(0.1), slack(0.1), times=5)
    assert sizes(judged) == (3, 2, 1)
    assert judged.watch is None
    assert judged.wheels["a"] is Wheel.CORES


def test_while_a_step_is_judged_nothing_else_is_done() -> None:
    upsized = after(begin(), slack(-0.2), slack(0.1))
    later = after(upsized, slack(-0.1), slack(-0.9), times=4)
    assert sizes(later) == (3, 2, 1)
    assert later.watch is not None


def test_an_upsize_that_does_not_help_is_kept_and_the_next_wheel_tried_then_the_round_is_given_up() -> None:
    upsized = after(begin(ways=6), slack(-0.2), slack(0.1))
    second = after(upsized, slack(-0.3), slack(0.1), times=5)
    assert sizes(second) == (3, 2, 1)
    assert sizes(second, Wheel.CACHE) == (3, 2, 1)
    third = after(second, slack(-0.3), slack(0.1), times=5)
    assert third.watch is None
    assert third.wheels["a"] is Wheel.CORES
    # The next sample begins a new round.
    assert sizes(after(third, slack(-0.3), slack(0.1))) == (4, 2, 0)


def test_more_samples_must_be_better_than_worse() -> None:
    upsized = after(begin(ways=6), slack(-0.2), slack(0.1))
    two = after(upsized, slack(0.0), slack(0.1), times=2)
    assert after(two, slack(-0.3), slack(0.1), times=3).wheels["a"] is Wheel.CACHE
    three = after(two, slack(0.0), slack(0.1))
    assert after(three, slack(-0.3), slack(0.1), times=2).wheels["a"] is Wheel.CORES


def test_a_wheel_without_a_donor_counts_as_failed() -> None:
    kept = begin(2, ways=6)
    upsized = after(kept, slack(-0.2), slack(0.1))
    assert sizes(upsized) == (1, 1, 0)
    assert sizes(upsized, Wheel.CACHE) == (3, 2, 1)
    assert upsized.watch is not None
    assert upsized.watch.failed == 1


@pytest.mark.parametrize(("wheel_of_b", "expected"), [(Wheel.CORES, Wheel.CACHE), (Wheel.CACHE, Wheel.CACHE)])
def test_the_wheel_of_a_victim_on_the_same_one_turns(wheel_of_b: Wheel, expected: Wheel) -> None:
    kept = begin(4, ways=6, batch=False)
    kept = replace(kept, wheels={"a": Wheel.CORES, "b": wheel_of_b})
    upsized = after(kept, slack(-0.2), slack(0.1))
    assert sizes(upsized) == (3, 1, 0)
    assert upsized.wheels == {"a": Wheel.CORES, "b": expected}


def test_a_downsize_that_does_no_harm_is_kept() -> None:
    judged = after(after(begin(), slack(0.5), slack(0.1)), slack(0.4), slack(0.1), times=5)
    assert sizes(judged) == (1, 2, 3)
    assert judged.watch is None
    assert judged.holds == {}


@pytest.mark.parametrize("harmed", [(slack(0.0), slack(0.1)), (slack(0.5), slack(0.0))])
def test_a_downsize_that_harms_anyone_is_undone_and_held(harmed) -> None:
    kept = begin(ways=6)
    smaller = after(kept, slack(0.5), slack(0.1))
    undone = after(smaller, *harmed, times=5)
    assert undone.shares == kept.shares
    assert undone.wheels["a"] is Wheel.CACHE
    assert undone.holds["a"] == undone.samplings["a"].number + HOLD_SAMPLES
    assert undone.watch is not None
    assert undone.watch.phase is StepPhase.WAIT
    waited = after(undone, slack(0.5), slack(0.1), times=5)
    assert waited.watch is None
    held = after(waited, slack(0.5), slack(0.1), times=HOLD_SAMPLES - 6)
    assert held.shares == kept.shares
    assert sizes(after(held, slack(0.5), slack(0.1)), Wheel.CACHE) == (1, 2, 3)


def test_samples_from_before_a_downsize_do_not_count_against_it() -> None:
    smaller = after(begin(), slack(0.5), slack(0.0, 0.1, at_s=0.5))
    assert smaller.watch is not None
    judged = after(smaller, slack(0.5), slack(0.0, 0.1, at_s=0.5), times=5)
    assert sizes(judged) == (1, 2, 3)
    assert judged.watch is None


def test_after_an_undo_is_waited_twice_at_most() -> None:
    undone = after(after(begin(), slack(0.5), slack(0.1)), slack(0.0), slack(0.1), times=5)
    bad = slack(0.0), slack(0.1)
    longer = after(undone, *bad, times=5)
    assert longer.watch is not None
    assert longer.watch.phase is StepPhase.WAIT_MORE
    assert after(longer, *bad, times=5).watch is None


def test_an_application_with_one_unit_is_not_downsized_and_the_next_one_is() -> None:
    kept = begin(5)
    lesser = after(after(kept, slack(0.6), slack(0.5)), slack(0.6), slack(0.5), times=5)
    assert sizes(lesser) == (1, 2, 2)
    assert sizes(after(lesser, slack(0.6), slack(0.5))) == (1, 1, 3)


def test_without_a_new_sample_nothing_is_decided() -> None:
    kept = begin()
    assert step(kept, StepMoment(5.0, 30.0, {"a": slack(-0.5)}), new=False) == kept


def test_a_step_of_an_application_that_fell_silent_is_not_judged_for_ever() -> None:
    upsized = after(begin(), slack(-0.2), slack(0.1))
    assert upsized.watch is not None
    for age_s, watched in ((60.0, True), (60.1, False)):
        later = step(upsized, StepMoment(upsized.watch.at_s + age_s, 30.0, {}), new=False)
        assert (later.watch is not None) is watched
        assert later.shares == upsized.shares


# The policy as a whole.


def web(name: str, application: str | None) -> VmView:
    return replace(view(name), application=application, tier="web")


def moment(
    times_ms: Mapping[str, float | None],
    now_s: float = 1000.0,
    *,
    pcpus: int = 4,
    batch: int = 1,
    scale: WeightScale | None = CPU_WEIGHT_V2,
) -> Snapshot:
    """Applications that answered sixty times in the last second, in that time each; None: not at all."""
    vms = [web(f"{name}-web", name) for name in times_ms] + [
        replace(view(f"z-batch-{number}", VmClass.BATCH), quota_period_us=100_000) for number in range(batch)
    ]
    views = []
    for name, time_ms in times_ms.items():
        spec = Application(name, (Tier("web", (f"{name}-web",)),), Sla(100.0))
        histogram = Histogram() if time_ms is None else Histogram.of([time_ms * 1000] * 60)
        slot = Window(name, now_s - 1, now_s, histogram, float(histogram.count))
        views.append(ApplicationView(spec, slot, SlaState.MET, (slot,)))
    cpus = frozenset(range(pcpus))
    host = replace(capabilities(scale, 2), online_cpus=cpus, managed_cpus=cpus)
    return Snapshot(now_s, 0.5, HostSpec("h1"), host, tuple(vms), tuple(views))


def where(decision: Decision) -> dict[str, frozenset[int]]:
    return {goal.vm: goal.cpus for goal in decision.cpus}


def test_what_counts_by_samples_ends_with_the_sla_whose_samples_they_were() -> None:
    """Those of its next SLA are counted from 0."""
    seen = moment({"a": 50.0, "b": 90.0})
    kept = POLICY.decide(seen, None).memory
    assert isinstance(kept, PartiesMemory)
    held = replace(kept, holds={"a": 5_000, "b": 5_000})
    without = tuple(
        replace(each, application=replace(each.application, sla=None)) if each.application.name == "a" else each
        for each in seen.applications
    )
    later = POLICY.decide(replace(seen, applications=without), held).memory
    assert isinstance(later, PartiesMemory)
    assert later.holds == {"b": 5_000}


def test_it_begins_with_an_even_split() -> None:
    decision = POLICY.decide(moment({"a": 80.0, "b": 80.0}, pcpus=6), None)
    assert where(decision) == {"a-web": {0, 1}, "b-web": {2, 3}, "z-batch-0": {4, 5}}
    assert {goal.vm: goal.weight for goal in decision.weights} == {"a-web": 100, "b-web": 100, "z-batch-0": 1}
    assert decision.quotas == ()
    assert decision.pinning is False
    assert decision.ways == ()
    assert decision.cpus[0].reason == "parties: pCPUs 0-1: split evenly at first"


def test_a_violated_application_gets_a_pcpu_and_the_reason_says_so() -> None:
    decision = POLICY.decide(moment({"a": 80.0, "b": 120.0}, pcpus=6), None)
    assert where(decision) == {"a-web": {0, 1}, "b-web": {2, 3, 4}, "z-batch-0": {5}}
    reasons = {goal.vm: goal.reason for goal in decision.cpus}
    assert reasons["b-web"].startswith("parties: pCPUs 2-4: b was upsized at slack -19 %")
    assert reasons["z-batch-0"].startswith("parties: pCPUs 5: b was upsized at slack -19 %")


def test_batch_vms_whose_last_pcpu_is_taken_float_until_one_is_free() -> None:
    taken = POLICY.decide(moment({"a": 120.0, "b": 80.0}, pcpus=3), None)
    assert where(taken) == {"a-web": {0, 2}, "b-web": {1}, "z-batch-0": {0, 1, 2}}
    memory = taken.memory
    for second in range(1, 20):
        decision = POLICY.decide(moment({"a": 60.0, "b": 80.0}, 1000.0 + second, pcpus=3), memory)
        memory = decision.memory
    assert where(decision) == {"a-web": {2}, "b-web": {1}, "z-batch-0": {0}}


def test_with_too_few_pcpus_applications_share_and_batch_floats_at_the_least_weight() -> None:
    decision = POLICY.decide(moment({"a": 500.0, "b": 500.0, "c": 500.0}, pcpus=2), None)
    assert where(decision) == {"a-web": {0}, "b-web": {1}, "c-web": {0}, "z-batch-0": {0, 1}}
    weights = {goal.vm: goal.weight for goal in decision.weights}
    assert (weights["a-web"], weights["z-batch-0"]) == (CPU_WEIGHT_V2.default, CPU_WEIGHT_V2.batch)


def test_where_the_cache_is_divided_its_ways_are_a_wheel_too() -> None:
    """The first wheel is by name."""
    names = sorted("abcdefgh", key=lambda name: (first_wheel(name, BOTH) is Wheel.CACHE, name))
    on_cores, on_cache = names[0], names[-1]
    now = replace(moment({on_cores: 80.0, on_cache: 120.0}, pcpus=6), cache_ways=11)
    decision = POLICY.decide(now, None)
    ways = {goal.application: goal.ways for goal in decision.ways}
    first, second = sorted((on_cores, on_cache))
    split = {first: 4, second: 4}
    assert ways == {**split, on_cache: 5}
    assert {len(cpus) for cpus in where(decision).values()} == {2}
    assert decision.ways[0].reason.startswith("parties: ")


def test_another_set_of_applications_is_split_anew() -> None:
    first = POLICY.decide(moment({"a": 80.0, "b": 120.0}, pcpus=6), None)
    second = POLICY.decide(moment({"a": 80.0, "b": 80.0, "c": 80.0}, 1001.0, pcpus=6), first.memory)
    assert [len(cpus) for cpus in where(second).values()] == [2, 2, 1, 1]


def test_vms_without_an_application_have_a_share_that_stays() -> None:
    now = moment({"a": 120.0}, pcpus=6)
    now = replace(now, vms=(*now.vms, web("alone", None)))
    assert len(where(POLICY.decide(now, None))["alone"]) == 2  # as many as a had before it was upsized


def test_a_host_without_usable_pcpus_gets_weights_alone() -> None:
    now = moment({"a": 80.0})
    now = replace(now, capabilities=replace(now.capabilities, managed_cpus=frozenset()))
    decision = POLICY.decide(now, None)
    assert decision.cpus == ()
    assert decision.weights
    assert POLICY.decide(moment({"a": 80.0}, scale=None), None).weights == ()


COURSES = st.lists(
    st.lists(st.sampled_from([None, 10.0, 70.0, 90.0, 99.0, 150.0]), min_size=3, max_size=3), max_size=40
)


@settings(max_examples=60, deadline=None)
@given(COURSES, st.integers(1, 3), st.integers(1, 8), st.integers(0, 2), st.sampled_from([0, 3, 12]))
def test_what_always_holds(course, applications: int, pcpus: int, batch: int, ways: int) -> None:
    """Sets are usable, non-empty and, with enough pCPUs, disjoint; everyone is somewhere; equal in, equal out."""
    memory: object = None
    for number, times_ms in enumerate(course):
        named = dict(zip("abc"[:applications], times_ms, strict=False))
        now = replace(moment(named, 1000.0 + number, pcpus=pcpus, batch=batch), cache_ways=ways)
        decision = POLICY.decide(now, memory)
        assert decision == POLICY.decide(now, memory)
        assert validate(decision, now) is None
        sets = where(decision)
        assert sets.keys() == {vm.name for vm in now.vms}
        assert all(cpus and cpus <= frozenset(range(pcpus)) for cpus in sets.values())
        shared = {frozenset(cpus) for vm, cpus in sets.items() if vm.startswith("z-batch")}
        each = [cpus for vm, cpus in sets.items() if not vm.startswith("z-batch")] + list(shared)
        assert len(shared) <= 1
        if pcpus >= applications:
            floats = shared == {frozenset(range(pcpus))}
            apart = each[:applications] if floats else each
            assert sum(map(len, apart)) == len(frozenset().union(*apart))
        given = [goal.ways for goal in decision.ways]
        assert len(given) == (applications if ways >= applications + bool(batch) else 0)
        assert not given or (min(given) >= 1 and sum(given) <= ways - bool(batch))
        if batch:
            assert frozenset().union(*each) == frozenset(range(pcpus))
        memory = decision.memory
