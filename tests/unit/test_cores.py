"""What `parties` and `heracles` share: shares of pCPUs, and samples of response times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.model.decision import ApplicationView, Snapshot
from manager.model.histogram import Histogram
from manager.model.law import Law
from manager.model.registration import Application, HostSpec, Mode, Sla, VmClass
from manager.model.rules import PlacementRules
from manager.model.topology import Pcpu, Topology
from manager.model.window import Ready, SlaState, Window
from policies.cores import (
    Sampling,
    batch_vms,
    cpus_goal,
    nearest,
    ordered_cpus,
    owners,
    pack,
    recent_percentile_ms,
    sample,
    share_evenly,
    weight_goals,
)
from tests.unit.build import capabilities, snapshot, view

SLA = Sla(100.0)
LAW = Law(min_samples=50, max_age_s=30.0)


def slot(end_s: float, count: int, time_ms: float = 50.0, length_s: float = 1.0) -> Window:
    return Window("shop", end_s - length_s, end_s, Histogram.of([time_ms * 1000] * count), float(count))


def seen(slots: Sequence[Window], now_s: float = 1000.0, law: Law = LAW, ahead_s: float = 0.0) -> tuple:
    """The application's view and the moment."""
    shop = ApplicationView(Application("shop", sla=SLA), None, SlaState.MET, tuple(slots))
    return shop, Snapshot(now_s, 1.0, HostSpec("h1", law=law), capabilities(), (), (shop,), ahead_s)


def take(slots: Sequence[Window], before: Sampling | None, **moment: object) -> Sampling:
    shop, now = seen(slots, **moment)  # type: ignore[arg-type]
    return sample(shop, SLA, now, before)


@pytest.mark.parametrize(
    ("since_s", "slots", "complete"),
    [
        (998.0, [slot(999, 25), slot(1000, 25)], True),
        (998.0, [slot(999, 25), slot(1000, 24)], False),  # wait for more
        (998.0, [slot(998, 100), slot(1000, 24)], False),  # those of the sample before do not count again
        (970.0, [slot(1000, 20)], True),  # after max_age_s fewer do
        (970.0, [slot(1000, 19)], False),
        (998.0, [slot(1000.5, 100)], False),  # goes on
        (998.0, [], False),
    ],
)
def test_a_sample_is_complete_with_enough_response_times_or_after_a_while(since_s, slots, complete: bool) -> None:
    after = take(slots, Sampling(since_s, 3, (40.0,), 990.0))
    assert after.number == 3 + complete
    assert len(after.latencies_ms) == 1 + complete
    if complete:
        assert (after.since_s, after.at_s) == (1000.0, 1000.0)
        assert after.latencies_ms[-1] == pytest.approx(50.0, rel=0.01)


def test_after_a_silence_sampling_starts_anew() -> None:
    after = take([slot(980, 5)], Sampling(970.0, 3, (40.0,), 970.0))
    assert (after.number, after.since_s) == (3, 1000.0)
    assert after.is_fresh(1000.0, LAW)
    assert not after.is_fresh(1000.1, LAW)


def test_a_percentile_that_a_source_computed_is_a_sample() -> None:
    ready = Window("shop", 999.0, 1000.0, Histogram(), None, Ready(95.0, 70.0))
    assert take([ready], Sampling(998.0)).latencies_ms == (70.0,)


def test_samples_are_of_steady_time_when_the_clock_was_set() -> None:
    first = take([slot(1000, 60)], Sampling(998.0))
    ahead = take([slot(4601, 60, 80.0)], first, now_s=4601.0, ahead_s=3600.0)
    assert (ahead.number, ahead.since_s) == (2, 1001.0)


def test_slack_is_of_the_newest_and_long_slack_of_the_last_ten() -> None:
    sampling: Sampling | None = None
    for number, time_ms in enumerate([500.0, *[90.0] * 9, 60.0]):
        end_s = 1000.0 + number
        sampling = take([slot(end_s, 60, time_ms)], sampling, now_s=end_s)
    assert sampling is not None
    assert sampling.number == 11
    assert sampling.slack(100.0) == pytest.approx(0.4, abs=0.01)
    assert sampling.long_slack(100.0) == pytest.approx(0.13, abs=0.02)


@pytest.mark.parametrize(
    ("slots", "expected_ms"),
    [
        ([slot(980, 100, 10.0), slot(1000, 60, 50.0)], 50.0),
        ([slot(980, 500, 10.0), slot(1000, 20, 50.0)], 10.0),  # too few in 15 s: more is taken
        ([slot(960, 500, 10.0), slot(1000, 19, 50.0)], None),
        ([slot(960, 500, 10.0), slot(1000, 20, 50.0)], 50.0),
        ([], None),
    ],
)
def test_the_percentile_of_the_last_seconds(slots, expected_ms: float | None) -> None:
    shop, now = seen(slots)
    measured_ms = recent_percentile_ms(shop, SLA, now, 15.0)
    assert measured_ms == (None if expected_ms is None else pytest.approx(expected_ms, rel=0.02))


NAMES = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True).map(sorted)


@given(st.lists(st.integers(0, 99), unique=True), NAMES)
def test_even_shares_are_disjoint_complete_and_even(units: list[int], names: list[str]) -> None:
    shares = share_evenly(units, names)
    sizes = [len(shares[name]) for name in names]
    assert sorted(unit for share in shares.values() for unit in share) == sorted(units)
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(st.lists(st.integers(0, 9), min_size=1, unique=True), NAMES)
def test_packed_names_have_one_pcpu_each_and_all_are_used(order: list[int], names: list[str]) -> None:
    packed = pack(tuple(order), names)
    assert all(len(cpus) == 1 for cpus in packed.values())
    assert len(frozenset().union(*packed.values())) == min(len(order), len(names))


def test_nothing_can_be_packed_onto_no_pcpu() -> None:
    with pytest.raises(ValueError, match="no pCPU"):
        pack((), ["a"])


TWO_CACHES = {
    number: Pcpu(number, core=number % 4, socket=0, node=0, l3=0 if number % 4 < 2 else 2) for number in range(8)
}


@pytest.mark.parametrize(
    ("candidates", "to", "expected"),
    [
        ({1, 4, 6}, {0}, 4),  # the other hyperthread
        ({1, 6}, {0}, 1),  # the same cache
        ({2, 6}, {0}, 2),  # the nearest number
        ({5, 7}, set(), 5),
    ],
)
def test_the_pcpu_that_shares_most_moves(candidates, to, expected: int) -> None:
    assert nearest(candidates, to, TWO_CACHES) == expected


def test_pcpus_are_in_the_order_of_the_hardware_and_usable_ones_only() -> None:
    host = replace(
        capabilities(),
        online_cpus=frozenset(range(8)),
        managed_cpus=frozenset(range(8)),
        topology=Topology(tuple(TWO_CACHES.values())),
    )
    rules = PlacementRules(reserved_cpus=frozenset({0}))
    assert ordered_cpus(Snapshot(0.0, 1.0, HostSpec("h1", placement=rules), host)) == (4, 1, 5, 2, 6, 3, 7)


def test_a_registered_set_of_pcpus_counts() -> None:
    vm = view("web")
    apart = replace(vm, spec=replace(vm.spec, cpus=frozenset({2, 3})))
    assert cpus_goal(vm, frozenset({0, 1}), "why").cpus == {0, 1}
    assert cpus_goal(apart, frozenset({1, 2}), "why").cpus == {2}
    assert cpus_goal(apart, frozenset({0, 1}), "why") is None


def test_released_vms_are_not_decided_for() -> None:
    shop = replace(view("web"), application="shop")
    now = snapshot(shop, view("free"), view("b", VmClass.BATCH), view("gone", VmClass.BATCH, mode=Mode.RELEASED))
    assert owners(now) == ("", "shop")
    assert [vm.name for vm in batch_vms(now)] == ["b"]


def test_a_registered_weight_counts_and_a_host_without_weights_gets_none() -> None:
    vms = view("web"), view("own", own_weight=7), view("b", VmClass.BATCH)
    assert [goal.weight for goal in weight_goals(snapshot(*vms), 100, 2, "x")] == [100, 7, 2]
    assert weight_goals(snapshot(*vms, scale=None), 100, 2, "x") == ()
