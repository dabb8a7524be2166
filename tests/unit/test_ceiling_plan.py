"""How far batch VMs are held back on a disk, round by round, against a disk that queues."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.ceiling_plan import (
    CALM_PART,
    LEAST_CEILING_PER_S,
    LESS,
    QUIET_ROUNDS,
    WORSE,
    CeilingPlan,
    CeilingState,
    plan_disk_ceilings,
)
from manager.control.resource_decision import ResourceDecision
from manager.model.decision import ResourceControl, ResourceGoal, Snapshot, VmView
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import UNLIMITED, Knob, KnobKey
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.resource_use import DeviceUse, DiskUse, ResourceUse, VmResources
from manager.model.rules import DiskRules
from tests.unit.build import capabilities, view

WEB, HOG, OTHER = view("web"), view("hog", VmClass.BATCH), view("other", VmClass.BATCH)
VDA = 65024
SERVICE_MS = 2.0


def ceiling(vm: str, number: int = VDA) -> KnobKey:
    return KnobKey(vm, Knob.DISK_CEILING, number)


def use_of(latency_ms: float | None, number: int | None = VDA, **rates: float) -> ResourceUse:
    disk = DeviceUse("vda", 1e6, sum(rates.values()), 0.5, latency_ms, None, number)
    return ResourceUse(
        tuple(VmResources(vm, disks=(DiskUse("vda", 0.0, 0.0, rate),)) for vm, rate in rates.items()), (disk,)
    )


class Host:
    def __init__(self, *views: VmView, rules: DiskRules | None = None) -> None:
        self.views, self.rules = views, rules or DiskRules(ceilings=True)
        self.originals = {ceiling(vm.name): UNLIMITED for vm in views}
        self.state = CeilingState()
        self.decided = ResourceDecision()

    def round(self, use: ResourceUse, before: Mapping[KnobKey, int] | None = None) -> CeilingPlan:
        host = HostSpec("h1", disk=self.rules)
        seen = Snapshot(1000.0, 5.0, host, capabilities(CPU_WEIGHT_V2, 2), self.views, resources=use)
        names = {vm.name: vm.name for vm in self.views}
        found = plan_disk_ceilings(seen, names, self.originals, self.state, before or {}, self.decided)
        self.state = found.state
        return found


def wanted(plan: CeilingPlan) -> dict[KnobKey, object]:
    return {goal.key: goal.value for goal in plan.goals}


SLOW = use_of(30.0, web=100.0, hog=300.0, other=100.0)


def test_those_that_make_a_disk_slow_are_held_back_to_a_tenth_at_once_in_equal_parts() -> None:
    plan = Host(WEB, HOG, OTHER).round(SLOW)
    assert wanted(plan) == {ceiling("hog"): 20, ceiling("other"): 20}
    assert "a request of vda takes 30 ms: batch VMs made 400 of 500 a second" in plan.goals[0].reason


@pytest.mark.parametrize(
    "use",
    [
        use_of(30.0, hog=300.0, other=100.0),  # nobody critical uses it
        use_of(30.0, web=4.0, hog=300.0),  # or hardly
        use_of(4.0, web=100.0, hog=300.0),  # it is not slow
        use_of(30.0, web=300.0, hog=100.0),  # critical VMs do most of it themselves
        use_of(30.0, None, web=100.0, hog=300.0),  # its number is not known
        use_of(None, web=100.0, hog=300.0),  # nor how long requests take
        ResourceUse(),
    ],
)
def test_others_are_not(use: ResourceUse) -> None:
    assert not Host(WEB, HOG, OTHER).round(use).goals


def test_nothing_is_done_unless_switched_on_or_for_released_vms() -> None:
    assert not Host(WEB, HOG, rules=DiskRules(weights=True)).round(SLOW).goals
    released = Host(WEB, view("hog", VmClass.BATCH, mode=Mode.RELEASED), OTHER)
    assert wanted(released.round(use_of(30.0, web=100.0, hog=100.0, other=300.0))) == {ceiling("other"): 30}


def decided(*ceilings: tuple[str, float]) -> ResourceDecision:
    control, number = ResourceControl.DISK_CEILING, ceiling("hog").index
    return ResourceDecision(
        disk_ceilings=tuple(ResourceGoal(control, vm, "told", rate, number) for vm, rate in ceilings)
    )


def test_a_policy_gives_ceilings_where_the_settings_give_none() -> None:
    host = Host(WEB, HOG, OTHER, rules=DiskRules(steps=True))
    assert not host.round(SLOW).goals
    host.decided = decided(("hog", 150.4), ("other", 3.0), ("gone", 70.0))
    assert wanted(host.round(SLOW)) == {ceiling("hog"): 150, ceiling("other"): 10}
    host.originals[ceiling("hog")] = 100
    assert wanted(host.round(SLOW)) == {ceiling("other"): 10}, "a lower one of the operator stays"
    host.decided = decided()
    assert not host.round(SLOW).goals


def test_of_a_ceiling_by_the_policy_and_one_by_the_settings_the_lower_counts() -> None:
    host = Host(WEB, HOG, OTHER)
    host.decided = decided(("hog", 15.0), ("other", 50.0))
    assert wanted(host.round(SLOW)) == {ceiling("hog"): 15, ceiling("other"): 20}


@pytest.mark.parametrize(("original", "found"), [(UNLIMITED, 20), (1000, 20), (20, None), (15, None), (None, None)])
def test_a_lower_ceiling_of_an_operator_stays(original: int | None, found: int | None) -> None:
    host = Host(WEB, HOG, OTHER)
    if original is None:
        del host.originals[ceiling("hog")]
    else:
        host.originals[ceiling("hog")] = original
    assert wanted(host.round(SLOW)).get(ceiling("hog")) == found


def test_ceilings_go_once_no_critical_vm_has_used_the_disk_for_a_minute() -> None:
    host = Host(WEB, HOG)
    host.round(use_of(30.0, web=100.0, hog=300.0))
    alone = [use_of(2.0 + number / 1000, web=0.0, hog=30.0) for number in range(QUIET_ROUNDS)]
    assert all(host.round(use).goals for use in alone[:-1])
    assert not host.round(alone[-1]).goals
    host.round(use_of(30.0, web=100.0, hog=300.0))
    assert all(host.round(ResourceUse(cpu_pressure=number / 1000)).goals for number in range(QUIET_ROUNDS - 1))
    assert not host.round(ResourceUse(cpu_pressure=0.5)).goals


def test_the_minute_without_a_critical_vm_begins_anew_each_time_that_one_uses_the_disk() -> None:
    host = Host(WEB, HOG)
    host.round(use_of(30.0, web=100.0, hog=100.0))
    for number in range(QUIET_ROUNDS - 1):
        host.round(use_of(2.0 + number / 1000, web=0.0, hog=30.0))
    assert host.round(use_of(30.0, web=100.0, hog=60.0)).goals, "slow again, at the least ceiling"
    assert host.round(use_of(2.0, web=0.0, hog=30.0)).goals


def test_between_two_rounds_goals_stay_as_they_are() -> None:
    host = Host(WEB, HOG)
    assert host.round(SLOW) == host.round(SLOW) == host.round(SLOW)


def test_what_an_agent_set_before_stays_until_it_has_measured() -> None:
    host = Host(WEB, HOG, OTHER)
    before = {ceiling("hog"): 40, ceiling("other"): 60, KnobKey("hog", Knob.BFQ_WEIGHT): 20}
    assert wanted(host.round(ResourceUse(), before)) == {ceiling("hog"): 40, ceiling("other"): 40}


def play(
    host: Host, rounds: int, critical_per_s: float, wants_per_s: float, capacity_per_s: float
) -> list[tuple[float, float]]:
    """A disk whose requests wait for each other (M/M/1, a long queue when overloaded): of each round, what a request
    takes in milliseconds, and what batch does.
    """
    allowed: float = wants_per_s
    seen: list[tuple[float, float]] = []
    for number in range(rounds):
        done = min(wants_per_s, allowed, max(capacity_per_s - critical_per_s, 0.0))
        full = min((critical_per_s + min(wants_per_s, allowed)) / capacity_per_s, 0.98)
        latency_ms = 1000 / capacity_per_s / (1 - full)
        seen.append((latency_ms, done))
        goals = host.round(use_of(latency_ms + number / 1e6, web=critical_per_s, hog=done)).goals
        allowed = sum(goal.value for goal in goals if isinstance(goal.value, int)) if goals else wants_per_s
    return seen


def test_a_disk_is_soon_nearly_as_quick_as_without_batch_and_batch_gets_what_that_leaves() -> None:
    seen = play(Host(WEB, HOG), 40, critical_per_s=150.0, wants_per_s=5000.0, capacity_per_s=500.0)
    calm_ms = 1000 / 500 / (1 - 150 / 500)
    assert seen[0][0] > 10 * calm_ms
    assert all(latency_ms < 2 * calm_ms for latency_ms, _ in seen[2:])
    assert sum(latency_ms <= WORSE * calm_ms * 1.1 for latency_ms, _ in seen[2:]) >= 30
    assert min(done for _, done in seen[20:]) > 60


def test_batch_gets_more_while_one_of_them_uses_what_it_has() -> None:
    host = Host(WEB, HOG, OTHER)
    host.round(SLOW)
    rounds = [host.round(use_of(2.0 + number / 1000, web=100.0, hog=20.0, other=0.1)) for number in range(3)]
    assert [wanted(plan)[ceiling("hog")] for plan in rounds] == [20, 25, 25]
    resting = host.round(use_of(2.1, web=100.0, hog=3.0, other=0.1))
    assert wanted(resting)[ceiling("hog")] == 25


def test_a_disk_that_is_fast_enough_for_all_holds_nobody_back() -> None:
    assert not any(
        Host(WEB, HOG).round(use_of(latency_ms, web=150.0, hog=1000.0)).goals for latency_ms in (0.1, 0.5, 2.0, 5.0)
    )


@given(
    critical_per_s=st.floats(5, 400),
    wants_per_s=st.floats(0, 20_000),
    capacity_per_s=st.floats(50, 5000),
    rounds=st.integers(1, 60),
)
def test_batch_never_gets_less_than_the_least_and_all_of_it_can_end(
    critical_per_s: float, wants_per_s: float, capacity_per_s: float, rounds: int
) -> None:
    host = Host(WEB, HOG)
    play(host, rounds, critical_per_s, wants_per_s, capacity_per_s)
    for number in range(QUIET_ROUNDS + 1):
        plan = host.round(use_of(1.0 + number / 1e6, hog=wants_per_s))
        assert all(isinstance(goal.value, int) and goal.value >= LEAST_CEILING_PER_S for goal in plan.goals)
    assert not plan.goals
    assert 0 < CALM_PART < 1 and 0 < LESS < 1
