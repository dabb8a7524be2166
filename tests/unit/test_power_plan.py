"""Where resume latencies and governors are set: on pCPUs with critical vCPUs, and nowhere else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from manager.control.power_plan import PowerSeen, plan_power
from manager.model.decision import Placement, Snapshot, VcpuPlacement, VmPlacement, VmView
from manager.model.knobs import HOST_UUID, Knob, KnobKey
from manager.model.power import ANY_LATENCY, NO_LATENCY, PERFORMANCE, ClockDomain
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.rules import PlacementRules
from tests.unit.build import snapshot, view

POWERSAVE = 2
BOTH = PlacementRules(resume_latency_us=20, performance_governor=True)
CLOCKS = {0: ClockDomain(frozenset({0, 1}), True), 2: ClockDomain(frozenset({2, 3}), True)}


def latency(cpu: int) -> KnobKey:
    return KnobKey(HOST_UUID, Knob.RESUME_LATENCY, cpu)


def governor(number: int) -> KnobKey:
    return KnobKey(HOST_UUID, Knob.GOVERNOR, number)


SEEN = PowerSeen(
    {**{latency(cpu): ANY_LATENCY for cpu in range(4)}, governor(0): POWERSAVE, governor(2): POWERSAVE}, CLOCKS
)


def pinned(**cpus: tuple[int, ...]) -> Placement:
    return Placement(
        tuple(VmPlacement(vm, tuple(VcpuPlacement(cpu, "free") for cpu in own), 1.0) for vm, own in cpus.items())
    )


def host(*views: VmView, rules: PlacementRules = BOTH) -> Snapshot:
    return replace(snapshot(*views), host=HostSpec("h1", placement=rules))


def wanted(seen: Snapshot, placement: Placement, power: PowerSeen = SEEN) -> dict[KnobKey, tuple[object, Mode]]:
    return {goal.key: (goal.value, goal.mode) for goal in plan_power(seen, placement, power)}


WEB, DB = view("web", vcpus=2), view("db")


def test_nothing_is_wanted_by_default() -> None:
    assert wanted(host(WEB, rules=PlacementRules()), pinned(web=(0, 1))) == {}


def test_pcpus_with_critical_vcpus_and_their_clocks_and_no_others() -> None:
    batch = view("batch", VmClass.BATCH)
    found = wanted(host(WEB, batch), pinned(web=(0, 1), batch=(3,)))
    on = Mode.ENFORCE
    assert found == {latency(0): (20, on), latency(1): (20, on), governor(0): (PERFORMANCE, on)}
    assert wanted(host(WEB), Placement()) == {}, "it floats"
    [first, *_] = plan_power(host(WEB, DB), pinned(web=(0, 1), db=(0,)), SEEN)
    assert first.reason == "vCPUs of db, web are pinned here"


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (PlacementRules(resume_latency_us=0), {latency(2): NO_LATENCY}),
        (PlacementRules(performance_governor=True), {governor(2): PERFORMANCE}),
    ],
)
def test_either_alone(rules: PlacementRules, found: dict[KnobKey, int]) -> None:
    assert {key: value for key, (value, _) in wanted(host(DB, rules=rules), pinned(db=(2,))).items()} == found


@pytest.mark.parametrize(
    ("original", "found"), [(ANY_LATENCY, 20), (21, 20), (20, None), (5, None), (NO_LATENCY, None)]
)
def test_a_stricter_limit_of_an_operator_stays(original: int, found: int | None) -> None:
    held = replace(SEEN, originals={latency(2): original})
    assert wanted(host(DB), pinned(db=(2,)), held).get(latency(2), (None,))[0] == found


def test_a_governor_that_is_not_known_or_not_offered_stays() -> None:
    unknown = replace(SEEN, originals={**SEEN.originals, governor(2): 0})
    assert governor(2) not in wanted(host(DB), pinned(db=(2,)), unknown)
    without = replace(SEEN, clocks={2: ClockDomain(frozenset({2, 3}), False)})
    assert governor(2) not in wanted(host(DB), pinned(db=(2,)), without)
    assert wanted(host(DB), pinned(db=(2,)), PowerSeen()) == {}, "the host has none of it"


def test_what_is_only_observed_is_not_written_and_released_vms_want_nothing() -> None:
    observed, released = replace(DB, mode=Mode.OBSERVE), replace(DB, mode=Mode.RELEASED)
    assert set(wanted(host(observed), pinned(db=(2,))).values()) == {(20, Mode.OBSERVE), (PERFORMANCE, Mode.OBSERVE)}
    assert wanted(host(released), pinned(db=(2,))) == {}
    shared = wanted(host(observed, WEB), pinned(db=(2,), web=(2, 3)))
    assert shared[latency(2)] == (20, Mode.ENFORCE), "another one on it is controlled"


def test_what_was_set_for_a_vm_that_cannot_be_read_stays() -> None:
    kept = replace(SEEN, kept={latency(2): 20, governor(2): PERFORMANCE})
    assert wanted(host(), Placement(), kept) == {
        latency(2): (20, Mode.ENFORCE),
        governor(2): (PERFORMANCE, Mode.ENFORCE),
    }
    assert wanted(host(rules=PlacementRules()), Placement(), kept) == {}, "it was switched off"
