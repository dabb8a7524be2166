"""What is protected of critical VMs and what ceilings batch VMs get, round by round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manager.control.memory_plan import QUIET_ROUNDS, MemoryGroups, MemoryPlan, MemoryState, plan_memory
from manager.control.resource_decision import ResourceDecision
from manager.model.decision import Snapshot, VmView
from manager.model.host import CPU_WEIGHT_V2
from manager.model.knobs import HOST_UUID, UNLIMITED, Knob, KnobKey
from manager.model.registration import HostSpec, Mode, VmClass
from manager.model.resource_use import ResourceUse, VmResources
from manager.model.rules import MemoryRules
from manager.model.units import MEBIBYTE
from tests.unit.build import capabilities, view

MIB = MEBIBYTE
BOTH = MemoryRules(protect=True, ceilings=True)
HOST_BYTES = 4096 * MIB
MACHINE = KnobKey(HOST_UUID, Knob.MEMORY_PROTECTION, 17)
WEB, BATCH = view("web"), view("batch", VmClass.BATCH)
PRESSED = {"memory_pressure": 0.2}


def own(name: str) -> KnobKey:
    return KnobKey(name, Knob.MEMORY_PROTECTION, 0)


def ceiling(name: str) -> KnobKey:
    return KnobKey(name, Knob.MEMORY_CEILING)


def uses(name: str, mebibytes: float, growth: float = 0.0, **fields: float) -> VmResources:
    return VmResources(name, resident_bytes=round(mebibytes * MIB), growth_bytes_per_s=growth, **fields)


class Host:
    """One with these VMs, whose UUIDs are their names, below one group; each ``round`` measures them."""

    def __init__(self, *views: VmView, rules: MemoryRules = BOTH, originals: Mapping[KnobKey, int] | None = None):
        self.views, self.rules = views, rules
        self.keys = {vm.name: (MACHINE, ceiling(vm.name), own(vm.name)) for vm in views}
        self.originals = {MACHINE: 0} | (dict(originals) if originals else {})
        self.kept: Mapping[KnobKey, int] = {}
        self.state = MemoryState()
        self.use = ResourceUse()
        self.decided = ResourceDecision()

    def round(self, *vms: VmResources, memory_bytes: int | None = HOST_BYTES) -> MemoryPlan:
        self.use = ResourceUse(vms, memory_bytes=memory_bytes)
        return self.tick()

    def tick(self, before: Mapping[KnobKey, int] | None = None) -> MemoryPlan:
        host = HostSpec("h1", memory=self.rules)
        seen = Snapshot(1000.0, 5.0, host, capabilities(CPU_WEIGHT_V2, 2), self.views, resources=self.use)
        groups = MemoryGroups(self.keys, self.originals, self.kept)
        uuids = {vm.name: vm.name for vm in self.views}
        found = plan_memory(seen, uuids, groups, self.state, before or {}, self.decided)
        self.state = found.state
        return found


def wanted(plan: MemoryPlan) -> dict[KnobKey, float]:
    """In MiB."""
    return {goal.key: goal.value / MIB for goal in plan.goals if isinstance(goal.value, int)}


def test_nothing_is_wanted_by_default() -> None:
    assert plan_of(rules=MemoryRules()) == {}


def plan_of(*views: VmView, rules: MemoryRules = BOTH) -> dict[KnobKey, float]:
    host = Host(*(views or (WEB, BATCH)), rules=rules)
    return wanted(host.round(uses("web", 1000), uses("batch", 1000, 5e6)))


def test_a_critical_vm_is_protected_with_all_above_it() -> None:
    assert plan_of() == {own("web"): 1100, MACHINE: 1100}


@pytest.mark.parametrize(
    ("resident", "next_", "protected"),
    [
        (1000, 1020, 1100),  # within the headroom
        (1000, 1060, 1166),  # half of it is used up
        (1000, 950, 1100),  # not much less
        (1000, 200, 1100),  # much less, but not for long
        (0.1, 0.1, 1),  # whole MiB
    ],
)
def test_protection_follows_what_is_resident(resident: float, next_: float, protected: int) -> None:
    host = Host(WEB)
    host.round(uses("web", resident))
    assert wanted(host.round(uses("web", next_)))[own("web")] == protected


def test_it_shrinks_after_a_quiet_minute_and_not_while_pages_are_taken() -> None:
    host = Host(WEB)
    host.round(uses("web", 1000))
    for _ in range(2 * QUIET_ROUNDS):
        assert wanted(host.round(uses("web", 400, refaults_per_s=500.0)))[own("web")] == 1100
    found = [wanted(host.round(uses("web", 400)))[own("web")] for _ in range(QUIET_ROUNDS)]
    assert found == [1100] * (QUIET_ROUNDS - 1) + [440]


def test_between_two_rounds_all_stays_as_it_was() -> None:
    host = Host(WEB, BATCH)
    first = host.round(uses("web", 1000, **PRESSED), uses("batch", 500, 5e6))
    assert [host.tick() for _ in range(3 * QUIET_ROUNDS)] == [first] * 3 * QUIET_ROUNDS


def test_no_more_is_protected_than_the_hosts_part() -> None:
    host = Host(WEB, view("db"), rules=MemoryRules(protect=True, most_protected=0.25))
    found = host.round(uses("web", 1000), uses("db", 3000))
    assert wanted(found) == {own("web"): 256, own("db"): 768, MACHINE: 1024}
    assert found.problems == (
        "memory of critical VMs is protected to 23 %: they need 4,400 MiB, and most_protected allows 1,024 MiB",
    )


def test_nothing_is_protected_before_it_is_known_how_much_there_is() -> None:
    host = Host(WEB)
    assert wanted(host.round(uses("web", 1000), memory_bytes=None)) == {}
    assert wanted(host.round(uses("web", 1000))) == {own("web"): 1100, MACHINE: 1100}
    assert wanted(host.round(uses("web", 1000), memory_bytes=None)) == {own("web"): 1100, MACHINE: 1100}


def test_what_a_former_agent_set_stays_until_it_is_measured() -> None:
    host = Host(WEB, BATCH)
    before = {own("web"): 700 * MIB, ceiling("batch"): 90 * MIB, MACHINE: 700 * MIB}
    assert wanted(host.tick(before)) == {own("web"): 700, ceiling("batch"): 90, MACHINE: 700}
    assert wanted(host.round(uses("web", 1000), uses("batch", 50)))[own("web")] == 1100


def test_a_vm_that_cannot_be_read_keeps_its_part_of_the_group_above() -> None:
    host = Host(WEB, view("db"))
    host.round(uses("web", 1000), uses("db", 500))
    host.views, host.kept = (WEB,), {MACHINE: 1650 * MIB}
    assert wanted(host.round(uses("web", 1000))) == {own("web"): 1100, MACHINE: 1650}
    host.views, host.kept = (WEB, view("db")), {}
    assert wanted(host.tick()) == {own("web"): 1100, own("db"): 550, MACHINE: 1650}


def test_what_the_operator_protects_already_is_left() -> None:
    host = Host(WEB, originals={own("web"): 2000 * MIB, MACHINE: UNLIMITED})
    assert wanted(host.round(uses("web", 1000))) == {own("web"): 2000}


@pytest.mark.parametrize(
    ("web", "batch", "limit"),
    [
        ({}, 5e6, None),  # nobody is short
        (PRESSED, 5e6, 550),
        ({"refaults_per_s": 150.0}, 5e6, 550),
        ({"major_faults_per_s": 150.0}, 5e6, 550),
        ({"memory_pressure": 0.04, "refaults_per_s": 99.0}, 5e6, None),
        (PRESSED, 5e5, None),  # it does not grow
    ],
)
def test_a_batch_vm_that_grows_has_a_ceiling_while_a_critical_one_is_short(
    web: Mapping[str, float], batch: float, limit: int | None
) -> None:
    found = Host(WEB, BATCH).round(uses("web", 1000, **web), uses("batch", 500, batch))
    assert wanted(found).get(ceiling("batch")) == limit


def test_a_ceiling_stays_while_anybody_is_short_and_goes_after_a_calm_minute() -> None:
    host = Host(WEB, BATCH)
    short, calm = uses("web", 1000, **PRESSED), uses("web", 1000)
    host.round(short, uses("batch", 500, 5e6))
    for _ in range(2 * QUIET_ROUNDS):
        assert wanted(host.round(short, uses("batch", 540)))[ceiling("batch")] == 550
    found = [wanted(host.round(calm, uses("batch", 540))).get(ceiling("batch")) for _ in range(QUIET_ROUNDS)]
    assert found == [550] * (QUIET_ROUNDS - 1) + [None]


@pytest.mark.parametrize(
    ("batch", "rounds", "limit"),
    [
        ({"refaults_per_s": 400.0}, 1, 605),  # it works with more than it may have
        ({"memory_pressure": 0.9}, QUIET_ROUNDS - 1, 550),  # that is what holding back means
        ({"memory_pressure": 0.9}, QUIET_ROUNDS, 605),
        ({"memory_pressure": 0.9, "refaults_per_s": 400.0}, 3, 733),
    ],
)
def test_a_ceiling_that_thrashes_or_stalls_its_vm_is_raised(
    batch: Mapping[str, float], rounds: int, limit: int
) -> None:
    host = Host(WEB, BATCH)
    short = uses("web", 1000, **PRESSED)
    host.round(short, uses("batch", 500, 5e6))
    for _ in range(rounds):
        found = host.round(short, uses("batch", 545, **batch))
    assert wanted(found)[ceiling("batch")] == limit


def test_a_lower_ceiling_of_the_operator_stays() -> None:
    host = Host(WEB, BATCH, originals={ceiling("batch"): 300 * MIB})
    assert ceiling("batch") not in wanted(host.round(uses("web", 1000, **PRESSED), uses("batch", 500, 5e6)))


@pytest.mark.parametrize("mode", Mode)
def test_modes(mode: Mode) -> None:
    host = Host(replace(WEB, mode=mode), replace(BATCH, mode=mode))
    found = host.round(uses("web", 1000, **PRESSED), uses("batch", 500, 5e6))
    assert {goal.mode for goal in found.goals} == (set() if mode is Mode.RELEASED else {mode})


VM_ROUND = st.tuples(st.floats(0, 8000), st.floats(0, 1e8), st.floats(0, 1), st.floats(0, 1000))


@given(
    st.lists(st.tuples(VM_ROUND, VM_ROUND, VM_ROUND), min_size=1, max_size=30),
    st.floats(0.01, 0.9),
    st.floats(0.02, 1.0),
)
def test_whatever_is_measured(
    rounds: Sequence[tuple[tuple[float, ...], ...]], most_protected: float, headroom: float
) -> None:
    """Never more than the share; a ceiling is above what was resident when it was set; groups above have the sum."""
    rules = MemoryRules(True, most_protected, True, headroom)
    host = Host(WEB, view("db"), BATCH, rules=rules)
    limit: float | None = None
    for each in rounds:
        found = host.round(
            *(
                uses(name, size, growth, memory_pressure=pressure, refaults_per_s=refaults)
                for name, (size, growth, pressure, refaults) in zip(("web", "db", "batch"), each, strict=True)
            )
        )
        amounts = wanted(found)
        protected = amounts.get(own("web"), 0) + amounts.get(own("db"), 0)
        assert protected * MIB <= HOST_BYTES * most_protected
        assert amounts.get(MACHINE, 0) == protected
        assert all(goal.value % MIB == 0 for goal in found.goals if isinstance(goal.value, int))
        now, resident = amounts.get(ceiling("batch")), each[2][0]
        if now is not None and now != limit:
            assert now >= resident
            assert limit is None or now > limit
        limit = now


def test_a_policy_has_one_vm_protected_and_one_held_back_for_as_long_as_it_says_so() -> None:
    host = Host(WEB, view("db"), BATCH, view("calm", VmClass.BATCH), rules=MemoryRules(steps=True))
    use = [uses("web", 1000), uses("db", 1000), uses("batch", 500), uses("calm", 500)]
    assert wanted(host.round(*use)) == {}
    host.decided = ResourceDecision({"web": "told"}, {"batch": "told so"})
    plan = host.round(*use)
    assert wanted(plan) == {own("web"): 1100, MACHINE: 1100, ceiling("batch"): 550}
    assert {goal.reason.partition(":")[0] for goal in plan.goals if goal.key.uuid != HOST_UUID} == {"told", "told so"}
    for _ in range(2 * QUIET_ROUNDS):
        assert ceiling("batch") in wanted(host.round(*use)), "nobody is short, and it stays all the same"
    raised = wanted(host.round(*use[:2], uses("batch", 500, refaults_per_s=300), use[3]))
    assert raised[ceiling("batch")] > 550, "no ceiling thrashes the disk that all share"
    host.decided = ResourceDecision({"web": "told"})
    assert wanted(host.tick()) == {own("web"): 1100, MACHINE: 1100}
    host.decided = ResourceDecision()
    assert wanted(host.tick()) == {}


def test_what_a_policy_decided_adds_to_the_settings() -> None:
    host = Host(WEB, BATCH, rules=MemoryRules(protect=True, steps=True))
    host.decided = ResourceDecision({"web": "told"}, {"batch": "told so"})
    both = {own("web"): 1100, MACHINE: 1100, ceiling("batch"): 550}
    assert wanted(host.round(uses("web", 1000), uses("batch", 500))) == both
    host.decided = ResourceDecision()
    assert wanted(host.tick()) == {own("web"): 1100, MACHINE: 1100}
