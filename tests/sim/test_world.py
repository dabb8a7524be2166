"""Requests, batch, noise and faults of a simulated host."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from manager.sim.generate import random_scenario
from manager.sim.scenario import (
    BatchSpec,
    Constant,
    Fault,
    FaultKind,
    Noise,
    SampleRoute,
    Scenario,
    ServiceTime,
    Shape,
    TierSpec,
)
from manager.sim.services import AppSlot
from manager.sim.world import World
from tests.sim.build import AT_ONCE, app, scenario


def run(made: Scenario, seconds: float, seed: int | None = None) -> World:
    world = World(made, seed)
    world.run_until(seconds)
    return world


def history(made: Scenario, seed: int, weight: int | None = None) -> list[dict[str, AppSlot]]:
    world = World(made, seed)
    slots = []
    for number in range(1, 13):
        if weight and number == 6:
            for vm in world.vms.values():
                world.cpus.set_weight(vm, weight if vm.batch is None else 1, world.now_s)
        world.run_until(5.0 * number)
        slots.append(world.close_slot())
    return slots


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_gives_the_same_and_another_seed_does_not(seed: int) -> None:
    made = random_scenario(seed)
    assert history(made, seed) == history(made, seed)
    assert history(made, seed) != history(made, seed + 1)


@pytest.mark.parametrize("seed", range(12))
def test_cpu_time_is_conserved_and_no_cpu_time_is_wasted(seed: int) -> None:
    made = replace(random_scenario(seed), faults=(Fault(FaultKind.VM_RESTART, 20, 10, "app-1-web"),))
    world = run(made, 60.0)
    vms_s = math.fsum(vm.past_cpu_s + (world.vm_cpu_s(vm) if vm.alive else 0.0) for vm in world.vms.values())
    assert vms_s + world.noise_cpu_s() == pytest.approx(world.busy_s(), rel=1e-9)
    assert 0 <= world.busy_s() <= made.pcpus * 60.0 * (1 + 1e-9)
    if sum(group.vms for group in made.batch if group.on_ms is None) >= made.pcpus:  # hogs for every pCPU
        assert world.busy_s() == pytest.approx(made.pcpus * 60.0, rel=1e-9)


def test_every_policy_meets_the_same_requests() -> None:
    """Arrivals and CPU demands do not depend on what happens to the VMs."""
    made = scenario(app("a", Constant(20.0)), app("b", Constant(20.0)), batch=(BatchSpec("batch", 4),))
    slow, fast = history(made, 1), history(made, 1, weight=10_000)
    assert slow[:5] == fast[:5]
    assert slow[8]["a"].counts != fast[8]["a"].counts
    answered = [sum(slot["a"].answered for slot in slots) for slots in (slow, fast)]
    assert answered[0] == pytest.approx(answered[1], abs=20)


def test_a_request_visits_the_tiers_in_order() -> None:
    tiers = tuple(
        TierSpec(name, ServiceTime(mean_ms, Shape.DETERMINISTIC)) for name, mean_ms in (("web", 3), ("db", 7))
    )
    made = scenario(replace(app("shop", Constant(5.0)), tiers=tiers), scheduler=AT_ONCE)
    world = run(made, 200.0)
    [slot] = world.close_slot().values()
    assert slot.answered == pytest.approx(1000, abs=100)
    assert sum(slot.counts.values()) == slot.answered
    assert world.vm_cpu_s(world.vms["shop-web"]) == pytest.approx(slot.answered * 0.003, abs=0.01)
    assert world.vm_cpu_s(world.vms["shop-db"]) == pytest.approx(slot.answered * 0.007, abs=0.01)


def test_the_vms_of_a_tier_take_turns_and_stand_in_for_each_other() -> None:
    made = scenario(
        app("shop", Constant(40.0), vms=2, shape=Shape.DETERMINISTIC),
        faults=(Fault(FaultKind.VM_RESTART, 100, 50, "shop-web-1"),),
    )
    world = run(made, 99.0)
    one, two = (world.vm_cpu_s(world.vms[f"shop-web-{number}"]) for number in (1, 2))
    assert one == pytest.approx(two, rel=0.05)
    world.run_until(150.0)
    assert world.vm_cpu_s(world.vms["shop-web-2"]) == pytest.approx(two + 51 * 0.4, rel=0.1)
    assert world.close_slot()["shop"].failed <= 2  # only what the stopped one was at


def test_batch_gets_what_critical_vms_leave_and_its_square_wave() -> None:
    made = scenario(
        app("shop", Constant(20.0), shape=Shape.DETERMINISTIC),
        pcpus=1,
        batch=(BatchSpec("wave", 1, 1, on_ms=6.0, off_ms=42.0),),
        scheduler=AT_ONCE,
    )
    world = World(made)
    world.cpus.set_weight(world.vms["shop-web"], 10_000, 0.0)
    world.cpus.set_weight(world.vms["wave"], 1, 0.0)
    world.run_until(480.0)
    assert world.vm_cpu_s(world.vms["wave"]) == pytest.approx(480 * 0.125 * 0.8, rel=0.05)


def test_noise_takes_its_share_of_every_pcpu_while_it_is_on() -> None:
    made = scenario(batch=(BatchSpec("batch", 2),), noise=Noise(0.4, 1000, 3000))
    world = run(made, 4000.0)
    assert world.noise_cpu_s() / (2 * 4000) == pytest.approx(0.4 * 0.25, rel=0.15)
    assert world.busy_s() == pytest.approx(8000.0)


def test_who_waited_too_long_is_given_up() -> None:
    world = run(scenario(app("shop", Constant(300.0, 20.0), Constant(10.0), timeout_s=2.0), pcpus=1), 60.0)
    [slot] = world.close_slot().values()
    assert slot.timed_out > 1000
    assert sum(slot.counts.values()) == slot.answered + slot.timed_out
    assert slot.waiting_s < 1.0


def test_a_restarted_vm_is_another_process_with_everything_new() -> None:
    fault = Fault(FaultKind.VM_RESTART, 10, 5, "shop-web")
    made = scenario(app("shop", Constant(50.0), vcpus=2), batch=(BatchSpec("batch", 2),), faults=(fault,))
    world = run(made, 9.0)
    before = world.vms["shop-web"]
    world.cpus.set_weight(before, 5000, 9.0)
    world.cpus.set_allowed(before.vcpus[0], {1}, 9.0)
    world.run_until(12.0)
    assert not world.vms["shop-web"].alive
    world.close_slot()
    world.run_until(14.0)
    slot = world.close_slot()["shop"]
    assert (slot.answered, slot.waiting_s) == (0, 0.0)
    assert slot.failed == pytest.approx(100, abs=40)
    world.run_until(30.0)
    after = world.vms["shop-web"]
    assert after.alive
    assert after.instance.pid != before.instance.pid
    assert after.instance.uuid == before.instance.uuid
    assert after.weight == world.scale.default
    assert all(len(vcpu.allowed) == 2 for vcpu in after.vcpus)
    assert world.close_slot()["shop"].answered == pytest.approx(750, abs=120)


def test_a_restarted_batch_vm_goes_on() -> None:
    waves = BatchSpec("wave", 1, 2, on_ms=10.0, off_ms=10.0)
    made = scenario(
        pcpus=4,
        batch=(BatchSpec("batch"), waves),
        faults=(Fault(FaultKind.VM_RESTART, 5, 5, "batch"), Fault(FaultKind.VM_RESTART, 5.001, 5, "wave")),
    )
    world = run(made, 20.0)
    assert 0 < world.vm_cpu_s(world.vms["batch"]) <= 10.0
    assert world.vm_cpu_s(world.vms["wave"]) == pytest.approx(10.0, rel=0.3)


def test_faults_that_are_alike_and_overlap_last_from_the_first_to_the_last() -> None:
    faults = (Fault(FaultKind.VM_RESTART, 10, 20, "batch"), Fault(FaultKind.VM_RESTART, 15, 30, "batch"))
    world = run(scenario(app("shop", Constant(1.0)), batch=(BatchSpec("batch"),), pcpus=1, faults=faults), 9.0)
    pid = world.vms["batch"].instance.pid
    alive = []
    for at_s in (12, 20, 35, 44, 46, 60):
        world.run_until(at_s)
        alive.append(world.vms["batch"].alive)
    batch = world.vms["batch"]
    assert alive == [False] * 4 + [True] * 2
    assert batch.instance.pid == pid + 1, "started again once"
    assert batch.past_cpu_s + world.vm_cpu_s(batch) == pytest.approx(25, abs=1)
    assert world.busy_s() == pytest.approx(25, abs=1.5), "nobody else runs"


def test_sources_work_unless_they_or_their_way_do_not() -> None:
    made = scenario(
        app("near"),
        app("far", route=SampleRoute.MANAGER),
        faults=(Fault(FaultKind.SOURCE_SILENT, 10, 10, "near"), Fault(FaultKind.MANAGER_AWAY, 15, 10)),
    )
    world = World(made)
    found = []
    for at_s in (5, 12, 17, 22, 27):
        world.run_until(at_s)
        found.append((world.source_works("near"), world.source_works("far")))
    assert found == [(True, True), (False, True), (False, False), (True, False), (True, True)]
