"""The arithmetic of the feedback law, against values computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.feedback_law import (
    average,
    demand,
    floor_weight,
    miss,
    performance_factor,
    rate_over,
    step_towards,
    wanted_pcpus,
    weight_of,
    within,
)
from manager.model.histogram import Histogram
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2
from manager.model.window import Window
from tests.unit.build import view


@pytest.mark.parametrize(
    ("response_ms", "sla_ms", "factor"), [(500, 500, 0.0), (612, 500, 0.224), (250, 500, -0.5), (0, 500, -1.0)]
)
def test_equation_1(response_ms: float, sla_ms: float, factor: float) -> None:
    assert performance_factor(response_ms, sla_ms) == pytest.approx(factor)


@pytest.mark.parametrize(
    ("cpu_share", "factor", "wanted"), [(0.2, 0.0, 0.2), (0.2, 0.5, 0.3), (0.2, -0.5, 0.1), (0.2, -1.0, 0.0)]
)
def test_equation_2(cpu_share: float, factor: float, wanted: float) -> None:
    assert demand(cpu_share, factor) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("wanted", "largest", "shares_v1", "weight_v2"),
    [
        (0.3, 0.3, 262_144, 10_000),
        (0.15, 0.3, 131_584, 5_050),  # 1024 + 261120 / 2; 100 + 9900 / 2
        (0.1, 0.3, 88_064, 3_400),  # 1024 + 261120 / 3; 100 + 9900 / 3
        (0.0, 0.3, 1_024, 100),
        (0.0, 0.0, 1_024, 100),
    ],
)
def test_equation_3(wanted: float, largest: float, shares_v1: int, weight_v2: int) -> None:
    assert weight_of(wanted, largest, CPU_SHARES_V1) == shares_v1
    assert weight_of(wanted, largest, CPU_WEIGHT_V2) == weight_v2


@given(st.floats(0, 10), st.floats(0, 10), st.sampled_from([CPU_SHARES_V1, CPU_WEIGHT_V2]))
def test_weights_stay_in_the_range_of_critical_vms_whatever_is_demanded(wanted, largest, scale) -> None:
    assert scale.critical_min <= weight_of(wanted, largest, scale) <= scale.maximum


@given(st.floats(1e-6, 1e12), st.floats(1e-3, 1e5))
def test_a_miss_is_symmetric_and_bounded(response_ms: float, sla_ms: float) -> None:
    assert abs(miss(response_ms, sla_ms, 20)) <= math.log(20) + 1e-12
    assert miss(sla_ms * 2, sla_ms, 20) == pytest.approx(-miss(sla_ms / 2, sla_ms, 20))


@pytest.mark.parametrize(
    ("ratio", "counts_as", "folded"),
    [
        (0.01, 1 / 3, 1 / 3),
        (0.5, 0.5, 0.5),
        (1, 1, 1),
        (2, 2, 2),
        (3, 3, 3),
        (4.5, 3, 2),
        (9, 3, 1),
        (18, 3, 0.5),
        (100, 3, 1 / 3),
    ],
)
def test_a_large_miss_counts_as_the_largest_and_folds_only_on_request(
    ratio: float, counts_as: float, folded: float
) -> None:
    assert math.exp(miss(500 * ratio, 500, 3)) == pytest.approx(counts_as)
    assert math.exp(miss(500 * ratio, 500, 3, fold=True)) == pytest.approx(folded)


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_who_misses_by_more_never_counts_for_less(one_ms: float, other_ms: float) -> None:
    less, more = sorted((one_ms, other_ms))
    assert miss(less, 500, 3) <= miss(more, 500, 3)


@pytest.mark.parametrize(
    ("cpu_share", "run_delay_share", "vcpu_pcpus", "vcpu_waits", "wanted"),
    [
        (0.05, 0.8, (0.2, 0.0), (0.8, 0.0), 1.0),
        (0.3, 0.8, (0.9, 0.3), (0.8, 0.0), 1.3),  # one vCPU runs on one pCPU at most
        (0.4, 0.0, (0.9, 0.3), (0.0, 0.0), 1.6),  # its other threads used the rest
        (0.05, 0.8, (), (), 1.0),
        (0.3, 3.0, (), (), 2.0),
        (0.0, 0.0, (), (), 0.0),
    ],
)
def test_what_a_vm_wants_of_four_pcpus(cpu_share, run_delay_share, vcpu_pcpus, vcpu_waits, wanted: float) -> None:
    vm = replace(
        view("a", vcpus=2),
        cpu_share=cpu_share,
        run_delay_share=run_delay_share,
        vcpu_pcpus=vcpu_pcpus,
        vcpu_waits=vcpu_waits,
    )
    assert wanted_pcpus(vm, 4) == pytest.approx(wanted)


@given(st.integers(2, 262_144), st.integers(2, 262_144), st.floats(1.01, 100))
def test_a_step_goes_the_right_way_and_not_too_far(current: int, wanted: int, max_step: float) -> None:
    made = step_towards(current, wanted, max_step)
    assert min(current, wanted) <= made <= max(current, wanted)
    assert current / max_step <= made + 1 and made <= current * max_step


@pytest.mark.parametrize(
    ("current", "wanted", "dead_band", "inside"),
    [(100, 115, 0.15, True), (100, 118, 0.15, False), (100, 85, 0.15, True), (100, 84, 0.15, False), (7, 7, 0, True)],
)
def test_the_dead_band(current: int, wanted: int, dead_band: float, inside: bool) -> None:
    assert within(current, wanted, dead_band) is inside


def test_a_moving_average() -> None:
    assert average(None, 4.0, 0.25) == 4.0
    assert average(2.0, 4.0, 0.25) == 2.5
    assert average(2.0, 4.0, 1.0) == 4.0


@given(st.integers(2, 1_000_000), st.floats(0.001, 0.5), st.integers(1, 50))
def test_the_floor_weight_gives_the_floor_beside_the_others(others: int, share: float, vms: int) -> None:
    weight = floor_weight(others, share, vms)
    assert weight * vms / (weight * vms + others) >= share - 1e-9


def slot(start_s: float, requests: float | None) -> Window:
    return Window("shop", start_s, start_s + 5, Histogram(), requests)


@pytest.mark.parametrize(
    ("slots", "length_s", "rate_rps"),
    [
        ([], 10, None),
        ([slot(95, None)], 10, None),
        ([slot(95, 200)], 10, 40.0),
        ([slot(90, 100), slot(95, 200)], 10, 30.0),
        ([slot(85, 1000), slot(90, 100), slot(95, 200)], 10, 30.0),
        ([slot(90, None), slot(95, 200)], 10, 40.0),
        ([slot(95, 0)], 10, 0.0),
    ],
)
def test_the_rate_over_a_time(slots, length_s: float, rate_rps: float | None) -> None:
    assert rate_over(slots, 100.0, length_s) == rate_rps
