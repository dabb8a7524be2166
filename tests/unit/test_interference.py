"""Interference tables: the largest load by class of batch VMs and by what these lose, and what they say of a load."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.budget import Period
from manager.control.host_type import host_type
from manager.control.interference_minutes import (
    MAX_AGE_S,
    MOST_ALIKE,
    MOST_MINUTES,
    BatchLimit,
    HostPast,
    kept_minutes,
    measured_minutes,
)
from manager.control.interference_table import (
    MeasuredMinute,
    batch_class,
    interference_table,
    judged_by,
)
from manager.control.load_curve import LEAST_STEPS
from manager.control.series import VmLines
from manager.model.histogram import Histogram
from manager.model.host import Capabilities
from manager.model.interference import ANY_LOSS, LOSS_BOUNDS, BatchClass, LargestLoad
from manager.model.registration import VmClass
from manager.model.topology import Pcpu, Topology
from manager.model.verdict import FitVerdict
from manager.model.window import Window

SLA_MS = 20.0


def minute(
    number: int, rate_rps: float, wanted: float = 0.6, lost: float = 0.0, ms: float | None = None
) -> MeasuredMinute:
    """Of a server that answers in 20 ms at 100 req/s, and in 40 ms at 200."""
    return MeasuredMinute(60.0 * number, rate_rps, rate_rps / 5 if ms is None else ms, wanted, lost)


def ramp(wanted: float = 0.6, slope: float = 0.001) -> list[MeasuredMinute]:
    """Ten minutes at each of 10, 20 .. 200 req/s; batch VMs lose ``slope`` of their CPU time for each request."""
    rates = [10.0 * (1 + number // 10) for number in range(200)]
    return [minute(number, rate, wanted, slope * rate) for number, rate in enumerate(rates)]


def row_of(minutes: list[MeasuredMinute], batch: BatchClass, bound: float) -> LargestLoad:
    [row] = [row for row in interference_table(minutes, SLA_MS) if (row.batch, row.max_loss) == (batch, bound)]
    return row


@pytest.mark.parametrize(
    ("wanted", "batch"),
    [(0.0, "none"), (0.049, "none"), (0.05, "light"), (0.25, "moderate"), (0.5, "heavy"), (1.0, "full"), (7.0, "full")],
)
def test_the_class_of_batch_vms(wanted: float, batch: str) -> None:
    assert batch_class(wanted) == batch


@pytest.mark.parametrize(
    ("bound", "load_rps", "violated_rps"),
    [(0.05, 40, 70), (0.1, 90, 110), (0.25, 100, 110), (0.5, 100, 110), (ANY_LOSS, 100, 110)],
)
def test_the_largest_load_by_what_batch_vms_may_lose(bound: float, load_rps: float, violated_rps: float) -> None:
    row = row_of(ramp(), BatchClass.HEAVY, bound)
    # Bands are 19 req/s wide, so each has the rates of about two steps of the ramp.
    assert row.load_rps == pytest.approx(load_rps, abs=15)
    assert row.violated_rps == pytest.approx(violated_rps, abs=25)
    assert row.load_rps is not None
    assert row.peak_share == pytest.approx(row.load_rps / 200)
    assert row.minutes == 200
    assert row.why.startswith("too much from ")


def test_a_class_without_minutes_says_so() -> None:
    few = [minute(number, 10.0, 0.1) for number in range(LEAST_STEPS - 1)]
    table = interference_table([*ramp(), *few], SLA_MS)
    assert len(table) == len(BatchClass) * len(LOSS_BOUNDS)
    for row in table:
        if row.batch is not BatchClass.HEAVY:
            assert (row.load_rps, row.violated_rps, row.measured_rps) == (None, None, None)
            assert f"{row.minutes} minutes were measured: 6 are needed" == row.why
    assert {row.minutes for row in table} == {0, 5, 200}


def test_one_slow_minute_among_many_does_not_count() -> None:
    slow = minute(999, 15.0, ms=500.0)
    assert (
        row_of([*ramp(), slow], BatchClass.HEAVY, ANY_LOSS).load_rps
        == row_of(ramp(), BatchClass.HEAVY, ANY_LOSS).load_rps
    )


def test_a_target_that_is_never_met_has_no_load() -> None:
    row = row_of([minute(number, 50.0 + number, ms=30.0) for number in range(100)], BatchClass.HEAVY, ANY_LOSS)
    assert (row.load_rps, row.peak_share) == (None, None)
    assert row.violated_rps == pytest.approx(54, abs=1)


def test_without_batch_vms_nothing_is_lost() -> None:
    rows = [row_of(ramp(0.01, 0.004), BatchClass.NONE, bound) for bound in LOSS_BOUNDS]
    assert len({replace(row, max_loss=0.0) for row in rows}) == 1


def test_what_may_be_chance_is_not_known() -> None:
    often = [minute(number, 50.0, ms=30.0 if number % 10 == 0 else 10.0) for number in range(20)]
    row = row_of(often, BatchClass.HEAVY, ANY_LOSS)
    assert (row.load_rps, row.violated_rps) == (None, None), "2 of 20 violate it: as many as chance may make of 5 %"
    assert row.why == "not known with confidence at any load up to 50 req/s"
    assert row_of(often * 5, BatchClass.HEAVY, ANY_LOSS).violated_rps == 50.0


MINUTES = st.lists(
    st.builds(
        MeasuredMinute,
        st.integers(0, 10_000).map(float),
        st.floats(1, 1000),
        st.floats(1, 40),
        st.floats(0, 2),
        st.floats(0, 1),
    ),
    max_size=60,
)


@settings(max_examples=40)
@given(MINUTES, st.randoms(use_true_random=False))
def test_what_holds_of_every_table(minutes: list[MeasuredMinute], chance: random.Random) -> None:
    table = interference_table(minutes, SLA_MS)
    shuffled = chance.sample(minutes, len(minutes))
    if len({each.rate_rps for each in minutes}) == len(minutes):
        assert interference_table(shuffled, SLA_MS) == table
    for batch in BatchClass:
        rows = [row for row in table if row.batch is batch]
        assert [row.max_loss for row in rows] == list(LOSS_BOUNDS)
        loads = [row.load_rps or 0.0 for row in rows]
        assert loads == sorted(loads), "what holds under a bound holds under a wider one"
        violated = [row.violated_rps or float("inf") for row in rows]
        assert violated == sorted(violated)
        for row in rows:
            assert row.peak_share is None or 0 <= row.peak_share <= 1
            assert row.load_rps is None or row.violated_rps is None or row.load_rps < row.violated_rps
            assert row.load_rps is None or row.measured_rps is None or row.load_rps <= row.measured_rps


def known(batch: str, load_rps: float | None, violated_rps: float | None, measured_rps: float | None) -> LargestLoad:
    return LargestLoad(BatchClass(batch), ANY_LOSS, load_rps, None, violated_rps, measured_rps, 100, "too few")


ROWS = [
    known("none", None, None, None),
    known("light", 50.0, 200.0, 300.0),
    known("moderate", 80.0, None, 90.0),
    known("heavy", 60.0, 120.0, 150.0),
]


@pytest.mark.parametrize(
    ("batch", "rate_rps", "verdict", "words"),
    [
        ("heavy", 60, "yes", "up to 60 req/s"),
        ("heavy", 61, "unsure", "only up to 60 req/s"),
        ("heavy", 120, "no", "not from 120 req/s on"),
        ("light", 80, "yes", "up to 80 req/s"),  # as beside moderate batch load
        ("light", 81, "unsure", "only up to 80 req/s"),
        ("none", 70, "yes", "up to 80 req/s"),
        ("none", 90, None, "nothing was measured"),
        ("moderate", 95, None, "only up to 90 req/s"),
        ("moderate", 200, "no", "not from 200 req/s on"),  # as beside light batch load
        ("full", 10, None, "no load was measured with full batch load"),
    ],
)
def test_what_a_table_says_of_a_load(batch: str, rate_rps: float, verdict: str | None, words: str) -> None:
    judged = judged_by(ROWS, BatchClass(batch), ANY_LOSS, rate_rps)
    assert judged.verdict == (verdict and FitVerdict(verdict))
    assert words in judged.reason


def test_the_tightest_bound_that_covers_what_is_asked_counts() -> None:
    table = interference_table(ramp(), SLA_MS)
    assert judged_by(table, BatchClass.HEAVY, 0.09, 80.0).verdict is FitVerdict.NO
    assert judged_by(table, BatchClass.HEAVY, 0.3, 80.0).verdict is FitVerdict.YES
    assert judged_by(table, BatchClass.HEAVY, 0.01, 1.0).verdict is None


def test_of_each_load_the_newest_minutes_are_kept() -> None:
    rare = minute(0, 500.0)
    nights = [minute(number, 10.0) for number in range(1, 3000)]
    kept = kept_minutes([rare, *nights], 60.0 * 3000)
    assert kept[0] == rare
    assert kept[1:] == nights[-MOST_ALIKE:]
    assert kept_minutes([rare], MAX_AGE_S + 1) == []
    again = rare._replace(percentile_ms=1.0)
    assert kept_minutes([rare, again], 60.0) == [again]


def test_what_is_kept_is_bounded() -> None:
    many = [minute(number, 1.1 ** (number % 300), (number % 5) / 4) for number in range(20_000)]
    assert len(kept_minutes(many, 0.0)) == MOST_MINUTES


def period(number: int, count: int = 20, requests: float | None = 600.0) -> Period:
    histogram = Histogram.of([5000.0] * count)
    window = Window("shop", 60.0 * number, 60.0 * (number + 1), histogram, requests)
    return Period(60.0 * number, window, 1, int(count > 0))


def line(vm: str, used: list[float | None], waited: float = 0.0, vm_class: VmClass = VmClass.BATCH) -> VmLines:
    empty: list[None] = [None] * len(used)
    return VmLines(vm, "kvm1", vm_class, used, [waited] * len(used), [1] * len(used), [*empty], [*empty])


def host(kind: str, *lines: VmLines, **limits: BatchLimit) -> HostPast:
    return HostPast(kind, 4, lines, limits)


def critical(vm: str, *used: float | None) -> VmLines:
    return line(vm, list(used), vm_class=VmClass.CRITICAL)


@pytest.mark.parametrize(
    ("waited", "limits", "wanted", "lost"),
    [
        (0.0, {}, 0.25, 0.0),
        (1.0, {}, 0.5, 0.5),
        (1.0, {"hog": BatchLimit(2, 1.25)}, 0.3125, 0.2),
        (9.0, {"hog": BatchLimit(2)}, 0.5, 0.5),
        (1.0, {"hog": BatchLimit(2, 0.5)}, 0.25, 0.0),
    ],
)
def test_what_batch_vms_want_and_lose(waited: float, limits: dict[str, BatchLimit], wanted: float, lost: float) -> None:
    where = host("a", critical("web", 0.5), line("hog", [0.25], waited), **limits)
    found = measured_minutes([period(0)], [where], frozenset({"web"}), 95.0)
    [only] = found.by_type["a"]
    assert (only.rate_rps, only.batch_wanted) == (10.0, pytest.approx(wanted))
    assert only.batch_lost == pytest.approx(lost)
    assert only.percentile_ms == pytest.approx(5, rel=0.05)
    assert found.left_out == {}


def test_which_minutes_count() -> None:
    periods = [period(0), period(1, count=0), period(2, requests=None), period(3), period(4), period(5)]
    here = host("a", critical("web", 0.1, 0.1, 0.1, 0.1, None, None))
    like_it = host("a", critical("web", None, None, None, None, 0.1, None), line("hog", [0.5] * 6))
    other = host("b", critical("db", None, None, None, 0.1, None, None))
    found = measured_minutes(periods, [here, like_it, other], frozenset({"web", "db"}), 95.0)
    assert {kind: [each.start_s for each in minutes] for kind, minutes in found.by_type.items()} == {"a": [0.0, 240.0]}
    assert [each.batch_wanted for each in found.by_type["a"]] == [0.0, 0.5]
    assert found.left_out == {
        "too few response times": 1,
        "no request rate": 1,
        "its VMs ran on hosts of several types": 1,
        "no reports of its VMs": 1,
    }


CPUS = frozenset(range(4))
OFFERS = Capabilities("6.1", "9.0", 2, None, CPUS, CPUS, True, cpu_model="Example CPU")
CORES = Topology(tuple(Pcpu(number, number // 2, number // 2, 0, 0) for number in range(4)))


@pytest.mark.parametrize(
    ("capabilities", "text"),
    [
        (OFFERS, "Example CPU, 4 pCPUs"),
        (replace(OFFERS, topology=CORES), "Example CPU, 4 pCPUs, 2 sockets, 2 threads a core"),
        (replace(OFFERS, topology=Topology.flat(CPUS)), "Example CPU, 4 pCPUs, 1 socket, 1 thread a core"),
        (replace(OFFERS, managed_cpus=frozenset({1, 2})), "Example CPU, 2 of 4 pCPUs"),
        (replace(OFFERS, cpu_model=""), "unknown CPU of kvm1, 4 pCPUs"),
        (replace(OFFERS, kernel="6.8", libvirt="10"), "Example CPU, 4 pCPUs"),
    ],
)
def test_the_type_of_a_host(capabilities: Capabilities, text: str) -> None:
    assert host_type("kvm1", capabilities) == text
