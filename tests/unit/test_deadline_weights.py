"""How batch VMs divide among themselves what they get: earliest deadline first, with the sum of weights unchanged."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.control.deadline_weights import DividedThen, WorkClaim, divided, grants, steady, total_weight

SOON, LATER = 1000.0, 2000.0


@pytest.mark.parametrize(
    ("claims", "budget_pcpus", "granted"),
    [
        ([WorkClaim("a", 4), WorkClaim("b", 4)], 2.0, {"a": 1.0, "b": 1.0}),
        ([WorkClaim("a", 4, 1.0, SOON), WorkClaim("b", 4)], 2.0, {"a": 1.6, "b": 0.4}),
        ([WorkClaim("a", 4, 1.0, LATER), WorkClaim("b", 4, 1.0, SOON)], 2.0, {"a": 0.8, "b": 1.2}),
        ([WorkClaim("a", 4, 9.0, SOON), WorkClaim("b", 4, 0.5, LATER)], 2.0, {"a": 2.0, "b": 0.0}),
        ([WorkClaim("a", 1, 9.0, SOON), WorkClaim("b", 4, 0.5, LATER)], 2.0, {"a": 1.2, "b": 0.8}),
        ([WorkClaim("a", 4, 1.0, SOON), WorkClaim("b", 4, 1.0)], 0.0, {"a": 0.0, "b": 0.0}),
    ],
)
def test_grants(claims: list[WorkClaim], budget_pcpus: float, granted: dict[str, float]) -> None:
    assert grants(claims, budget_pcpus) == pytest.approx(granted)


@pytest.mark.parametrize(
    ("weights", "least", "critical", "floor", "total"),
    [
        ([100, 100], 1, 10_000, 0.01, 200),
        ([1, 1, 1], 1, 10_000, 0.01, 30),
        ([2, 2], 2, 10_000, 0.01, 40),
        ([1, 1, 1], 1, 1000, 0.01, 11),
        ([1, 1, 1], 1, 10_000, 0.0, 3),
        ([1, 1], 1, 0, 0.01, 20),
    ],
)
def test_the_sum_rises_only_from_the_minimum_and_never_above_the_floor(
    weights: list[int], least: int, critical: int, floor: float, total: int
) -> None:
    assert total_weight(weights, least, critical, floor) == total


def test_what_is_too_little_to_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="3 cannot be divided into 2 weights of 2 or more"):
        divided(3, 2, [WorkClaim("a", 1), WorkClaim("b", 1)], 1.0)


CLAIMS = st.lists(
    st.builds(
        WorkClaim,
        st.sampled_from("abcdefgh"),
        st.floats(0.1, 8),
        st.floats(0, 8),
        st.one_of(st.just(math.inf), st.floats(1, 1e6)),
    ),
    min_size=1,
    max_size=6,
    unique_by=lambda claim: claim.vm,
)


@settings(max_examples=60, deadline=None)
@given(claims=CLAIMS, budget_pcpus=st.floats(0, 16), least=st.integers(1, 2), spare=st.integers(0, 500))
def test_the_sum_stays_and_earlier_deadlines_do_not_get_less(
    claims: list[WorkClaim], budget_pcpus: float, least: int, spare: int
) -> None:
    total = least * len(claims) + spare
    weights = divided(total, least, claims, budget_pcpus)
    assert sum(weights.values()) == total
    assert min(weights.values()) >= least
    for one in claims:
        for other in claims:
            alike = one.needed_pcpus >= other.needed_pcpus and one.most_pcpus >= other.most_pcpus
            if alike and one.deadline_s < other.deadline_s:
                assert weights[one.vm] >= weights[other.vm] - 1


@settings(max_examples=40, deadline=None)
@given(
    weights=st.lists(st.integers(1, 10_000), min_size=2, max_size=6),
    critical=st.integers(1, 100_000),
    floor=st.floats(0, 0.5),
)
def test_critical_vms_keep_all_but_the_floor(weights: list[int], critical: int, floor: float) -> None:
    total = total_weight(weights, 1, critical, floor)
    assert total >= sum(weights)
    if total > sum(weights):
        assert (total - 1) / (total - 1 + critical) <= floor + 1e-9


def test_small_changes_are_not_made() -> None:
    claims = [WorkClaim("a", 4, 1.0, SOON), WorkClaim("b", 4)]
    first = steady(DividedThen(), claims, 200, 1, 2.0, 0.25)
    assert steady(first, [WorkClaim("a", 4, 0.97, SOON), WorkClaim("b", 4)], 200, 1, 2.0, 0.25) is first
    assert steady(first, [WorkClaim("a", 4, 0.2, SOON), WorkClaim("b", 4)], 200, 1, 2.0, 0.25) != first
    assert steady(first, claims, 300, 1, 2.0, 0.25).total == 300
