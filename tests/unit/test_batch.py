"""The floor of the batch VMs, and the idle class while they have it, under every policy."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.batch import BatchMemory, guard_batch
from manager.control.resolve import validate
from manager.model.decision import Decision, IdleGoal, Snapshot, VmView, WeightGoal
from manager.model.host import CPU_SHARES_V1, CPU_WEIGHT_V2, WeightScale
from manager.model.law import Law
from manager.model.registration import HostSpec, Mode, VmClass
from tests.unit.build import capabilities, view

LAW = Law(batch_floor=0.05, floor_window_s=10)


def batch(
    name: str, share: float, waits: float = 1.0, own_weight: int | None = None, idle: bool | None = False
) -> VmView:
    found = view(name, VmClass.BATCH, weight=None if idle else 2, own_weight=own_weight)
    return replace(found, cpu_share=share, run_delay_share=waits, idle=idle)


def moment(*vms: VmView, batch_idle: bool = False, scale: WeightScale | None = CPU_SHARES_V1) -> Snapshot:
    host = HostSpec("h1", policy="some", law=LAW, batch_idle=batch_idle)
    return Snapshot(1000.0, 5.0, host, capabilities(scale, 1 if scale == CPU_SHARES_V1 else 2), vms)


def decision(critical: int = 10_000, small: int = 2, *names: str) -> Decision:
    goals = [WeightGoal("web", critical, "policy"), *(WeightGoal(name, small, "policy") for name in names)]
    return Decision(tuple(sorted(goals, key=lambda goal: goal.vm)))


def weights(found: Decision) -> dict[str, int]:
    return {goal.vm: goal.weight for goal in found.weights}


def follow(shares: list[float], **options: bool) -> list[Decision]:
    memory, found = BatchMemory(), []
    for share in shares:
        seen = moment(batch("c", share / 2), batch("d", share / 2), view("web"), **options)
        one, memory = guard_batch(decision(10_000, 2, "c", "d"), seen, memory)
        assert validate(one, seen) is None
        found.append(one)
    return found


def test_below_the_floor_weights_are_raised_until_it_has_caught_up() -> None:
    found = follow([0.2, 0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.2, 0.2])
    got = [weights(one)["c"] for one in found]
    assert got[0] == 2
    raised = got[4]
    assert 2 * raised / (2 * raised + 10_000) >= 0.05
    assert next(goal.reason for goal in found[4].weights if goal.vm == "c").endswith("less than their floor of 5.0 %")
    assert got[-1] == 2
    assert all(weights(one)["web"] == 10_000 for one in found)


def test_those_that_do_not_wait_have_what_they_want() -> None:
    seen = moment(batch("c", 0.0, waits=0.0), view("web"))
    found, _ = guard_batch(decision(10_000, 2, "c"), seen, BatchMemory(0.0))
    assert weights(found) == {"c": 2, "web": 10_000}


def test_a_policy_that_gives_more_is_left_to_it() -> None:
    seen = moment(batch("c", 0.0), view("web"))
    found, memory = guard_batch(decision(1024, 1024, "c"), seen, BatchMemory(0.0))
    assert memory.raised
    assert weights(found) == {"c": 1024, "web": 1024}


def test_the_floor_holds_also_for_vms_that_the_policy_does_not_name() -> None:
    seen = moment(batch("c", 0.0), view("web", weight=50_000))
    found, _ = guard_batch(Decision(), seen, BatchMemory(0.0))
    [(name, weight)] = weights(found).items()
    assert name == "c"
    assert weight / (weight + 50_000) >= 0.05


def test_a_registered_weight_stays() -> None:
    seen = moment(batch("c", 0.0, own_weight=3), view("web"), batch_idle=True)
    found, _ = guard_batch(decision(10_000, 3, "c"), seen, BatchMemory(0.0))
    assert weights(found) == {"c": 3, "web": 10_000}
    assert found.idle == ()


@pytest.mark.parametrize("others", [1, 9])
def test_the_floor_holds_also_beside_batch_vms_whose_registered_weight_is_small(others: int) -> None:
    registered = [batch(f"d{number}", 0.0, own_weight=2) for number in range(others)]
    seen = moment(batch("c", 0.0), *registered, view("web"))
    names = [vm.name for vm in registered]
    found = weights(guard_batch(decision(10_000, 2, "c", *names), seen, BatchMemory(0.0))[0])
    assert [found[name] for name in names] == [2] * others
    assert (sum(found.values()) - 10_000) / sum(found.values()) >= 0.05


@pytest.mark.parametrize(
    ("host_mode", "mode", "beside"),
    [
        (Mode.ENFORCE, Mode.ENFORCE, 10_000),
        (Mode.ENFORCE, Mode.OBSERVE, 100),
        (Mode.ENFORCE, Mode.RELEASED, 100),
        (Mode.OBSERVE, Mode.OBSERVE, 10_000),
        (Mode.OBSERVE, Mode.RELEASED, 100),
    ],
)
def test_the_floor_is_beside_the_weights_that_critical_vms_have_by_their_mode(
    host_mode: Mode, mode: Mode, beside: int
) -> None:
    """Else batch VMs take from those that are left alone far more than their floor."""
    seen = moment(batch("c", 0.0), view("web", weight=100, mode=mode), scale=CPU_WEIGHT_V2)
    seen = replace(seen, host=replace(seen.host, mode=host_mode))
    found = weights(guard_batch(decision(10_000, 1, "c"), seen, BatchMemory(0.0))[0])
    assert LAW.batch_floor <= found["c"] / (found["c"] + beside) < 2 * LAW.batch_floor


def test_the_idle_class_is_left_below_the_floor_and_entered_again() -> None:
    found = follow([0.2, 0.0, 0.0, 0.0, 0.0, 0.2, 0.2, 0.2, 0.2], batch_idle=True)
    idle = [one.idle[0].idle for one in found]
    assert idle[0] and idle[-1]
    assert not idle[4]
    assert weights(found[4])["c"] > 100, "and then it has a weight that gives it the floor"
    assert {len(one.idle) for one in found} == {2}, "all batch VMs, no critical one"


def test_where_the_kernel_has_no_idle_class_there_is_none() -> None:
    seen = moment(batch("c", 0.3, idle=None), view("web"), batch_idle=True)
    assert guard_batch(decision(10_000, 2, "c"), seen, BatchMemory())[0].idle == ()


def test_below_the_floor_no_policy_keeps_batch_vms_in_the_idle_class() -> None:
    starved = moment(batch("c", 0.0), batch("own", 0.0, own_weight=3), view("web"))
    wanted = replace(decision(10_000, 2, "c", "own"), idle=(IdleGoal("c", True, "policy"), IdleGoal("own", True, "")))
    memory = BatchMemory(share=0.0)
    kept, _ = guard_batch(wanted, starved, memory)
    assert [goal.idle for goal in kept.idle] == [False, True], "one with a registered weight is left alone"
    assert "less than their floor" in kept.idle[0].reason


def test_a_policys_own_idle_goal_is_kept() -> None:
    seen = moment(batch("c", 0.3), view("web"), batch_idle=True)
    wanted = replace(decision(10_000, 2, "c"), idle=(IdleGoal("c", False, "policy"),))
    assert guard_batch(wanted, seen, BatchMemory())[0].idle == wanted.idle


@pytest.mark.parametrize("seen", [moment(view("web")), moment(batch("c", 0.0), scale=None)])
def test_without_batch_vms_or_weights_nothing_is_done(seen: Snapshot) -> None:
    assert guard_batch(decision(), seen, BatchMemory(0.0, True)) == (decision(), BatchMemory())


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=6),
    st.integers(2, 262_144),
    st.sampled_from([CPU_SHARES_V1, CPU_WEIGHT_V2]),
    st.booleans(),
)
def test_whatever_happens_the_decision_is_valid_and_takes_nothing_from_batch(
    shares: list[float], critical: int, scale: WeightScale, batch_idle: bool
) -> None:
    memory = BatchMemory()
    for share in shares:
        seen = moment(batch("c", share), view("web"), batch_idle=batch_idle, scale=scale)
        found, memory = guard_batch(decision(scale.clamp(critical), 2, "c"), seen, memory)
        assert validate(found, seen) is None
        assert weights(found)["c"] >= 2
        assert weights(found)["web"] == scale.clamp(critical)
        assert not memory.raised or not any(goal.idle for goal in found.idle)


def test_what_was_measured_is_told_with_the_time_it_is_of() -> None:
    """Not the guess that the average begins with, nor a window that has not passed yet."""
    memory, told = BatchMemory(), []
    for share in (0.0, 0.04, 0.04):
        _, memory = guard_batch(decision(), moment(batch("c", share), view("web")), memory)
        told.append((memory.measured_s, memory.measured_share))
    assert told == [(5.0, 0.0), (10.0, pytest.approx(0.02)), (10.0, pytest.approx(0.03))]
