"""Weighted sharing, placement and waiting of the simulated processors."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manager.sim.cpu_sharing import ASLEEP, RUNNING, THROTTLED, WAITING
from manager.sim.scenario import Scheduler
from tests.sim.build import AT_ONCE, Machine

# What each VM gets of the pCPUs that all its vCPUs compete for, with weights as given.
SHARES = [
    (1, [(300, 1), (100, 1)], [0.75, 0.25]),
    (1, [(10_000, 1), (1, 1)], [10_000 / 10_001, 1 / 10_001]),
    (1, [(262_144, 1), (1024, 1), (2, 1)], [262_144 / 263_170, 1024 / 263_170, 2 / 263_170]),
    (1, [(100, 4), (100, 1)], [0.5, 0.5]),  # a VM's weight is divided among its runnable vCPUs
    (2, [(300, 2), (100, 2)], [1.5, 0.5]),
]


@pytest.mark.parametrize(("pcpus", "vms", "expected"), SHARES)
def test_shares_under_saturation_are_those_of_the_weights(
    pcpus: int, vms: list[tuple[int, int]], expected: list[float]
) -> None:
    machine = Machine(pcpus)
    groups = [machine.hog(weight, vcpus) for weight, vcpus in vms]
    if pcpus > 1:
        for group in groups:
            for vcpu in group.vcpus:
                machine.cpus.set_allowed(vcpu, {vcpu.index}, 0.0)
    machine.run(7.0)
    assert [machine.cpu_s(group) for group in groups] == pytest.approx([share * 7 for share in expected], rel=1e-9)


def test_a_weight_acts_from_when_it_is_set() -> None:
    machine = Machine(1)
    one, two = machine.hog(100), machine.hog(100)
    machine.run(1.0)
    machine.cpus.set_weight(one, 300, machine.now_s)
    machine.run(1.0)
    assert machine.cpu_s(one) == pytest.approx(0.5 + 0.75)
    assert machine.cpu_s(two) == pytest.approx(0.5 + 0.25)


def test_work_ends_when_sharing_says_so() -> None:
    machine = Machine(1)
    machine.hog(100)
    worker = machine.group(300)
    [vcpu] = worker.vcpus
    machine.cpus.wake(vcpu, 0.3, 0.0)
    machine.run(0.399)
    assert vcpu.state == RUNNING
    machine.run(0.002)
    assert vcpu.state == ASLEEP
    assert vcpu.cpu_s == pytest.approx(0.3)
    assert machine.cpus.delay_s(vcpu, machine.now_s) == pytest.approx(0.1)


def test_what_is_outside_the_vms_takes_its_part_first() -> None:
    machine = Machine(1)
    hog = machine.hog(100)
    machine.cpus.set_speed(0.75, 0.0)
    machine.run(4.0)
    assert machine.cpu_s(hog) == pytest.approx(3.0)
    assert machine.cpus.idle_s(machine.now_s) == 0.0


def test_pins_are_respected() -> None:
    machine = Machine(4, Scheduler())
    groups = [machine.hog(weight, 2, {1, 2}) for weight in (1, 100, 10_000)]
    for _ in range(50):
        machine.run(0.01)
        machine.cpus.balance(machine.now_s)
        assert {vcpu.pcpu.index for group in groups for vcpu in group.vcpus} == {1, 2}
    machine.cpus.set_allowed(groups[0].vcpus[0], {3}, machine.now_s)
    assert groups[0].vcpus[0].pcpu.index == 3
    before_s = machine.cpus.cpu_s(groups[0].vcpus[0], machine.now_s)
    machine.run(1.0)
    assert machine.cpus.cpu_s(groups[0].vcpus[0], machine.now_s) == pytest.approx(before_s + 1.0)


def test_who_floats_wakes_where_the_least_weight_is() -> None:
    machine = Machine(3)
    machine.hog(10_000, 1, {0})
    machine.hog(100, 1, {1})
    machine.hog(1, 1, {2})
    [vcpu] = machine.group(50).vcpus
    machine.cpus.wake(vcpu, 1.0, 0.0)
    assert vcpu.pcpu.index == 2


def test_balancing_evens_out_the_weight_and_then_keeps_still() -> None:
    machine = Machine(2)
    hogs = [machine.hog(100, 1, {0}) for _ in range(4)]
    for hog in hogs:
        machine.cpus.set_allowed(hog.vcpus[0], {0, 1}, 0.0)
    machine.cpus.balance(0.0)
    places = [hog.vcpus[0].pcpu.index for hog in hogs]
    assert sorted(places) == [0, 0, 1, 1]
    machine.cpus.balance(0.0)
    assert [hog.vcpus[0].pcpu.index for hog in hogs] == places


def waits_s(weight: int, other: int, others: int = 1) -> list[float]:
    """How long each of 400 wake-ups beside hogs waits before it shares the pCPU."""
    machine = Machine(1, Scheduler(slice_ms=3, tick_ms=4))
    for _ in range(others):
        machine.hog(other)
    [vcpu] = machine.group(weight).vcpus
    found: list[float] = []
    for _ in range(400):
        machine.cpus.wake(vcpu, 1.0, machine.now_s)
        found.append(vcpu.join_s - machine.now_s if vcpu.state == WAITING else 0.0)
        machine.run(0.0501)
        machine.cpus.sleep(vcpu, machine.now_s)
        machine.run(0.0017)
    return found


def test_who_dominates_runs_at_once_and_equals_wait() -> None:
    assert sum(waits_s(10_000, 1)) == 0.0
    assert all(wait_s == 0.0 for wait_s in waits_s(262_144, 2, others=2))
    equal, crowd, light = waits_s(100, 100), waits_s(100, 100, others=4), waits_s(1, 10_000)
    assert 0.4 < sum(wait_s > 0 for wait_s in equal) / 400 < 0.6
    assert max(equal) <= 0.003 + 0.004
    assert sum(crowd) > 1.5 * sum(equal)
    assert max(crowd) <= 4 * 0.003 + 0.004
    assert all(wait_s > 0 for wait_s in light)
    assert max(light) <= 0.003 + 0.004


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["toggle", "work", "weight", "allow", "speed", "balance", "throttle"]),
        st.integers(0, 5),
        st.integers(0, 2),
        st.integers(1, 10_000),
        st.sets(st.integers(0, 2), min_size=1),
        st.floats(0, 0.02),
    ),
    max_size=60,
)


@settings(max_examples=200, deadline=None)
@given(actions=ACTIONS, scheduler=st.sampled_from([AT_ONCE, Scheduler()]))
def test_cpu_time_is_conserved_and_no_pcpu_idles_while_somebody_could_run_there(
    actions: list[tuple[str, int, int, int, set[int], float]], scheduler: Scheduler
) -> None:
    machine = Machine(3, scheduler)
    groups = [machine.group(100, 1 + number % 3) for number in range(6)]
    noise_s = 0.0
    for what, group_number, vcpu_number, weight, cpus, seconds in actions:
        group = groups[group_number]
        vcpu = group.vcpus[vcpu_number % len(group.vcpus)]
        cpus_s = machine.cpus
        if what == "weight":
            cpus_s.set_weight(group, weight, machine.now_s)
        elif what == "allow":
            cpus_s.set_allowed(vcpu, cpus, machine.now_s)
        elif what == "speed":
            cpus_s.set_speed(weight / 10_000, machine.now_s)
        elif what == "balance":
            cpus_s.balance(machine.now_s)
        elif what == "throttle":
            (cpus_s.unthrottle if group.throttled else cpus_s.throttle)(group, machine.now_s)
        elif vcpu.state == ASLEEP:
            cpus_s.wake(vcpu, math.inf if what == "toggle" else weight / 1e6, machine.now_s)
        else:
            cpus_s.sleep(vcpu, machine.now_s)
        check_work_conserving(machine)
        before_s = machine.now_s
        machine.run(seconds)
        noise_s += 3 * (machine.now_s - before_s) * (1 - machine.cpus.speed)
        check_work_conserving(machine)
        used_s = math.fsum(machine.cpu_s(one) for one in groups)
        total_s = used_s + machine.cpus.idle_s(machine.now_s) + noise_s
        assert total_s == pytest.approx(3 * machine.now_s, rel=1e-9, abs=1e-9)
        for one in groups:
            for each in one.vcpus:
                assert 0 <= each.cpu_s <= machine.now_s + 1e-9
                assert each.state == ASLEEP or each.pcpu in each.allowed


def check_work_conserving(machine: Machine) -> None:
    pcpus = machine.cpus.pcpus
    idle = [pcpu for pcpu in pcpus if not pcpu.running]
    for pcpu in pcpus:
        here = [*pcpu.running, *pcpu.waiting]
        assert pcpu.running or not pcpu.waiting
        assert pcpu.load == pytest.approx(sum(vcpu.weight for vcpu in here))
        assert pcpu.weight == pytest.approx(sum(vcpu.weight for vcpu in pcpu.running))
        if len(here) > 1:
            assert not [vcpu for vcpu in here for free in idle if free in vcpu.allowed]
    for group in machine.groups:
        assert {vcpu.state for vcpu in group.vcpus} <= {
            ASLEEP,
            *((THROTTLED,) if group.throttled else (RUNNING, WAITING)),
        }
        assert group.runnable == sum(vcpu.state != ASLEEP for vcpu in group.vcpus)
