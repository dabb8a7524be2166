"""What the vCPUs of a VM did, one by one: from the kernel's counters to what is told of the busiest."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.control.tick_means import busiest_vcpu, busy_vms, mean_vcpu
from manager.loop.rates import rates
from manager.loop.reading import Reading
from manager.model.decision import VmView
from manager.model.host import CpuCounters, VcpuState, VmInstance, VmState
from manager.model.records import VcpuTick
from manager.model.registration import Mode, VmClass, VmSpec

VM = VmInstance("u", "web", 1, 1)
HOT = VcpuTick(1, 0.9, 0.05, 1)


def reading(at_s: float, *vcpus: tuple[int | None, int | None]) -> Reading:
    """Seconds that each vCPU ran and waited since it began."""
    states = tuple(
        VcpuState(number, frozenset(), *(None if one is None else int(one * 1e9) for one in (waited, ran)))
        for number, (ran, waited) in enumerate(vcpus)
    )
    return Reading(at_s, {"u": VmState(VM, 0, 100, states, frozenset())}, None)


def view(name: str, *vcpus: tuple[float, float], kind: VmClass = VmClass.CRITICAL) -> VmView:
    used, waits = zip(*vcpus, strict=True) if vcpus else ((), ())
    spec = VmSpec(name, kind)
    return VmView(spec, len(vcpus), 0.25, 0.1, Mode.ENFORCE, 100, vcpu_pcpus=used, vcpu_waits=waits)


def test_knobs_are_the_same_object_while_no_value_is_another() -> None:
    before = reading(0, (1, 1))
    states = {"u": before.states["u"]._replace(cpu_ns=5)}
    assert Reading(1, states, None, before=before).knobs is before.knobs
    states = {"u": before.states["u"]._replace(weight=101)}
    assert Reading(1, states, None, before=before).knobs == Reading(1, states, None).knobs != before.knobs


def test_use_and_wait_of_each_vcpu_are_rates_of_the_kernels_counters() -> None:
    before, now = reading(0, (1, 1), (5, 5), (2, 0)), reading(10, (11, 1), (6, 8), (2, 0))
    found = rates("u", now, before, 4)
    assert found.vcpu_pcpus == pytest.approx((1.0, 0.1, 0.0))
    assert found.vcpu_waits == pytest.approx((0.0, 0.3, 0.0))
    assert found.run_delay_share == pytest.approx(0.3)
    unknown = rates("u", reading(10, (11, 1), (None, None)), reading(0, (1, 1), (None, None)), 4)
    assert (unknown.vcpu_pcpus, unknown.vcpu_waits) == ((), ())
    assert rates("u", now, None, 4).vcpu_waits == ()


def test_a_vcpu_that_comes_or_goes_does_not_shift_the_others() -> None:
    before, now = reading(0, (1, 1), (5, 5), (2, 0)), reading(10, (11, 1), (6, 8), (2, 0))
    state, counters = now.states["u"], now.counters["u"]
    without = state._replace(vcpus=state.vcpus[:1] + state.vcpus[2:])
    fewer = Reading(10, {"u": without}, None)
    found = rates("u", fewer, before, 4)
    assert (found.vcpu_pcpus, found.vcpu_waits) == (pytest.approx((1.0, 0.0)), pytest.approx((0.0, 0.0)))
    later = replace(now, monotonic_s=20, counters={"u": counters})
    found = rates("u", later, fewer, 4)
    assert (found.vcpu_pcpus, found.run_delay_share) == ((), 0.0), "of the one that came nothing is known yet"


def test_counters_count_where_the_state_is_that_of_before() -> None:
    before = reading(0, (1, 1))
    now = Reading(10, before.states, None, counters={"u": CpuCounters(4 * 10**9, [6 * 10**9], [2 * 10**9])})
    found = rates("u", now, before, 4)
    assert (found.cpu_share, found.vcpu_pcpus, found.vcpu_waits) == (0.1, (0.5,), (0.1,))


@pytest.mark.parametrize(
    ("vcpus", "told"),
    [
        ((), None),
        (((0.3, 0.3), (0.5, 0.2)), None),
        (((0.1, 0.0), (0.6, 0.2), (0.7, 0.0)), VcpuTick(1, 0.6, 0.2, 0)),
        (((0.1, 0.0), (0.98, 0.01), (0.0, 0.0), (0.0, 0.0)), VcpuTick(1, 0.98, 0.01, 1)),
        (((0.95, 0.0), (0.5, 0.5)), VcpuTick(1, 0.5, 0.5, 2)),
    ],
)
def test_the_busiest_vcpu_is_the_one_that_wanted_to_run_most(
    vcpus: tuple[tuple[float, float], ...], told: VcpuTick | None
) -> None:
    assert busiest_vcpu(view("web", *vcpus)) == told


def test_few_vms_are_told_of_and_critical_ones_first() -> None:
    hog, web = view("hog", (1.0, 0.0), kind=VmClass.BATCH), view("web", (0.8, 0.0))
    idle, full = view("idle", (0.1, 0.0)), view("full", (0.9, 0.1))
    assert [one.name for one in busy_vms([hog, web, idle, full], 9)] == ["full", "web", "hog"]
    assert [one.name for one in busy_vms([hog, web, idle, full], 2)] == ["full", "web"]


@pytest.mark.parametrize(
    ("ticks", "mean"),
    [
        ([], None),
        ([(None, 3)], None),
        ([(HOT, 1), (None, 1)], None),
        ([(HOT, 2), (None, 1)], HOT),
        ([(HOT, 1), (replace(HOT, index=2, used=0.8, waited=0.15, full=3), 1)], VcpuTick(2, 0.85, 0.1, 2)),
    ],
)
def test_the_mean_of_many_ticks(ticks: list[tuple[VcpuTick | None, int]], mean: VcpuTick | None) -> None:
    assert mean_vcpu(ticks) == mean
