"""Who is measured where counters are few, and rates from counters that begin anew, fail or stand still."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.monitoring import Counted, Traffic, Watched, plan_watch, totals, traffic
from manager.model.cache import (
    DEFAULT,
    BandwidthResource,
    BandwidthUnit,
    CacheResource,
    CacheUse,
    Mask,
    Monitoring,
    Resctrl,
    monitoring_group,
)

CACHE = CacheResource("L3", Mask(0xFF), 1, Mask(0), 4, False, (0, 1))
LIMIT = BandwidthResource("MB", 10, 10, 100, BandwidthUnit.PERCENT, True, 3, (0, 1))
SHOP, BATCH, FOREIGN = "equipoise-shop", "equipoise-+batch", "pqos"
CONTROLS = (DEFAULT, SHOP, BATCH, FOREIGN)
OURS = frozenset({"equipoise-x"})


def offered(rmids: int, closids: int = 4) -> Resctrl:
    return Resctrl((replace(CACHE, closids=closids),), (), Monitoring(frozenset({"mbm_total_bytes"}), rmids))


def vm(name: str, group: str = DEFAULT, *, critical: bool = False, rate: float = 0.0, vcpus: int = 1) -> Watched:
    return Watched(f"uuid-{name}", name, group, critical, rate, vcpus)


def test_a_vm_alone_in_a_group_of_ours_is_measured_by_that_and_others_by_one_of_their_own() -> None:
    watched = [vm("web", SHOP, critical=True), vm("a", BATCH), vm("b", BATCH), vm("lone")]
    plan = plan_watch(offered(32), watched, dict.fromkeys((DEFAULT, SHOP, BATCH), frozenset()))
    assert plan.of == {
        "uuid-web": SHOP,
        "uuid-a": f"{BATCH}/mon_groups/equipoise-a",
        "uuid-b": f"{BATCH}/mon_groups/equipoise-b",
        "uuid-lone": "mon_groups/equipoise-lone",
    }
    assert plan.wanted.keys() == plan.of.keys() - {"uuid-web"}, "the default group has more than VMs"
    assert (plan.unneeded, plan.left_out) == ((), ())


def test_where_counters_are_few_critical_vms_come_first_then_those_that_have_one_then_by_traffic_and_size() -> None:
    watched = [vm("web", critical=True), vm("idle"), vm("big", vcpus=8), vm("busy", rate=9e9), vm("kept")]
    present = {DEFAULT: frozenset({"equipoise-kept", "perf"})}
    for free, names in enumerate(
        ([], ["web"], ["web", "kept"], ["web", "kept", "busy"], ["web", "kept", "busy", "big"])
    ):
        plan = plan_watch(offered(4 + 1 + free), watched, present)  # the control groups, and one of another tool
        assert [path.rpartition("equipoise-")[2] for path in plan.wanted.values()] == names
        assert plan.left_out == tuple(sorted({one.name for one in watched} - set(names)))


def test_groups_that_nobody_needs_are_told_and_those_of_others_are_not() -> None:
    present = {DEFAULT: {"equipoise-gone", "perf"}, SHOP: {"equipoise-web"}, FOREIGN: {"equipoise-odd"}}
    plan = plan_watch(offered(32), [vm("web", SHOP)], present)
    assert plan.unneeded == (f"{SHOP}/mon_groups/equipoise-web", "mon_groups/equipoise-gone")


VMS = st.lists(
    st.builds(
        vm,
        st.sampled_from("abcdefghij"),
        st.sampled_from((DEFAULT, SHOP, BATCH)),
        critical=st.booleans(),
        rate=st.floats(0, 1e11),
        vcpus=st.integers(0, 64),
    ),
    unique_by=lambda one: one.name,
    max_size=10,
)
INSIDE = st.fixed_dictionaries(
    {
        name: st.frozensets(st.sampled_from(["perf", "other", *(f"equipoise-{one}" for one in "abcdefghijkl")]))
        for name in CONTROLS
    }
)


@given(VMS, INSIDE, st.integers(0, 40), st.integers(1, 8))
def test_counters_are_never_overdrawn_and_each_vm_is_measured_or_named(
    watched: list[Watched], present: dict[str, frozenset[str]], rmids: int, closids: int
) -> None:
    plan = plan_watch(offered(rmids, closids), watched, present)
    ours = {
        monitoring_group(group, name.removeprefix("equipoise-"))
        for group, names in present.items()
        if group != FOREIGN
        for name in names
        if name.startswith("equipoise-")
    }
    others = sum(map(len, present.values())) - len(ours)
    assert not plan.wanted or len(plan.wanted) + max(closids, len(present)) + others <= rmids
    assert set(plan.unneeded) == ours - set(plan.wanted.values())
    assert sorted([*plan.of, *(f"uuid-{name}" for name in plan.left_out)]) == sorted(one.key for one in watched)
    assert len(set(plan.of.values())) == len(plan.of), "nobody's numbers are two VMs'"
    for one in watched:
        assert plan.of.get(one.key, SHOP if one.group == SHOP else one.group).startswith(one.group)
        if not one.critical and one.key in plan.wanted:
            assert not any(other.critical and other.name in plan.left_out for other in watched)
    after = {group: set(names) for group, names in present.items()}
    for path in plan.unneeded:
        after[path.partition("mon_groups")[0].rstrip("/")].discard(path.rpartition("/")[2])
    for path in plan.wanted.values():
        after[path.partition("mon_groups")[0].rstrip("/")].add(path.rpartition("/")[2])
    again = plan_watch(offered(rmids, closids), watched, after)
    assert (again.of, again.unneeded) == (plan.of, ()), "once done it stays"


def test_rates_are_differences_over_the_time_between() -> None:
    before = Counted(10.0, (CacheUse(0, 5, 1000, 400), CacheUse(1, 6, 0, 0)))
    now = Counted(12.0, (CacheUse(0, 7, 3000, 500), CacheUse(1, None, 8, 0)))
    assert traffic(before, now) == (Traffic(0, 7, 1000.0, 50.0), Traffic(1, None, 4.0, 0.0))
    assert traffic(None, now) == (Traffic(0, 7), Traffic(1))


@pytest.mark.parametrize(
    "before",
    [
        Counted(10.0, (CacheUse(0, 1, 3001, 501),)),
        Counted(10.0, (CacheUse(0, 1, None, None),)),
        Counted(10.0, (CacheUse(1, 1, 1, 1),)),
        Counted(12.0, (CacheUse(0, 1, 1, 1),)),
        Counted(10.0, (CacheUse(0, 1, 1, 1),), frozenset({"equipoise-web"})),
    ],
    ids=["went back", "had failed", "another domain", "no time passed", "another group inside"],
)
def test_what_cannot_be_compared_is_no_rate(before: Counted) -> None:
    assert traffic(before, Counted(12.0, (CacheUse(0, 7, 3000, 500),))) == (Traffic(0, 7),)


COUNTERS = st.none() | st.integers(0, 2**62)
USES = st.lists(st.builds(CacheUse, st.integers(0, 3), COUNTERS, COUNTERS, COUNTERS), unique_by=lambda one: one.domain)


@given(USES, USES, st.floats(0, 1e6), st.floats(0, 1e6))
def test_no_rate_is_ever_negative(before: list[CacheUse], now: list[CacheUse], then_s: float, now_s: float) -> None:
    found = traffic(Counted(then_s, tuple(before)), Counted(now_s, tuple(now)))
    assert [one.domain for one in found] == [one.domain for one in now]
    assert all(rate is None or rate >= 0 for one in found for rate in (one.total, one.local))


def test_a_total_is_known_only_where_all_of_it_is() -> None:
    groups = [
        (Traffic(0, 1, 2.0), Traffic(1, 1, 3.0)),
        (Traffic(0, 1, 4.0), Traffic(1, 1, None)),
        (Traffic(1, 1, 9.0),),
    ]
    assert totals(groups) == {0: 6.0, 1: None}
