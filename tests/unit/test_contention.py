"""The model of VMs that compete for pCPUs: against arithmetic, theory, and what must hold for any host."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.contention import FULL, Contender, response_factor, slowdowns


def test_who_has_pcpus_enough_is_not_slowed_down() -> None:
    vms = [Contender(0.9, 2), Contender(0.5, 1), Contender(0.5, 1)]
    assert slowdowns(vms, [10_000, 10_000, 10_000], 4, 4) == pytest.approx([1.0] * 3, abs=0.01)


def test_backlogged_vms_share_by_weight_and_what_one_cannot_use_the_others_have() -> None:
    vms = [Contender(1.0, 4), Contender(1.0, 4), Contender(1.0, 1)]
    slower = slowdowns(vms, [3000, 1000, 6000], 0, 4, {0, 1, 2})
    got = [vm.vcpus / slowdown for vm, slowdown in zip(vms, slower, strict=True)]
    assert got == pytest.approx([2.25, 0.75, 1.0], rel=0.05), "one pCPU for the third, the rest in a ratio of 3 to 1"


def test_one_pcpu_shared_evenly_slows_by_what_is_not_wanted_by_others() -> None:
    """Processor sharing of one pCPU by two VMs of one vCPU each that need 0.3: 1 + their overlap / 2."""
    first, second = slowdowns([Contender(0.3, 1), Contender(0.3, 1)], [1, 1], 0, 1)
    assert first == pytest.approx(second, rel=0.15)
    assert 1.15 < first < 1.35


vms = st.lists(st.builds(Contender, st.floats(0.01, 4), st.integers(1, 8)), min_size=1, max_size=8)


@given(vms, st.data())
def test_nobody_is_faster_than_alone_and_nobody_gains_from_less_weight(
    vms: list[Contender], data: st.DataObject
) -> None:
    weights = [data.draw(st.sampled_from((156, 625, 2500, 10_000))) for _ in vms]
    pcpus = data.draw(st.integers(1, 8))
    before = slowdowns(vms, weights, 1, pcpus)
    assert all(slowdown >= 1 - 1e-9 for slowdown in before)
    assert before == slowdowns(vms, weights, 1, pcpus)
    lowered = data.draw(st.integers(0, len(vms) - 1))
    weights[lowered] /= 4
    assert slowdowns(vms, weights, 1, pcpus)[lowered] >= before[lowered] * 0.9


@given(vms, st.integers(1, 8))
def test_backlogged_vms_get_no_more_than_there_is(vms: list[Contender], pcpus: int) -> None:
    slower = slowdowns(vms, [100] * len(vms), 1, pcpus, frozenset(range(len(vms))))
    got = [vm.vcpus / slowdown for vm, slowdown in zip(vms, slower, strict=True)]
    assert sum(got) <= pcpus * 1.1 + 1e-6 or all(slowdown < 1.01 for slowdown in slower)


@pytest.mark.parametrize(("busy", "factor"), [(0.5, 2.0), (0.8, 5.0), (0.9, 10.0)])
def test_one_vcpu_is_the_queue_of_theory(busy: float, factor: float) -> None:
    """M/M/1: a request takes 1 / (1 - u) times its CPU time."""
    assert response_factor(busy, 1, 1.0) == pytest.approx(factor)


@given(st.floats(0.01, 8), st.integers(1, 8), st.floats(1, 50))
def test_a_longer_wait_never_makes_requests_faster(needed: float, vcpus: int, slowdown: float) -> None:
    assert response_factor(needed, vcpus, slowdown) <= response_factor(needed, vcpus, slowdown * 1.1) + 1e-9
    assert response_factor(needed, vcpus, slowdown) >= slowdown
    assert FULL < 1
