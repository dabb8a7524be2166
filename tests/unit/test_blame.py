"""Who is guilty of a violated SLA: a table of cases, and what holds for all of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.blame import blame
from manager.control.violation_case import Case, HostTicks, ShownNeighbour, Verdict
from manager.model.records import TickRecord, VcpuTick, VmTick
from manager.model.registration import VmClass
from manager.model.verdict import VerdictKind

PCPUS = 4
CALM = {"web": (0.2, 0.01), "hog": (0.1, 0.0), "db": (0.1, 0.0)}
"""CPU use as a fraction of the host, and seconds a second that its vCPUs waited, by VM."""

Uses = dict[str, tuple[float, float]]


def ticks(
    uses: Uses,
    count: int = 12,
    busy: float | None = None,
    weights: dict[str, int] | None = None,
    hot: VcpuTick | None = None,
) -> list[TickRecord]:
    """``hot``: the busiest vCPU of web."""
    vms = tuple(
        VmTick(vm, share, delay, (weights or {}).get(vm, 100), "enforce", hot if vm == "web" else None)
        for vm, (share, delay) in uses.items()
    )
    used = sum(share for share, _ in uses.values()) if busy is None else busy
    return [TickRecord(5.0 * number, "fair", "enforce", used, vms) for number in range(count)]


def case(before: list[TickRecord], during: list[TickRecord], **changes: object) -> Case:
    host = HostTicks("kvm1", PCPUS, True, tuple(before), tuple(during))
    given_: dict[str, object] = {"vcpus": {"web": 2}, "limits_pcpus": {"web": 2.0}, **changes}
    classes = {"web": VmClass.CRITICAL, "db": VmClass.CRITICAL, "hog": VmClass.BATCH}
    return Case("shop", frozenset({"web"}), (host,), classes=classes, **given_)  # type: ignore[arg-type]


def uses(**changes: tuple[float, float]) -> Uses:
    return CALM | changes


WAITING = (0.2, 0.4)
FOUR: dict[str, object] = {"vcpus": {"web": 4}, "limits_pcpus": {"web": 4.0}}
ONE_OF_FOUR = uses(web=(0.25, 0.01))
RUNS = VcpuTick(2, used=0.97, waited=0.01, full=1)
WAITS = VcpuTick(2, used=0.7, waited=0.27, full=1)
CASES = [
    # The rate is above what was agreed, whatever else there is.
    (
        case(ticks(CALM), ticks(uses(web=WAITING, hog=(0.6, 0))), rate_rps=41, max_rate_rps=30),
        VerdictKind.OVERLOAD,
        None,
    ),
    (
        case(ticks(CALM), ticks(uses(web=WAITING, hog=(0.6, 0))), rate_rps=30, max_rate_rps=30),
        VerdictKind.NEIGHBOUR,
        "hog",
    ),
    # It uses all its vCPUs and waits little.
    (case(ticks(CALM), ticks(uses(web=(0.48, 0.02)))), VerdictKind.OVERLOAD, None),
    (case(ticks(CALM), ticks(uses(web=(0.48, 0.02))), limits_pcpus={}), VerdictKind.NOT_CPU, None),
    (case(ticks(CALM), ticks(uses(web=(0.24, 0.02))), limits_pcpus={"web": 1.0}), VerdictKind.OVERLOAD, None),
    # One neighbour rose while the VM began to wait.
    (case(ticks(CALM), ticks(uses(web=WAITING, hog=(0.6, 0)))), VerdictKind.NEIGHBOUR, "hog"),
    (case(ticks(CALM), ticks(uses(web=WAITING, db=(0.5, 0), hog=(0.2, 0)))), VerdictKind.NEIGHBOUR, "db"),
    # It was there and large all the time.
    (
        case(ticks(uses(web=WAITING, hog=(0.6, 0))), ticks(uses(web=WAITING, hog=(0.6, 0)))),
        VerdictKind.NEIGHBOUR,
        "hog",
    ),
    (case([], ticks(uses(web=WAITING, hog=(0.6, 0)))), VerdictKind.NEIGHBOUR, "hog"),
    # Many little ones, nobody in particular.
    (
        case(ticks({"web": (0.2, 0.01)}), ticks({"web": WAITING, **{f"b{n}": (0.2, 0) for n in range(4)}})),
        VerdictKind.HOST_FULL,
        None,
    ),
    (case([], ticks({"web": WAITING, **{f"b{n}": (0.2, 0) for n in range(4)}})), VerdictKind.HOST_FULL, None),
    # What rose is not registered; or the application itself did, more than anybody else.
    (case(ticks(CALM), ticks(uses(web=WAITING, hog=(0.16, 0)), busy=0.99)), VerdictKind.HOST_FULL, None),
    (case(ticks(CALM), ticks(uses(web=(0.5, 0.8), hog=(0.35, 0)))), VerdictKind.HOST_FULL, None),
    # It waits though the host is not full: pins or limits.
    (case(ticks(CALM), ticks(uses(web=WAITING))), VerdictKind.UNKNOWN, None),
    # Neither waits it nor is it at its limit.
    (case(ticks(CALM), ticks(CALM)), VerdictKind.NOT_CPU, None),
    (case(ticks(CALM), ticks(uses(hog=(0.6, 0)))), VerdictKind.NOT_CPU, None),
    (case(ticks(CALM), ticks(uses(web=(0.001, 0.01), hog=(0.6, 0)))), VerdictKind.NOT_CPU, None),
    # One of its vCPUs is full though it uses half of what it may: by running; or it waits, and a neighbour runs there.
    (case(ticks(CALM), ticks(ONE_OF_FOUR, hot=RUNS), **FOUR), VerdictKind.IMBALANCE, None),
    (case([], ticks(ONE_OF_FOUR, hot=RUNS), **FOUR), VerdictKind.IMBALANCE, None),
    (case([], ticks(ONE_OF_FOUR, hot=RUNS), vcpus={}, limits_pcpus={}), VerdictKind.IMBALANCE, None),
    (
        case(ticks(CALM), [*ticks(ONE_OF_FOUR, 6), *ticks(ONE_OF_FOUR, 6, hot=RUNS)], **FOUR),
        VerdictKind.IMBALANCE,
        None,
    ),
    (case(ticks(CALM), ticks(uses(web=(0.38, 0.3), hog=(0.6, 0)), hot=WAITS), **FOUR), VerdictKind.NEIGHBOUR, "hog"),
    (case(ticks(CALM), ticks(uses(web=(0.38, 0.3)), hot=WAITS), **FOUR), VerdictKind.UNKNOWN, None),
    (case(ticks(CALM), ticks(uses(web=(0.48, 0.02)), hot=RUNS)), VerdictKind.OVERLOAD, None),
    (case(ticks(CALM), ticks(uses(web=(0.4, 0.02)), hot=replace(RUNS, full=2))), VerdictKind.OVERLOAD, None),
    (case(ticks(CALM), ticks(ONE_OF_FOUR, hot=RUNS), rate_rps=41, max_rate_rps=30, **FOUR), VerdictKind.OVERLOAD, None),
    (case(ticks(CALM), ticks(ONE_OF_FOUR, hot=replace(RUNS, used=0.8)), **FOUR), VerdictKind.NOT_CPU, None),
    (
        case(ticks(CALM), [*ticks(ONE_OF_FOUR, 7), *ticks(ONE_OF_FOUR, 5, hot=RUNS)], **FOUR),
        VerdictKind.NOT_CPU,
        None,
    ),
    # Nothing to go by.
    (case(ticks(CALM), ticks(CALM, count=1)), VerdictKind.UNKNOWN, None),
    (case(ticks(CALM), ticks({"hog": (0.9, 0)})), VerdictKind.UNKNOWN, None),
    (replace(case([], []), hosts=()), VerdictKind.UNKNOWN, None),
    (replace(case([], ticks(CALM)), vms=frozenset()), VerdictKind.UNKNOWN, None),
]


@pytest.mark.parametrize(("seen", "kind", "vm"), CASES)
def test_the_verdict(seen: Case, kind: VerdictKind, vm: str | None) -> None:
    found = blame(seen)
    assert (found.kind, found.vm) == (kind, vm), found.evidence
    assert all(found.evidence), "every verdict says why"


def test_the_evidence_has_numbers() -> None:
    found = blame(case(ticks(CALM), ticks(uses(web=WAITING, hog=(0.6, 0)), weights={"web": 50})))
    assert found.evidence == (
        "web on kvm1: vCPU wait (steal) 33 % (before: 1 %), while it used 0.8 pCPUs",
        "batch VM hog rose from 10.0 % to 60.0 % of the host's CPU at the same time, 100 % of all that rose",
        "the weight of web changed from 100 to 50 meanwhile",
    )
    shares = {(one.subject, one.metric): (one.before, one.during) for one in found.measures}
    assert shares["hog", "cpu_share"] == (pytest.approx(0.1), pytest.approx(0.6))
    assert shares["kvm1", "cpu_share"] == (pytest.approx(0.4), pytest.approx(0.9))
    assert shares["web", "wait_share"] == (pytest.approx(0.0123, abs=1e-3), pytest.approx(1 / 3))


def test_a_full_vcpu_is_named_with_what_it_did() -> None:
    found = blame(case(ticks(CALM), ticks(ONE_OF_FOUR, hot=RUNS), **FOUR))
    assert found.evidence[:2] == (
        "on kvm1 vCPU 2 of web is full: it runs 97 % of the time, vCPU wait (steal) 1 %",
        "1 of 4 vCPUs are full, while the VM uses 1.00 pCPUs in all: more CPU does not help, look at how the service"
        " spreads its work over threads",
    )
    measured = {one.metric: one.during for one in found.measures}
    assert (measured["vcpu_used"], measured["vcpu_wait"]) == (pytest.approx(0.97), pytest.approx(0.01))
    waits = blame(case(ticks(CALM), ticks(uses(web=(0.38, 0.3), hog=(0.6, 0)), hot=WAITS), **FOUR))
    assert "vCPU 2 of web is full: it runs 70 % of the time, vCPU wait (steal) 27 %" in waits.evidence


def test_the_host_is_the_one_on_which_a_vm_waits_most() -> None:
    calm = HostTicks("kvm0", PCPUS, True, tuple(ticks(CALM)), tuple(ticks(uses(hog=(0.7, 0)))))
    bad = ticks({"web-2": WAITING, "thief": (0.7, 0)})
    full = HostTicks("kvm1", PCPUS, True, tuple(ticks({"web-2": (0.2, 0), "thief": (0.1, 0)})), tuple(bad))
    found = blame(Case("shop", frozenset({"web", "web-2"}), (calm, full)))
    assert (found.kind, found.host, found.vm) == (VerdictKind.NEIGHBOUR, "kvm1", "thief")


def test_without_run_queue_delays_nothing_is_said_of_neighbours() -> None:
    host = replace(case(ticks(CALM), ticks(uses(web=(0.48, 0), hog=(0.5, 0)))).hosts[0], waits_known=False)
    assert blame(replace(case([], []), hosts=(host,))).kind is VerdictKind.UNKNOWN
    over = replace(case([], []), hosts=(host,), rate_rps=5, max_rate_rps=4)
    assert blame(over).kind is VerdictKind.OVERLOAD


amounts = st.tuples(st.floats(0, 1), st.floats(0, 4))
tables = st.dictionaries(st.sampled_from(["web", "web-2", "hog", "db", "b1", "b2"]), amounts)
ticks_of = st.lists(tables, max_size=5).map(lambda rows: [one for row in rows for one in ticks(row, 1)])
cases = st.builds(
    lambda before, during, rate, most: replace(
        case(before, during), vms=frozenset({"web", "web-2"}), rate_rps=rate, max_rate_rps=most
    ),
    ticks_of,
    ticks_of,
    st.none() | st.floats(0, 100),
    st.none() | st.floats(1, 100),
)


@given(cases)
def test_a_neighbour_is_another_vm_of_the_host_and_named_for_nothing_else(seen: Case) -> None:
    found = blame(seen)
    assert (found.vm is not None) == (found.kind is VerdictKind.NEIGHBOUR)
    assert found.evidence
    if found.vm is not None:
        assert found.vm not in seen.vms
        assert any(vm.vm == found.vm for host in seen.hosts for tick in host.during for vm in tick.vms)


@given(cases, st.randoms(use_true_random=False))
def test_the_order_of_vms_makes_no_difference(seen: Case, random: Random) -> None:
    def shuffled(some: tuple[TickRecord, ...]) -> tuple[TickRecord, ...]:
        return tuple(replace(tick, vms=tuple(random.sample(tick.vms, len(tick.vms)))) for tick in some)

    [host] = seen.hosts
    mixed = replace(host, before=shuffled(host.before), during=shuffled(host.during))
    assert blame(replace(seen, hosts=(mixed,))) == blame(seen)


@given(cases)
def test_a_host_twice_as_large_with_all_twice_as_much_is_the_same_case(seen: Case) -> None:
    def doubled(some: tuple[TickRecord, ...]) -> tuple[TickRecord, ...]:
        return tuple(
            replace(tick, vms=tuple(replace(vm, run_delay_share=2 * vm.run_delay_share) for vm in tick.vms))
            for tick in some
        )

    def verdict(found: Verdict) -> tuple[object, ...]:
        return found.kind, found.vm, found.host

    [host] = seen.hosts
    larger = replace(host, pcpus=2 * host.pcpus, before=doubled(host.before), during=doubled(host.during))
    twice = replace(
        seen,
        hosts=(larger,),
        vcpus={"web": 4, "web-2": 2},
        limits_pcpus={vm: 2 * limit for vm, limit in (seen.limits_pcpus or {}).items()},
    )
    once = replace(seen, vcpus={"web": 2, "web-2": 1})
    assert verdict(blame(twice)) == verdict(blame(once))


AT = datetime(2026, 3, 1, 12, tzinfo=UTC)
SHOWN = ShownNeighbour("db", "kvm1", 0.5, 0.9922, AT)


def test_who_was_shown_by_experiment_is_named_whatever_correlates() -> None:
    seen = case(ticks(CALM), ticks(uses(web=WAITING, hog=(0.6, 0))), shown=SHOWN)
    found = blame(seen)
    assert (found.kind, found.vm, found.host, found.confidence) == (VerdictKind.NEIGHBOUR, "db", "kvm1", 0.9922)
    assert found.evidence[0] == (
        "shown by experiment: response times fell by 39 % while critical VM db was held back (confidence 99.2 %)"
    )
    assert "vCPU wait" in found.evidence[1]
    correlated = blame(replace(seen, shown=None))
    assert (correlated.vm, correlated.confidence) == ("hog", None)


def test_without_ticks_the_experiment_still_speaks_but_not_of_load_above_what_was_agreed() -> None:
    seen = case([], [], shown=SHOWN)
    assert blame(seen).vm == "db"
    over = blame(replace(seen, rate_rps=41, max_rate_rps=30))
    assert (over.kind, over.confidence) == (VerdictKind.OVERLOAD, None)


@pytest.mark.parametrize(
    ("begins_min", "ends_min", "speaks"),
    [(-60, -11, False), (-60, -9, True), (-5, 5, True), (29, 60, True), (31, 60, False)],
)
def test_an_experiment_speaks_of_violations_about_its_time(begins_min: int, ends_min: int, speaks: bool) -> None:
    begins, ends = AT + timedelta(minutes=begins_min), AT + timedelta(minutes=ends_min)
    assert SHOWN.speaks_of(begins, ends) is speaks
