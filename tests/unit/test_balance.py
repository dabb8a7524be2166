"""Which VM should leave a host, where it may go, and when nothing moves."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.balance import (
    BalancedHost,
    BalanceRules,
    LastingViolation,
    MovableVm,
    PastMigration,
    candidates,
    destinations,
    excess_pcpus,
    lasts,
    objections,
    resting,
    sources_of,
)
from manager.model.migration import MigrationUse, MovePrediction, MoveSpan
from manager.model.registration import Mode, VmClass
from manager.model.verdict import VerdictKind

RULES = BalanceRules()
VIOLATION = LastingViolation("shop", "kvm1", 1000.0, VerdictKind.HOST_FULL)


def vm(name: str, wants_pcpus: float, vm_class: VmClass = VmClass.BATCH, bound: str = "") -> MovableVm:
    return MovableVm(name, vm_class, 4, wants_pcpus, bound=bound)


def host(name: str, *vms: MovableVm, pcpus: int = 8) -> BalancedHost:
    return BalancedHost(name, pcpus, Mode.ENFORCE, MigrationUse.PROPOSE, True, False, vms)


WEB = vm("web", 4.0, VmClass.CRITICAL)
FULL = host("kvm1", WEB, vm("small", 0.5), vm("like", 2.6), vm("near", 2.9), vm("large", 7.0))
EMPTY = host("kvm2", vm("other", 1.0))


@pytest.mark.parametrize(
    ("judged", "violated", "expected"), [(0, 0, False), (120, 59, False), (120, 60, True), (1, 1, True)]
)
def test_a_violation_lasts_when_half_of_the_intervals_violated_it(judged: int, violated: int, expected: bool) -> None:
    assert lasts(judged, violated, RULES) is expected


def test_the_excess_is_what_a_neighbour_wants_or_what_is_beyond_the_margin() -> None:
    assert excess_pcpus(FULL, VIOLATION, RULES) == pytest.approx(17.0 - 7.2)
    assert excess_pcpus(FULL, replace(VIOLATION, neighbour="like"), RULES) == 2.6
    assert excess_pcpus(host("kvm1", WEB), VIOLATION, RULES) == 0.1, "never nothing"
    idle = host("kvm1", WEB, vm("idle", 0.0))
    assert candidates(idle, replace(VIOLATION, neighbour="idle"), (), RULES, Random(1)) == (WEB,)


def test_vms_near_the_excess_come_first_in_any_order_and_others_by_distance() -> None:
    violation = replace(VIOLATION, neighbour="near")
    first = {candidates(FULL, violation, (), RULES, Random(seed))[0].name for seed in range(30)}
    assert first == {"near", "like", "web"}, "by chance among those near 2.9 pCPUs"
    narrow = replace(RULES, near=0.0, candidates=5)
    assert [one.name for one in candidates(FULL, violation, (), narrow, Random(1))] == [
        "near",
        "like",
        "web",
        "small",
        "large",
    ]
    assert candidates(FULL, violation, (), RULES, Random(7)) == candidates(FULL, violation, (), RULES, Random(7))


def test_what_is_bound_rests_or_does_nothing_is_no_candidate() -> None:
    source = host("kvm1", vm("bound", 3.0, bound="it has pCPUs of its own"), vm("idle", 0.0), vm("rests", 3.0), WEB)
    assert candidates(source, VIOLATION, {"vm rests"}, RULES, Random(1)) == (WEB,)
    assert candidates(source, VIOLATION, {"host kvm1"}, RULES, Random(1)) == ()
    assert candidates(host("kvm1"), VIOLATION, (), RULES, Random(1)) == ()


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (replace(EMPTY, reports=False), "silent"),
        (replace(EMPTY, mode=Mode.OBSERVE), "not controlled"),
        (replace(EMPTY, use=MigrationUse.OFF), "switched off there"),
        (replace(EMPTY, violated=True), "violates an SLA itself"),
        (host("kvm2", vm("web-2", 6.8, VmClass.CRITICAL)), "critical VMs would leave less than the margin"),
        (host("kvm2", vm("other", 16.0)), "nearly as full as the source"),
        (host("kvm2", pcpus=2), "fewer pCPUs than vCPUs"),
        (host("kvm2", pcpus=0), "nothing known of it"),
        (host("kvm1"), "the source"),
    ],
)
def test_no_destination(other: BalancedHost, why: str) -> None:
    moved = vm("web-1", 0.5, VmClass.CRITICAL)
    assert destinations(moved, FULL, [EMPTY], (), RULES) == (EMPTY,), "the others differ from it in one thing"
    assert destinations(moved, FULL, [other], (), RULES) == (), why


def test_the_emptiest_destinations_come_first_and_none_that_rests() -> None:
    emptier, emptiest = host("kvm3", vm("x", 0.5)), host("kvm4")
    found = destinations(vm("near", 2.9), FULL, [EMPTY, emptier, emptiest], (), RULES)
    assert [each.name for each in found] == ["kvm4", "kvm3"], "two are tried"
    assert destinations(vm("near", 2.9), FULL, [emptiest], {"host kvm4"}, RULES) == ()


def past(ended_s: float, name: str = "near", took_s: float = 0.0) -> PastMigration:
    return PastMigration(name, "kvm1", "kvm2", ended_s, took_s)


def test_the_cool_down_doubles_and_is_forgotten_after_a_day() -> None:
    assert resting([past(0)], 899, RULES) == {"vm near", "host kvm1", "host kvm2"}
    assert resting([past(0)], 900, RULES) == frozenset()
    assert resting([past(0, took_s=2000)], 1999, RULES), "at least as long as it took"
    assert resting([past(0), past(1000)], 1000 + 1799, RULES)
    assert not resting([past(0), past(1000)], 1000 + 1800, RULES)
    assert resting([past(0, "a"), past(1000, "b")], 1000 + 1000, RULES) == {"host kvm1", "host kvm2"}, "each by itself"
    many = [past(1000.0 * number) for number in range(20)]
    assert not resting(many, 19_000 + 21_600, RULES), "never longer than six hours"
    assert resting(many, 19_000 + 21_599, RULES)
    assert not resting([past(0), past(86_400)], 86_400 + 900, RULES), "what is a day old does not count"
    assert not resting([past(86_400)], 0, RULES), "the clock was set back by a day"
    assert resting([past(10)], 0, RULES), "it was corrected by some seconds"


def prediction(
    application: str = "shop", before: float | None = 100.0, after: float | None = 40.0, wide: float = 1.1
) -> MovePrediction:
    spans = (None if ms is None else MoveSpan(ms, ms / wide, ms * wide) for ms in (before, after))
    return MovePrediction(application, "kvm1", 95.0, 50.0, *spans)


@pytest.mark.parametrize(
    ("predictions", "reason"),
    [
        ([prediction()], ""),
        ([prediction(after=79.0)], ""),
        ([prediction(after=81.0)], "p95 of shop on kvm1 would be 81 ms, above 50 ms, which helps too little"),
        ([prediction(after=None)], "shop would answer nothing"),
        ([], ""),
        ([prediction(), prediction("blog", 30, 40)], ""),
        ([prediction(), prediction("blog", 30, 49)], "p95 of blog on kvm1 would be up to 53.9 ms, above 50 ms"),
        ([prediction(), prediction("blog", 60, 61)], ""),
        ([prediction(), prediction("blog", None, 60)], "p95 of blog on kvm1 would be up to 66 ms, above 50 ms"),
    ],
)
def test_a_migration_has_to_help_and_to_hurt_nobody(predictions: list[MovePrediction], reason: str) -> None:
    assert "; ".join(objections(predictions, "shop", RULES)) == reason


@pytest.mark.parametrize("kind", VerdictKind)
def test_only_what_other_vms_cause_is_a_reason(kind: VerdictKind) -> None:
    violation = replace(VIOLATION, verdict=kind)
    expected = (violation,) if kind in {VerdictKind.HOST_FULL, VerdictKind.NEIGHBOUR} else ()
    assert sources_of([violation], {"kvm1": FULL}, ()) == expected


def test_one_violation_a_host_the_longest_and_none_of_hosts_that_are_busy() -> None:
    shorter = LastingViolation("blog", "kvm1", 2000.0, VerdictKind.HOST_FULL)
    hosts = {"kvm1": FULL}
    assert sources_of([shorter, VIOLATION], hosts, ()) == (VIOLATION,)
    assert sources_of([VIOLATION], hosts, {"kvm1"}) == ()
    assert sources_of([VIOLATION], {}, ()) == ()
    assert sources_of([VIOLATION], {"kvm1": replace(FULL, use=MigrationUse.OFF)}, ()) == ()
    assert sources_of([VIOLATION], {"kvm1": replace(FULL, reports=False)}, ()) == ()


@settings(max_examples=40, deadline=None)
@given(
    wants=st.lists(st.floats(0, 16), max_size=8),
    others=st.lists(st.floats(0, 16), max_size=4),
    seed=st.integers(0, 1000),
)
def test_no_destination_is_fuller_than_the_source_was(wants: list[float], others: list[float], seed: int) -> None:
    source = host("kvm1", *(vm(f"vm-{number}", demand) for number, demand in enumerate(wants)))
    hosts = [host(f"other-{number}", vm("there", demand)) for number, demand in enumerate(others)]
    for moved in candidates(source, VIOLATION, (), RULES, Random(seed)):
        assert moved in source.vms
        for to in destinations(moved, source, hosts, (), RULES):
            assert to.load.with_vm(False, moved.wants_pcpus).total <= source.load.total - RULES.margin
